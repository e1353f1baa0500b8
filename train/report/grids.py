"""A comparison as grids of text, which each format renders in its own way."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from train.report.compare import RunComparison
from train.report.differences import Difference
from train.report.significance import ALPHA, p_text
from train.report.table import Cell, Row, Table

SIGN = "†"
"""Marks a significant difference from the baseline."""


@dataclass(frozen=True)
class GridCell:
    """Text in one or two parts, such as ("84.12", "± 0.31"), which may be put on two lines."""

    parts: tuple[str, ...]
    bold: bool = False
    significant: bool = False


@dataclass(frozen=True)
class GridRow:
    """A label and the cells behind it; rows without a run look different in every format."""

    label: str
    cells: tuple[GridCell, ...]
    measured: bool = True


@dataclass(frozen=True)
class Grid:
    """Rows under a header, whose first `left` columns are text and the others figures."""

    title: str
    header: tuple[str, ...]
    rows: tuple[GridRow, ...]
    left: int = 1


def grids_of(comparison: RunComparison) -> list[Grid]:
    """Scores, differences on each task, and differences on each subset, if there are any."""
    marked = _significant(comparison.differences)
    grids = [grid_of_scores(*part, comparison.baseline, marked) for part in comparison.table.parts]
    if comparison.differences:
        grids.append(_differences(comparison, "task", comparison.table, comparison.differences))
    if comparison.subsets is not None:
        found = comparison.subset_differences
        grids.append(_differences(comparison, "subset", comparison.subsets, found))
    return grids


def legend(comparison: RunComparison) -> list[str]:
    """The meaning of figures and marks, then the comparison's notes."""
    lines = ["Mean ± sample standard deviation over seeds."]
    if any(each.p_value is not None for each in comparison.differences):
        lines.append(
            f"{SIGN} differs from {printable(comparison.baseline)}, p < {ALPHA:g}: independent "
            "two-sided t-test over seeds, equal variances, not corrected for the number of tests."
        )
    return [*lines, *(f"Note: {printable(note)}." for note in comparison.notes)]


def printable(text: str) -> str:
    """`text` on one line; control characters, which may control a terminal, become U+FFFD."""
    text = " ".join(text.split())
    return "".join(each if each.isprintable() else "\ufffd" for each in text)


def grid_of_scores(
    title: str,
    table: Table,
    baseline: str = "",
    significant: Collection[tuple[str, str]] = (),
) -> Grid:
    """A row for each row of ``table``.

    Args:
        baseline: the row that is labelled so.
        significant: (row, column) of the cells to mark.
    """
    rows = []
    for row in table.rows:
        cells = [GridCell((", ".join(map(str, row.seeds)) or "–",))]
        for task in table.tasks:
            cell = row.cells.get(task)
            best = cell is not None and cell.mean is not None and cell.mean == table.best(task)
            marked = row.measured and (row.name, task) in significant
            cells.append(GridCell(_mean_parts(cell), best and row.measured, marked))
        rows.append(GridRow(_label(row, baseline), tuple(cells), row.measured))
    header = ("run", "seeds", *map(printable, table.tasks))
    return Grid(printable(title) or "Scores", header, tuple(rows), left=2)


def _differences(
    comparison: RunComparison, what: str, table: Table, differences: Sequence[Difference]
) -> Grid:
    by_cell = {(each.run, each.task): each for each in differences}
    baseline = next(row for row in table.rows if row.name == comparison.baseline)
    others = [row for row in table.rows if row.measured and row is not baseline]
    rows = []
    for task in table.tasks:
        cells = [GridCell(_mean_parts(baseline.cells.get(task)))]
        cells += [_cell(by_cell.get((row.name, task))) for row in others]
        rows.append(GridRow(printable(task), tuple(cells)))
    header = (what, *(_label(row, comparison.baseline) for row in (baseline, *others)))
    title = f"Score of {printable(comparison.baseline)}"
    title += f", and difference from it, by {what}" if others else f" by {what}"
    return Grid(title, header, tuple(rows))


def _label(row: Row, baseline: str) -> str:
    is_baseline = row.measured and row.name == baseline
    marks = (*(("baseline",) if is_baseline else ()), *row.marks)
    return printable(f"{row.name} ({'; '.join(marks)})" if marks else row.name)


def _mean_parts(cell: Cell | None) -> tuple[str, ...]:
    if cell is None:
        return ("–",)
    if cell.mean is None:
        return ("not", "defined")
    return (f"{cell.mean:.2f}",) if cell.sd is None else (f"{cell.mean:.2f}", f"± {cell.sd:.2f}")


def _cell(found: Difference | None) -> GridCell:
    if found is None:
        return GridCell(("–",))
    if found.difference is None:
        return GridCell(("not", "defined"))
    value = f"{found.difference:+.2f}"
    if found.p_value is None:
        return GridCell((value,))
    return GridCell((value, f"({p_text(found.p_value)})"), significant=found.significant)


def _significant(differences: Sequence[Difference]) -> set[tuple[str, str]]:
    return {(each.run, each.task) for each in differences if each.significant}
