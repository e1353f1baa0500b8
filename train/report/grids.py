"""A comparison or a curve as grids: scores, gains, differences, and their legend."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from sightline.wording import in_bytes
from train.report.compare import RunComparison
from train.report.curve import RUN, Curve, value_text
from train.report.differences import Difference
from train.report.gains import Comparison, Gain, headline
from train.report.grid import SIGN, Grid, GridCell, GridRow, number_cell, printable, text_cell
from train.report.significance import ALPHA, p_text
from train.report.table import Cell, Row, Table
from train.report.training_cost import TrainingCost

_SPREAD = "Mean ± sample standard deviation over seeds."


def grids_of(comparison: RunComparison) -> list[Grid]:
    """Scores, gains, differences on each task, and on each subset, as far as there are any."""
    return [
        *grids_of_scores(comparison),
        *grids_of_gains(comparison.gains),
        *grids_of_differences(comparison),
        *grids_of_subsets(comparison),
        *([grid_of_training(comparison.training)] if comparison.training else []),
    ]


def grids_of_scores(comparison: RunComparison) -> list[Grid]:
    """A grid for each part of the table; gains name the baseline themselves."""
    baseline = "" if comparison.gains else comparison.baseline
    marked = {(each.run, each.task) for each in comparison.differences if each.significant}
    return [grid_of_scores(*part, baseline, marked) for part in comparison.table.parts]


def grids_of_differences(comparison: RunComparison) -> list[Grid]:
    """The differences on each task, if there are any."""
    if not comparison.differences:
        return []
    return _differences(comparison, "task", comparison.table, comparison.differences)


def grids_of_subsets(comparison: RunComparison) -> list[Grid]:
    """The differences on each subset, if there are subsets."""
    if comparison.subsets is None:
        return []
    found = comparison.subset_differences
    return _differences(comparison, "subset", comparison.subsets, found)


def legend(comparison: RunComparison) -> list[str]:
    """The stated gains, the meaning of figures and marks, then the comparison's notes."""
    lines = [printable(gain.sentence) for gain in headline(comparison.gains)]
    return [*lines, *meaning(comparison), *notes_of(comparison)]


def meaning(comparison: RunComparison) -> list[str]:
    """What figures and marks mean."""
    rows = comparison.table.rows
    lines = [_SPREAD] if any(c.sd is not None for r in rows for c in r.cells.values()) else []
    if any(each.p_value is not None for each in comparison.differences):
        lines.append(
            f"{SIGN} differs from {printable(comparison.baseline)}, p < {ALPHA:g}: independent "
            "two-sided t-test over seeds, equal variances, not corrected for the number of tests."
        )
    return lines


def notes_of(comparison: RunComparison) -> list[str]:
    """What a reader must know before trusting a figure."""
    return [f"Note: {printable(note)}." for note in comparison.notes]


def grid_of_curve(curve: Curve) -> Grid:
    """A row for each run, and one for the baseline."""
    several, metric = len(curve.lines) > 1, printable(curve.metric)
    rows = []
    for line in curve.lines:
        for point in line.points:
            named = [point.run] if curve.parameter == RUN else [value_text(point.value), point.run]
            texts = [*named[:1], *([line.label] if several else []), *named[1:]]
            rows.append(_curve_row(texts, point.run, point.seeds, point.cell))
    if curve.baseline is not None:
        row, named = curve.baseline, f"{curve.baseline.name} (baseline)"
        columns = 1 + several + (curve.parameter != RUN)
        texts = ["–"] * (columns - 1) + [named]
        rows.append(_curve_row(texts, row.name, row.seeds, row.cells[curve.metric]))
    names = [RUN] if curve.parameter == RUN else [printable(curve.parameter), RUN]
    header = (*names[:1], *(["line"] if several else []), *names[1:], "seeds", metric)
    title = metric if curve.parameter == RUN else f"{metric} against {printable(curve.parameter)}"
    return Grid(title, header, tuple(rows), left=len(header) - 1)


def legend_of_curve(curve: Curve) -> list[str]:
    """The meaning of figures, then the curve's notes."""
    return [_SPREAD, *(f"Note: {printable(note)}." for note in curve.notes)]


def mean_cell(
    cell: Cell | None, form: str = ".2f", bold: bool = False, significant: bool = False
) -> GridCell:
    """Mean ± deviation; a dash without a cell, "not defined" without a mean."""
    if cell is None:
        return GridCell(("–",))
    if cell.mean is None:
        return GridCell(("not", "defined"), hint=cell.reason)
    spread = () if cell.sd is None else (f"± {cell.sd:{form}}",)
    return GridCell((format(cell.mean, form), *spread), bold, significant, cell.mean)


def grid_of_scores(
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
        cells = [text_cell(row.seeds_text)]
        for task in table.tasks:
            cell = row.cells.get(task)
            best = cell is not None and cell.mean is not None and cell.mean == table.best(task)
            marked = row.measured and (row.name, task) in significant
            cells.append(mean_cell(cell, bold=best and row.measured, significant=marked))
        rows.append(
            GridRow(
                printable(row.name),
                tuple(cells),
                row.measured,
                _marks(row, baseline),
                bool(row.untrained or row.doubts),
                (row.name,),
                _seed_rows(row, table.tasks),
            )
        )
    header = ("run", "seeds", *map(printable, table.tasks))
    return Grid(printable(title) or "Scores", header, tuple(rows), left=2)


def _seed_rows(row: Row, tasks: Sequence[str]) -> tuple[GridRow, ...]:
    """A row for each seed of a measured ``row``; none if there is only one."""
    if len(row.seeds) < 2:
        return ()
    rows = []
    for number, seed in enumerate(row.seeds):
        cells = []
        for task in tasks:
            of_seeds = cell.by_seed if (cell := row.cells.get(task)) is not None else ()
            score = of_seeds[number] if of_seeds else None
            undefined = cell is not None and score is None
            cells.append(GridCell(("not", "defined")) if undefined else number_cell(score))
        rows.append(GridRow(f"seed {seed}", (text_cell(seed), *cells), runs=(row.name,)))
    return tuple(rows)


def grids_of_gains(gains: Sequence[Gain]) -> list[Grid]:
    """A grid for each comparison, of the tasks on which there is a gain to report."""
    by_comparison: dict[Comparison, list[Gain]] = {}
    for gain in gains:
        if gain.gain is not None:
            by_comparison.setdefault(gain.comparison, []).append(gain)
    return [_gains(comparison, members) for comparison, members in by_comparison.items()]


def _gains(comparison: Comparison, gains: Sequence[Gain]) -> Grid:
    treatment = printable(gains[0].named(comparison.treatment))
    header = ["task", treatment]
    if comparison.control is not None:
        header += [printable(gains[0].named(comparison.control)), "share of the gain"]
    rows = []
    for gain in gains:
        cells = [_change_cell(gain.gain, gain.p_value)]
        if comparison.control is not None:
            cells.append(_change_cell(gain.control_gain, None))
            text = gain.reason if gain.share is None else f"{round(100 * gain.share)} %"
            cells.append(GridCell((text or "–",), value=gain.share))
        rows.append(GridRow(printable(gain.task), tuple(cells)))
    runs = ("", comparison.treatment, *([comparison.control or ""] * 2))[: len(header)]
    return Grid(
        f"Gain over {printable(comparison.baseline)}", tuple(header), tuple(rows), runs=runs
    )


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
    trained = " / ".join(f"{each / 1e6:,.2f} M" for each in cost.parameters) or "–"
    cells = (
        mean_cell(_if_held(cost.minutes), ",.2f"),
        mean_cell(_if_held(rate), ",.1f" if (rate.mean or 0) < 100 else ",.0f"),
        GridCell(tuple(memory), value=cost.peak_memory),
        GridCell((trained,), value=max(cost.parameters, default=None)),
        mean_cell(_if_held(steps), ",.0f"),
        *map(GridCell, place),
    )
    return GridRow(printable(cost.run), cells, runs=(cost.run,))


def _if_held(cell: Cell) -> Cell | None:
    """None, which is a dash, for what the results do not hold."""
    return None if cell.mean is None else cell


def _place(cost: TrainingCost) -> tuple[str, ...]:
    """Such as ("NVIDIA A100-SXM4-80GB,", "bf16,", "1 process")."""
    counts = " / ".join(cost.processes)
    texts = [" / ".join(cost.devices), " / ".join(cost.precisions)]
    texts.append(counts and f"{counts} {'process' if counts == '1' else 'processes'}")
    found = [printable(text) for text in texts if text] or ["–"]
    return (*(f"{text}," for text in found[:-1]), found[-1])


def _differences(
    comparison: RunComparison, what: str, table: Table, differences: Sequence[Difference]
) -> list[Grid]:
    """Rows of the tasks that the baseline has a score on; no grid if there are none."""
    by_cell = {(each.run, each.task): each for each in differences}
    baseline = next(row for row in table.rows if row.name == comparison.baseline)
    others = [row for row in table.rows if row.measured and row is not baseline]
    rows = []
    for task in table.tasks:
        score = baseline.cells.get(task)
        if score is None or score.mean is None:
            continue
        cells = [mean_cell(score)]
        cells += [_difference_cell(by_cell.get((row.name, task))) for row in others]
        rows.append(GridRow(printable(task), tuple(cells)))
    named = (baseline, *others)
    header = (what, *(_label(row, comparison.baseline) for row in named))
    title = f"Score of {printable(comparison.baseline)}"
    title += f", and difference from it, by {what}" if others else f" by {what}"
    runs = ("", "", *(row.name for row in others))
    return [Grid(title, header, tuple(rows), runs=runs)] if rows else []


def _curve_row(texts: Sequence[str], run: str, seeds: Sequence[int], cell: Cell) -> GridRow:
    label, *others = map(printable, texts)
    of_seeds = ", ".join(map(str, seeds))
    cells = [GridCell((text,)) for text in (*others, of_seeds)]
    return GridRow(label, (*cells, mean_cell(cell)), runs=(run,))


def _marks(row: Row, baseline: str) -> tuple[str, ...]:
    is_baseline = row.measured and row.name == baseline
    return tuple(map(printable, (*(("baseline",) if is_baseline else ()), *row.marks)))


def _label(row: Row, baseline: str) -> str:
    return GridRow(printable(row.name), (), marks=_marks(row, baseline)).text


def _difference_cell(found: Difference | None) -> GridCell:
    if found is None:
        return GridCell(("–",))
    if found.difference is None:
        return GridCell(("not", "defined"), hint=found.reason)
    return _change_cell(found.difference, found.p_value)


def _change_cell(change: float | None, p_value: float | None) -> GridCell:
    if change is None:
        return GridCell(("–",))
    if p_value is None:
        return GridCell((f"{change:+.2f}",), value=change)
    parts = (f"{change:+.2f}", f"({p_text(p_value)})")
    return GridCell(parts, significant=p_value < ALPHA, value=change)
