"""A table or figure of a paper with what was measured: grids of text, and JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from train.report.grid import SIGN, Grid, GridCell, GridRow, printable
from train.report.grids import mean_cell
from train.report.paper_results import ExpectedRun, MeasuredRun, ResultFolders
from train.report.papers import MINUTES, Column, Entry, PaperRow
from train.report.table import Cell, numbers_of

SCHEMA = "sightline.paper/1"
_ABSENT = GridCell(("–",))


@dataclass(frozen=True)
class Difference:
    """Measured minus published.

    Attributes:
        within: whether it is within one published deviation; None where no deviation is printed
            or the two are not comparable.
    """

    value: float
    within: bool | None


@dataclass(frozen=True)
class ComparedRow:
    """A published row with its measured run, or with what its configuration sets."""

    row: PaperRow
    run: MeasuredRun
    seeds: int | None
    configured: dict[str, Cell]

    def cell(self, column: Column) -> Cell | None:
        """What is shown below the published value of a column."""
        metric = self.row.prefix + column.metric
        if self.configured:
            return self.configured.get(metric)
        return None if self.run.row is None else self.run.row.cells.get(metric)

    def difference(self, column: Column) -> Difference | None:
        """None if one of the two is missing."""
        cell, printed = self.cell(column), self.row.scores.get(column.name)
        if cell is None or cell.mean is None or printed is None:
            return None
        value, deviation = cell.mean - printed, self.row.std.get(column.name)
        if deviation is None or not self.run.comparable:
            return Difference(value, None)
        return Difference(value, abs(value) <= deviation + 1e-9)  # an exact deviation is within

    @property
    def marks(self) -> tuple[str, ...]:
        """What a reader must know before comparing the two."""
        if self.run.row is None:
            return ()
        count = len(self.run.row.seeds)
        marks = [*self.run.row.marks, *self.run.differs]
        if self.seeds is not None and count != self.seeds:
            marks.append(f"{_seeds(count)}, published {self.seeds}")
        return tuple(marks)


@dataclass(frozen=True)
class PaperTable:
    """An entry with its rows compared, in any format."""

    entry: Entry
    rows: tuple[ComparedRow, ...]

    @property
    def grids(self) -> list[Grid]:
        """One grid: for each row what is published, what was measured, and the difference."""
        if not self.rows:
            return []
        header = (
            "configuration" if self.entry.kind == "settings" else "run",
            "seeds",
            *(printable(column.name) for column in self.entry.columns),
        )
        rows = [line for each in self.rows for line in self._lines(each)]
        return [Grid(f"{self.entry.id}: {self.entry.shows}", header, tuple(rows), left=2)]

    @property
    def legend(self) -> list[str]:
        """What the paper says in words, the meaning of marks, and notes."""
        lines = [f"In the paper: {each}." for each in self.entry.printed]
        if any(row.row.scores and row.run.row is not None for row in self.rows):
            lines.append("Mean ± sample standard deviation over seeds.")
            lines.append("Difference: measured − published.")
        if any(row.row.std and row.run.row is not None for row in self.rows):
            lines.append("Within, beyond: one published deviation, where the two are comparable.")
        if any(row.row.significant for row in self.rows):
            lines.append(f"{SIGN} significant in the paper.")
        lines += [f"Note: {each}." for each in self.entry.notes]
        notes = dict.fromkeys(
            note for row in self.rows for note in (*row.run.others, *row.run.notes)
        )
        return [*lines, *(f"Note: {printable(note)}." for note in notes)]

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, unrounded."""
        return {
            "schema": SCHEMA,
            "id": self.entry.id,
            "kind": self.entry.kind,
            "shows": self.entry.shows,
            "reason": self.entry.reason or None,
            "columns": [column.name for column in self.entry.columns],
            "rows": [self._json(row) for row in self.rows],
            "printed": list(self.entry.printed),
            "notes": list(self.entry.notes),
        }

    def _lines(self, row: ComparedRow) -> list[GridRow]:
        name, printed = printable(row.row.title), bool(row.row.scores)
        lines = [GridRow(name, self._published(row), measured=False)] if printed else []
        settings = bool(row.configured)
        if not settings and row.run.row is None:
            why = printable(row.row.reason or row.run.why_not)
            label = f"  {why}" if printed else f"{name} ({why})"
            return [*lines, GridRow(label, self._blank, measured=False)]
        label = "  configured" if settings else "  measured"
        marks = "; ".join(map(printable, self._marks(row)))
        label = (label if printed else name) + (f" ({marks})" if marks else "")
        seeds = "–" if row.run.row is None else ", ".join(map(str, row.run.row.seeds))
        cells = [_cell(column, row.cell(column)) for column in self.entry.columns]
        lines.append(GridRow(label, (GridCell((seeds,)), *cells)))
        found = [row.difference(column) for column in self.entry.columns]
        if any(found):
            differences = map(_difference, self.entry.columns, found)
            lines.append(GridRow("  difference", (_ABSENT, *differences), measured=False))
        return lines

    def _marks(self, row: ComparedRow) -> list[str]:
        marks = [*row.marks]
        if any(column.metric == MINUTES for column in self.entry.columns):
            marks += [f"on {device}" for device in row.run.devices]
        if row.run.unscored and not row.row.note:
            marks.append(f"no score of {', '.join(row.run.unscored)}")
        return [*marks, row.row.note] if row.run.unscored and row.row.note else marks

    @property
    def _blank(self) -> tuple[GridCell, ...]:
        return (_ABSENT,) * (len(self.entry.columns) + 1)

    def _published(self, row: ComparedRow) -> tuple[GridCell, ...]:
        cells = []
        for column in self.entry.columns:
            score, std = row.row.scores.get(column.name), row.row.std.get(column.name)
            cell = _cell(column, None if score is None else Cell(score, std))
            marked = column.name in row.row.significant
            cells.append(GridCell(cell.parts, significant=marked))
        seeds = "–" if row.seeds is None else _seeds(row.seeds)
        return (GridCell((seeds,)), *cells)

    def _json(self, row: ComparedRow) -> dict[str, Any]:
        given, measured = row.row, row.run.row
        found = {column.name: row.difference(column) for column in self.entry.columns}
        shown = {column.name: row.cell(column) for column in self.entry.columns}
        return {
            "model": given.model,
            "label": given.label or given.model,
            "data": given.data,
            "configuration": given.configuration or None,
            "run": given.run or None,
            "reason": given.reason or row.run.why_not or None,
            "other_trainings": list(row.run.others),
            "published": {
                "scores": given.scores,
                "std": given.std,
                "seeds": row.seeds,
                "significant": list(given.significant),
            },
            "configured" if row.configured else "measured": {
                "folder": row.run.folder or None,
                "seeds": list(measured.seeds) if measured else [],
                "scores": {name: asdict(cell) for name, cell in shown.items() if cell},
            },
            "marks": list(row.marks),
            "differences": {name: asdict(each) for name, each in found.items() if each},
        }


def compare_entry(
    entry: Entry, folders: ResultFolders, expected: Callable[[str, str], ExpectedRun]
) -> PaperTable:
    """Put what was measured beside every row of an entry.

    Args:
        expected: (configuration, run) → what it trains.

    Raises:
        SightlineError: a result file is damaged.
    """
    rows = []
    for row in entry.rows:
        wanted = expected(row.configuration, row.run) if row.configuration else None
        configured: dict[str, Cell] = {}
        run = MeasuredRun(why_not=row.reason)
        if entry.kind == "settings" and wanted is not None:
            configured = {
                name: Cell(value, None) for name, value in numbers_of(wanted.parameters).items()
            }
        elif not row.reason:
            run = folders.measured(row, entry.columns, wanted)
        rows.append(ComparedRow(row, run, entry.seeds_of(row), configured))
    return PaperTable(entry, tuple(rows))


def _cell(column: Column, cell: Cell | None) -> GridCell:
    if cell is not None and column.is_setting:
        return mean_cell(replace(cell, sd=None), "g")
    return mean_cell(cell, f".{column.decimals}f")


def _difference(column: Column, found: Difference | None) -> GridCell:
    if found is None:
        return _ABSENT
    if column.is_setting:
        return GridCell(("equal" if abs(found.value) < 1e-12 else "differs",))
    judged = {None: (), True: ("within",), False: ("beyond",)}[found.within]
    return GridCell((f"{found.value:+.{column.decimals}f}", *judged), bold=found.within is False)


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"
