"""Pages of grids, figures and notes: one file each that loads nothing and escapes all text."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment
from markupsafe import Markup

from sightline.html_pages import html_templates, source_digest
from train.report.grid import SIGN, Grid, printable

_HERE = Path(__file__).parent
_THEMED = {
    "#1f2933": "--ink",
    "#5b6770": "--soft",
    "#9aa5b1": "--faint",
    "#cbd2d9": "--faint",
    "#e4e7eb": "--line",
    "#ffffff": "--paper",
    "white": "--paper",
    "#000000": "--ink",
}
"""Colour of a drawing → variable of page.css, which is another one in the dark."""


_EMPTY = Markup()


@dataclass(frozen=True)
class Drawing:
    """A figure of a page.

    Attributes:
        note: how to read it.
        svg: from `drawing.to_svg`; the only text of a page that is not escaped.
        themed: whether its ink and paper may be those of the page.
    """

    caption: str
    note: str
    svg: str
    themed: bool = True

    @property
    def markup(self) -> Markup:
        """The SVG as it stands in a page."""
        return inline_svg(self.svg, self.themed)


@dataclass(frozen=True)
class Section:
    """A part of a page: grids, then notes on them, figures, and anything else as `body`.

    Attributes:
        title: every section of a page has another.
    """

    title: str
    grids: tuple[Grid, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    notes: tuple[str, ...] = ()
    body: Markup = _EMPTY

    @property
    def slug(self) -> str:
        """Its address within the page."""
        plain = re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")
        if re.fullmatch(r"[A-Za-z0-9 ]+", self.title):
            return plain
        return f"{plain}-{hashlib.sha256(self.title.encode()).hexdigest()[:6]}"


@dataclass(frozen=True)
class Included:
    """Sections from elsewhere, such as neighbours, and the style sheet of their pictures."""

    sections: tuple[Section, ...] = ()
    style: str = ""

    def __add__(self, other: Included) -> Included:
        return Included(self.sections + other.sections, self.style + other.style)


NOTHING = Included()
"""No section from elsewhere."""


def to_page(
    title: str,
    sections: Sequence[Section],
    generator: str,
    lead: Sequence[str] = (),
    style: str = "",
) -> str:
    """One HTML document; equal input gives equal text.

    Args:
        generator: what made it; a later command may replace a page that says the same.
        lead: sentences to state first.
        style: CSS to add.
    """
    environment = page_templates()
    environment.filters |= {"printable": printable, "list_of": lambda name: [name] if name else []}
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    return environment.get_template("sections.html.j2").render(
        title=title, sections=sections, lead=lead, sign=SIGN, **shell(generator, style, script)
    )


def page_templates(*folders: Path) -> Environment:
    """The templates in ``folders``, which may extend shell.html.j2."""
    return html_templates(*folders, _HERE)


def shell(generator: str, style: str = "", script: str = "") -> dict[str, str]:
    """What shell.html.j2 needs besides a title.

    Its policy allows this style, this script and pictures inside the file, and nothing else.

    Args:
        style: CSS to add to that of all pages.
    """
    style = (_HERE / "page.css").read_text(encoding="utf-8") + style
    return {
        "generator": generator,
        "style": Markup(style),
        "style_digest": source_digest(style),
        "script": Markup(script),
        "script_digest": source_digest(script),
    }


def inline_svg(svg: str, themed: bool = True) -> Markup:
    """A drawing for use inside a page.

    Matplotlib's style element, which a page's policy does not allow, is in page.css.
    """
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, flags=re.S)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    if themed:
        svg = re.sub(r'style="[^"]*"', _in_theme, svg)
    return Markup(svg)


def _in_theme(style: re.Match[str]) -> str:
    def variable(colour: re.Match[str]) -> str:
        name = _THEMED.get(colour[0])
        return f"var({name})" if name else colour[0]

    return re.sub(r"#[0-9a-f]{6}|white", variable, style[0])
