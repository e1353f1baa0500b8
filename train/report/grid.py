"""A grid of text: what every table of a report or a comparison is before a format prints it."""

from __future__ import annotations

from dataclasses import dataclass

SIGN = "†"
"""Marks a significant difference from the baseline."""


@dataclass(frozen=True)
class GridCell:
    """Text in one or two parts, such as ("84.12", "± 0.31"), which may be put on two lines.

    Attributes:
        value: the number behind the text, by which a page sorts; None: by the text.
        hint: more about it, which only a page shows.
    """

    parts: tuple[str, ...]
    bold: bool = False
    significant: bool = False
    value: float | None = None
    hint: str = ""


@dataclass(frozen=True)
class GridRow:
    """A label and the cells behind it.

    Attributes:
        measured: rows without a run look different in every format.
        marks: what a reader must know about the label; in brackets behind it.
        warn: whether the marks are doubts.
        runs: names of the runs that the row is about, by which a page filters.
        details: rows that a page shows on request, such as those of the seeds.
    """

    label: str
    cells: tuple[GridCell, ...]
    measured: bool = True
    marks: tuple[str, ...] = ()
    warn: bool = False
    runs: tuple[str, ...] = ()
    details: tuple[GridRow, ...] = ()

    @property
    def text(self) -> str:
        """The label with its marks in brackets."""
        return f"{self.label} ({'; '.join(self.marks)})" if self.marks else self.label


@dataclass(frozen=True)
class Grid:
    """Rows under a header, whose first `left` columns are text and the others figures.

    Attributes:
        runs: of each column, the run that it is about, or ""; empty if no column is about one.
        folded: whether a page shows it only on request.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[GridRow, ...]
    left: int = 1
    runs: tuple[str, ...] = ()
    folded: bool = False


def printable(text: str) -> str:
    """`text` on one line; control characters, which may control a terminal, become U+FFFD."""
    text = " ".join(text.split())
    return "".join(each if each.isprintable() else "\ufffd" for each in text)


def text_cell(text: object) -> GridCell:
    """A cell of one text; a dash if it is empty."""
    return GridCell((printable(str(text)) or "–",))


def number_cell(value: float | None, form: str = ".2f", bold: bool = False) -> GridCell:
    """A cell of one number; a dash if it is None or not finite."""
    if value is None or value - value != 0:
        return GridCell(("–",))
    return GridCell((format(value, form),), bold, value=value)
