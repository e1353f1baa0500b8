"""What a person reads of runs and scores, before a format prints it: grids, figures and notes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from sightline.wording import in_bytes
from train.report.table import TRAINING, Cell, Row, Table

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
        under: whether it belongs to the row above; its label is indented.
    """

    label: str
    cells: tuple[GridCell, ...]
    measured: bool = True
    marks: tuple[str, ...] = ()
    warn: bool = False
    runs: tuple[str, ...] = ()
    details: tuple[GridRow, ...] = ()
    under: bool = False

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


@dataclass(frozen=True)
class Drawing:
    """A figure of a page.

    Attributes:
        note: how to read it.
        svg: from `charts.to_svg`; not escaped by a page.
    """

    caption: str
    note: str
    svg: str


@dataclass(frozen=True)
class Section:
    """A part of a document: grids, then notes on them; on a page also figures.

    Attributes:
        title: every section of a page has another.
        body: HTML that a page shows last, such as neighbours with their photographs; `printed` are
            the grids that other formats have in its place, `style` its CSS.
    """

    title: str
    grids: tuple[Grid, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    notes: tuple[str, ...] = ()
    body: str = ""
    printed: tuple[Grid, ...] = ()
    style: str = ""

    @property
    def slug(self) -> str:
        """Its address within the page."""
        plain = re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")
        if re.fullmatch(r"[A-Za-z0-9 ]+", self.title):
            return plain
        return f"{plain}-{hashlib.sha256(self.title.encode()).hexdigest()[:6]}"


@dataclass(frozen=True)
class Document:
    """What a command shows, for every format of `render.to_text`.

    Attributes:
        schema: of its JSON; marks its files, so that a later command may replace them.
        body: what the JSON holds besides: dataclasses, models and plain values.
        lead: sentences to state first on a page, and after the grids elsewhere.
    """

    title: str
    schema: str
    sections: tuple[Section, ...]
    body: Mapping[str, object]
    lead: tuple[str, ...] = ()

    @property
    def grids(self) -> list[Grid]:
        """Those of all sections, as formats without pictures print them."""
        return [grid for section in self.sections for grid in (*section.grids, *section.printed)]

    @property
    def lines(self) -> list[str]:
        """What those formats print after the grids."""
        notes = [note for section in self.sections for note in section.notes]
        return [printable(line) for line in (*self.lead, *notes)]


def printable(text: str) -> str:
    """`text` on one line; control characters, which may control a terminal, become U+FFFD."""
    text = " ".join(text.split())
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def number(value: float, form: str = ".2f") -> str:
    """``value`` as the format specification ``form`` says; what rounds to 0 has no minus."""
    sign = form[0] if form.startswith("+") else ""
    return format(value, f"{sign}z{form.removeprefix('+')}")


def text_cell(text: object, hint: str = "") -> GridCell:
    """A cell of one text; a dash if it is empty."""
    return GridCell((printable(str(text)) or "–",), hint=hint)


def number_cell(value: float | None, form: str = ".2f") -> GridCell:
    """A cell of one number; a dash if it is None or not finite."""
    if value is None or value - value != 0:
        return GridCell(("–",))
    return GridCell((number(value, form),), value=value)


def mean_cell(
    cell: Cell | None,
    text: Callable[[float], str] = number,
    bold: bool = False,
    significant: bool = False,
) -> GridCell:
    """Mean ± deviation; a dash without a cell, "not defined" without a mean."""
    if cell is None:
        return GridCell(("–",))
    if cell.mean is None:
        return GridCell(("not", "defined"), hint=cell.reason)
    spread = () if cell.sd is None else (f"± {text(cell.sd)}",)
    return GridCell((text(cell.mean), *spread), bold, significant, cell.mean)


def grid_of_table(
    title: str,
    table: Table,
    baseline: str = "",
    significant: Collection[tuple[str, str]] = (),
) -> Grid:
    """A row for each row of ``table``, with one for each seed as its details.

    Args:
        baseline: the row that is labelled so.
        significant: (row, column) of the cells to mark.
    """
    rows = []
    for row in table.rows:
        cells = [text_cell(", ".join(map(str, row.seeds)))]
        for task in table.tasks:
            cell = row.cells.get(task)
            bold = task not in TRAINING and table.is_best(row, task)
            marked = row.measured and (row.name, task) in significant
            cells.append(mean_cell(cell, _text_of(task, cell), bold, marked))
        rows.append(
            GridRow(
                printable(row.name),
                tuple(cells),
                row.measured,
                marks_of(row, baseline),
                row.doubtful,
                (row.name,),
                _seed_rows(row, table.tasks),
            )
        )
    header = ("run", "seeds", *map(printable, table.tasks))
    return Grid(printable(title) or "Scores", header, tuple(rows), left=2)


def marks_of(row: Row, baseline: str) -> tuple[str, ...]:
    """What stands in brackets behind the label of ``row``."""
    is_baseline = row.measured and row.name == baseline
    return tuple(map(printable, (*(("baseline",) if is_baseline else ()), *row.marks)))


def _seed_rows(row: Row, tasks: Sequence[str]) -> tuple[GridRow, ...]:
    """A row for each seed of a run; none if there is only one."""
    if len(row.seeds) < 2:
        return ()

    def score(task: str, place: int) -> GridCell:
        cell = row.cells.get(task)
        of_seed = None if cell is None else Cell(cell.seeds[place], None)
        return mean_cell(of_seed, _text_of(task, cell))

    return tuple(
        GridRow(
            f"seed {seed}",
            (text_cell(seed), *(score(task, place) for task in tasks)),
            runs=(row.name,),
        )
        for place, seed in enumerate(row.seeds)
    )


def _text_of(task: str, cell: Cell | None) -> Callable[[float], str]:
    """How a column prints its numbers: scores with two decimals."""
    if task not in TRAINING or task == "best dev":
        return number
    if "memory" in task:
        return in_bytes
    if task == "parameters":
        return lambda count: f"{count / 1e6:,.2f} M"
    slow = task == "sentences/s" and cell is not None and (cell.mean or 0) < 100
    form = ",.2f" if task == "minutes" else ",.1f" if slow else ",.0f"
    return lambda value: number(value, form)


def only(sections: Sequence[Section]) -> tuple[Section, ...]:
    """The sections that have something to show."""
    return tuple(section for section in sections if section.grids or section.drawings)
