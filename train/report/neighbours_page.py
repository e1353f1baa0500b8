"""Neighbours on one self-contained HTML page: no script, nothing fetched, all text escaped."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from sightline.html_templates import html_templates
from train.report.neighbours import OWN, Sides, shown_images

MARK = b'<meta name="generator" content="Sightline neighbours">'
"""The start of a page, which marks it as replaceable by another."""

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Thumbnail:
    """A small picture as a data URI; empty if there is a problem, which is then shown instead."""

    uri: str = ""
    problem: str = ""


def to_page(sides: Sides, title: str, thumbnails: Mapping[str, Thumbnail] | None = None) -> bytes:
    """The page as UTF-8; equal input gives equal bytes.

    Args:
        thumbnails: image id → its picture, for every one of `shown_images`; None for a page
            without pictures. Their data URIs are the only input that is not escaped. Each is in
            the page once, as the background of a class of the style sheet.
    """
    numbers: dict[str, int] = {}
    style = (_HERE / "neighbours.css").read_text()
    for image in shown_images(sides) if thumbnails is not None else ():
        assert thumbnails is not None
        numbers[image] = len(numbers)
        uri = thumbnails[image].uri
        if uri:
            assert re.fullmatch(r"data:image/\w+;base64,[\w+/=]*", uri), image
            style += f'.p{numbers[image]} {{ background-image: url("{uri}") }}\n'
    environment = html_templates(_HERE)
    return (
        environment.get_template("neighbours.html.j2")
        .render(
            title=title,
            sides=sides,
            own=OWN,
            style=Markup(style),
            style_digest=_digest(style),
            numbers=numbers,
            thumbnails=thumbnails or {},
        )
        .encode()
    )


def _digest(text: str) -> str:
    """The hash of an inline style for a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
