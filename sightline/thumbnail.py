"""A small picture for a page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thumbnail:
    """A picture as a data URI; empty if there is a problem, which is then shown instead."""

    uri: str = ""
    problem: str = ""
