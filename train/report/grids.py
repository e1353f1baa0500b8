"""A comparison or a curve as grids of text, which each format renders in its own way."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from sightline.planning import in_bytes
from train.report.compare import RunComparison
from train.report.curve import RUN, Curve, value_text
from train.report.differences import Difference
from train.report.significance import ALPHA, p_text
from train.report.table import Cell, Row, Table
from train.report.training_cost import TrainingCost

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
    """Scores, differences on each task and subset, and what training took, if there are any."""
    marked = _significant(comparison.differences)
    grids = [grid_of_scores(*part, comparison.baseline, marked) for part in comparison.table.parts]
    if comparison.differences:
        grids.append(_differences(comparison, "task", comparison.table, comparison.differences))
    if comparison.subsets is not None:
        found = comparison.subset_differences
        grids.append(_differences(comparison, "subset", comparison.subsets, found))
    if comparison.training:
        grids.append(grid_of_training(comparison.training))
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


def grid_of_curve(curve: Curve) -> Grid:
    """A row for each run, and one for the baseline."""
    several, metric = len(curve.lines) > 1, printable(curve.metric)
    rows = []
    for line in curve.lines:
        for point in line.points:
            named = [point.run] if curve.parameter == RUN else [value_text(point.value), point.run]
            texts = [*named[:1], *([line.label] if several else []), *named[1:]]
            rows.append(_curve_row(texts, point.seeds, point.cell))
    if curve.baseline is not None:
        row, named = curve.baseline, f"{curve.baseline.name} (baseline)"
        columns = 1 + several + (curve.parameter != RUN)
        texts = ["–"] * (columns - 1) + [named]
        rows.append(_curve_row(texts, row.seeds, row.cells[curve.metric]))
    names = [RUN] if curve.parameter == RUN else [printable(curve.parameter), RUN]
    header = (*names[:1], *(["line"] if several else []), *names[1:], "seeds", metric)
    title = metric if curve.parameter == RUN else f"{metric} against {printable(curve.parameter)}"
    return Grid(title, header, tuple(rows), left=len(header) - 1)


def legend_of_curve(curve: Curve) -> list[str]:
    """The meaning of figures, then the curve's notes."""
    notes = (f"Note: {printable(note)}." for note in curve.notes)
    return ["Mean ± sample standard deviation over seeds.", *notes]


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


def grid_of_training(costs: Sequence[TrainingCost]) -> Grid:
    """What the training of each run took; where, if it is the same for all, is in the title."""
    header = ("run", "minutes", "sentences/s", "peak memory", "parameters", "steps")
    places = [_place(cost) for cost in costs]
    if len(set(places)) == 1:
        title = f"Training ({' '.join(places[0])})" if places[0] != ("–",) else "Training"
        return Grid(title, header, tuple(_training_row(cost) for cost in costs))
    rows = (_training_row(cost, place) for cost, place in zip(costs, places, strict=True))
    return Grid("Training", (*header, "device"), tuple(rows))


def _training_row(cost: TrainingCost, *place: tuple[str, ...]) -> GridRow:
    rate, steps = cost.sentences_per_second, cost.steps
    if not steps.sd:  # as many in all seeds
        steps = replace(steps, sd=None)
    memory = ["–" if cost.peak_memory is None else in_bytes(cost.peak_memory)]
    if cost.memory_of:
        memory.append(f"({' / '.join(cost.memory_of)})")
    parts = (
        _measured_parts(cost.minutes, ",.2f"),
        _measured_parts(rate, ",.1f" if (rate.mean or 0) < 100 else ",.0f"),
        tuple(memory),
        (" / ".join(f"{each / 1e6:,.2f} M" for each in cost.parameters) or "–",),
        _measured_parts(steps, ",.0f"),
        *place,
    )
    return GridRow(printable(cost.run), tuple(map(GridCell, parts)))


def _place(cost: TrainingCost) -> tuple[str, ...]:
    """Such as ("NVIDIA A100-SXM4-80GB,", "bf16,", "1 process")."""
    counts = " / ".join(cost.processes)
    texts = [" / ".join(cost.devices), " / ".join(cost.precisions)]
    texts.append(counts and f"{counts} {'process' if counts == '1' else 'processes'}")
    found = [printable(text) for text in texts if text] or ["–"]
    return (*(f"{text}," for text in found[:-1]), found[-1])


def _measured_parts(cell: Cell, form: str) -> tuple[str, ...]:
    if cell.mean is None:
        return ("–",)
    mean = format(cell.mean, form)
    return (mean, f"± {cell.sd:{form}}") if cell.sd is not None else (mean,)


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


def _curve_row(texts: Sequence[str], seeds: Sequence[int], cell: Cell) -> GridRow:
    label, *others = map(printable, texts)
    of_seeds = ", ".join(map(str, seeds))
    cells = [GridCell((text,)) for text in (*others, of_seeds)]
    return GridRow(label, (*cells, GridCell(_mean_parts(cell))))


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
