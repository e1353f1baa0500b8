"""Neighbours as a page of their own or a section of another: nothing fetched, all text escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from markupsafe import Markup

from sightline.html_templates import html_templates
from train.report.grid import Grid, GridCell, GridRow, printable
from train.report.html import Section, to_page
from train.report.neighbours import OWN, Sides, shown_images

_GENERATOR = "Sightline neighbours"
MARK = f'<meta name="generator" content="{_GENERATOR}">'.encode()
"""The start of a page, which marks it as replaceable by another."""


@dataclass(frozen=True)
class Thumbnail:
    """A small picture as a data URI; empty if there is a problem, which is then shown instead."""

    uri: str = ""
    problem: str = ""


Thumbnails = Mapping[str, Thumbnail]


def page_of(sides: Sides, title: str, thumbnails: Thumbnails | None = None) -> bytes:
    """The page as UTF-8; equal input gives equal bytes. See `section_of`."""
    section, style = section_of(sides, title, thumbnails)
    return to_page(title, [section], _GENERATOR, style=style).encode()


def section_of(
    sides: Sides,
    title: str,
    thumbnails: Thumbnails | None = None,
    notes: Sequence[str] | None = None,
) -> tuple[Section, str]:
    """The section, and the style sheet of its pictures.

    Args:
        thumbnails: image id → its picture, for every one of `shown_images`; None for a page
            without pictures. Their data URIs are the only input that is not escaped. Each is in
            the page once, as the background of a class of the style sheet.
        notes: how to read it; None: those of ``sides``.
    """
    numbers: dict[str, int] = {}
    style = ""
    for image in shown_images(sides) if thumbnails is not None else ():
        assert thumbnails is not None
        numbers[image] = len(numbers)
        uri = thumbnails[image].uri
        if uri:
            assert re.fullmatch(r"data:image/\w+;base64,[\w+/=]*", uri), image
            style += f'.p{numbers[image]} {{ background-image: url("{uri}") }}\n'
    environment = html_templates(Path(__file__).parent)
    template = environment.get_template("neighbours.html.j2")
    body = template.render(sides=sides, own=OWN, numbers=numbers, thumbnails=thumbnails or {})
    return Section(
        title,
        _counts(sides),
        notes=tuple(sides.notes if notes is None else notes),
        body=Markup(body),
    ), style


def with_pictures(thumbnails: Thumbnails | None) -> dict[str, object]:
    """The pictures as the JSON of neighbours holds them, so that another page can show them."""
    if thumbnails is None:
        return {}
    return {"pictures": {image: asdict(each) for image, each in thumbnails.items()}}


def _counts(sides: Sides) -> tuple[Grid, ...]:
    """How often the nearest shares the query's image; nothing where queries have none."""
    if not any(sides.images):
        return ()
    columns = {"caption": sides.own_first(sides.captions), "image": sides.own_first(sides.pictures)}
    columns = {name: counts for name, counts in columns.items() if counts}
    rows = [
        GridRow(
            printable(model),
            tuple(
                GridCell((f"{counts[model][0]} of {counts[model][1]}",), value=counts[model][0])
                if model in counts
                else GridCell(("–",))
                for counts in columns.values()
            ),
            runs=(model,),
        )
        for model in sides.models
    ]
    header = ("the nearest is of the query's own image", *columns)
    return (Grid("Nearest of the query's own image", header, tuple(rows)),)
