"""HTML pages: their templates, what their security policies allow, and the pictures on them."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def html_templates(*folders: Path) -> Environment:
    """The templates in ``folders``: all text is escaped, and a missing value is an error."""
    return Environment(
        loader=FileSystemLoader(folders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def source_digest(text: str) -> str:
    """The hash of an inline style or script for a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@dataclass(frozen=True)
class Thumbnail:
    """A picture as a data URI; empty if there is a problem, which is then shown instead."""

    uri: str = ""
    problem: str = ""
