"""A document as one HTML page: one file that loads nothing and escapes all text."""

from __future__ import annotations

import re
from pathlib import Path

from markupsafe import Markup

from sightline.html_pages import html_templates, source_digest
from train.report.tables import SIGN, Document, parts_of, printable

_HERE = Path(__file__).parent


def to_page(document: Document) -> str:
    """One HTML document; equal input gives equal text.

    Its policy allows its own style and script, and pictures inside the file, and nothing else.
    """
    environment = html_templates(_HERE)
    environment.filters |= {
        "printable": printable,
        "list_of": lambda name: [name] if name else [],
        "code": _code,
        "parts": parts_of,
    }
    style = (_HERE / "page.css").read_text(encoding="utf-8")
    rules = [rule for section in document.sections for rule in section.style.splitlines()]
    style += "".join(f"{rule}\n" for rule in dict.fromkeys(rules))
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    return environment.get_template("page.html.j2").render(
        document=document,
        sign=SIGN,
        style=Markup(style),
        style_digest=source_digest(style),
        script=Markup(script),
        script_digest=source_digest(script),
    )


def _code(text: str) -> Markup:
    """A note as HTML: what is between backticks as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(Markup.escape(text))))
