"""Figures of results: final scores, curves of the training, and differences on each subset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from train.records import DEV
from train.report.differences import Difference
from train.report.drawing import FAINT, INK, PLAIN, STYLE, clean, colour_of
from train.report.gains import AVERAGE
from train.report.plane_plot import Dot, draw_plane
from train.report.results import RunResult
from train.report.significance import ALPHA
from train.report.table import Row, Table

PUBLISHED = "#cbd2d9"


def score_chart(table: Table) -> Figure:
    """One panel per task, one bar per row; a whisker of ± one sample sd, a dot per seed."""
    columns = min(4, len(table.tasks))
    lines = -(-len(table.tasks) // columns)
    labels = [_wrapped(row) for row in table.rows]
    margin = 0.4 + 0.075 * max(len(line) for label in labels for line in label.split("\n"))
    panel = max(2.3, 7.2 - margin) if columns == 1 else 2.3
    height = 0.75 + 0.46 * len(table.rows)
    with matplotlib.rc_context(STYLE):
        spaced = ConstrainedLayoutEngine(hspace=0.08)
        figure = Figure(figsize=(margin + panel * columns, height * lines), layout=spaced)
        axes = figure.subplots(lines, columns, sharey=True, squeeze=False)
        for index, axis in enumerate(axes.flat):
            if index >= len(table.tasks):
                axis.set_visible(False)
                continue
            _score_panel(axis, table, table.tasks[index], panel)
            axis.set_yticks(range(len(labels)), labels)
            axis.tick_params(axis="y", length=0, labelleft=index % columns == 0)
    return figure


def dev_chart(results: Sequence[RunResult]) -> Figure | None:
    """Dev score against step: one line per seed, one colour per run, best checkpoints marked.

    None if no run has a dev curve.
    """
    trainings = [result.training for result in results if result.training]
    metrics = {each.dev_metric for each in trainings if each.dev_curve} - {""}
    return _curves(results, DEV, metrics.pop() if len(metrics) == 1 else "dev score")


def loss_chart(results: Sequence[RunResult]) -> Figure | None:
    """The loss that was minimised against step, as `dev_chart`. None if no run logged one."""
    return _curves(results, "loss", "loss")


def plane_of_runs(table: Table) -> Figure | None:
    """The runs' alignment and uniformity, coloured by the average or the first other score.

    None if no run was scored on both.
    """
    if not {"alignment", "uniformity"} <= set(table.tasks):
        return None
    scores = [t for t in table.tasks if t not in table.lower_is_better and not table.titles.get(t)]
    score = AVERAGE if AVERAGE in scores else next(iter(scores), "")
    dots = []
    for row in table.rows:
        if row.measured:
            wanted = ("alignment", "uniformity", score)
            cells = [row.cells.get(task) for task in wanted]
            dots.append(Dot(row.name, *(cell.mean if cell else None for cell in cells)))
    return draw_plane(dots, score)


def _curves(results: Sequence[RunResult], key: str, label: str) -> Figure | None:
    """An entry of the training logs against step, with runs named at the end of their lines."""
    points_of = {
        (result.run, result.seed): result.training.curve(key)
        for result in results
        if result.training and result.training.curve(key)
    }
    if not points_of:
        return None
    best = {(each.run, each.seed): each.training.best_step for each in results if each.training}
    runs = list(dict.fromkeys(result.run for result in results))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.4), layout="constrained")
        axis = figure.subplots()
        ends: dict[str, tuple[float, list[float]]] = {}
        for (run, seed), points in points_of.items():
            steps, scores = [step for step, _ in points], [score for _, score in points]
            colour = colour_of(runs.index(run))
            axis.plot(steps, scores, color=colour, linewidth=1.6, alpha=0.9)
            kept = [point for point in points if point[0] == best[run, seed] and key == DEV]
            axis.plot(*zip(*kept, strict=True), "o", color=colour, ms=4.5) if kept else None
            last, values = ends.get(run, (0.0, []))
            ends[run] = (max(last, steps[-1]), [*values, scores[-1]])
        _label_ends(axis, ends, runs)
        axis.set_xlabel("step")
        axis.set_ylabel(label)
        axis.margins(x=0.02)
        clean(axis)
        axis.grid(axis="y", color=PLAIN, linewidth=0.8)
    return figure


def subset_chart(
    baseline: str, differences: Sequence[Difference], labels: Mapping[str, str]
) -> Figure:
    """Each run's difference from `baseline` on each subset, as in MCSE's figure 4.

    One line per subset and one dot per run, filled where the difference is significant; both in
    the order of `differences`. A rule separates the years.

    Args:
        labels: run → its name with its marks.
    """
    subsets = list(dict.fromkeys(each.task for each in differences))
    runs = list(dict.fromkeys(each.run for each in differences))
    lane = 0.6 / len(runs)
    columns = 3 if max(len(labels[run]) for run in runs) < 26 else 1
    height = 1.0 + len(subsets) * max(0.22, 0.12 * len(runs)) + 0.2 * -(-len(runs) // columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, height), layout="constrained")
        axis = figure.subplots()
        axis.axvline(0, color=INK, linewidth=1)
        for number, run in enumerate(runs):
            colour = colour_of(number)
            axis.plot([], [], "o", ms=5, color=colour, label=labels[run])
            for each in differences:
                if each.run != run or each.difference is None:
                    continue
                y = subsets.index(each.task) + lane * (number - (len(runs) - 1) / 2)
                fill = colour if each.significant else "white"
                axis.plot([0, each.difference], [y, y], color=colour, alpha=0.4, linewidth=1.2)
                axis.plot([each.difference], [y], "o", ms=5, color=colour, mfc=fill)
        for row, (above, below) in enumerate(pairwise(subsets)):
            if above.split()[0] != below.split()[0]:
                axis.axhline(row + 0.5, color=PLAIN, linewidth=0.8, zorder=0)
        axis.set_yticks(range(len(subsets)), subsets)
        axis.set_ylim(len(subsets) - 0.4, -0.6)
        axis.tick_params(axis="y", length=0)
        axis.set_xlabel(
            f"difference from {labels[baseline]}, Spearman × 100 (filled: p < {ALPHA:g})"
        )
        axis.grid(axis="x", color=PLAIN, linewidth=0.8)
        axis.set_axisbelow(True)
        clean(axis, keep=("bottom",))
        figure.legend(loc="outside upper left", frameon=False, ncols=columns, handletextpad=0.2)
    return figure


def _score_panel(axis: Axes, table: Table, task: str, width: float) -> None:
    low, high = 0.0, 0.0
    for position, row in enumerate(table.rows):
        cell = row.cells.get(task)
        if cell is None or cell.mean is None:
            axis.text(
                0, position, " –" if cell is None else " not defined", va="center", color=FAINT
            )
            continue
        colour = colour_of(position) if row.measured else PUBLISHED
        axis.barh(position, cell.mean, height=0.56, color=colour, alpha=0.9)
        spread = cell.sd or 0.0
        if cell.sd is not None:
            axis.errorbar(cell.mean, position, xerr=cell.sd, color=INK, elinewidth=1, capsize=4)
        if len(cell.seeds) > 1:
            axis.plot(cell.seeds, [position] * len(cell.seeds), "o", color="white", mec=INK, ms=3.4)
        reach = max(cell.mean + spread, *cell.seeds, 0.0) if cell.seeds else cell.mean + spread
        axis.annotate(
            cell.text,
            (max(reach, 0.0), position),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            fontweight="bold" if row.measured and cell.mean == table.best(task) else None,
        )
        low, high = min(low, cell.mean - spread), max(high, reach)
    span = (high - low) or 1.0
    # The text behind the longest bar takes 0.95 of the panel's `width` inches.
    room = 0.95 / (width - 0.95) * span
    axis.set_xlim(low - 0.03 * span if low < 0 else 0.0, high + room)
    axis.set_ylim(len(table.rows) - 0.5, -0.5)
    axis.set_title(task, loc="left", fontsize=10, fontweight="bold")
    axis.set_xticks([])
    clean(axis, keep=("left",))


def _label_ends(
    axis: Axes, ends: dict[str, tuple[float, list[float]]], runs: Sequence[str]
) -> None:
    """A run's name in its colour at the end of its lines, moved apart if names would overlap."""
    low, high = axis.get_ylim()
    gap = 0.065 * (high - low)
    ordered = sorted(ends, key=lambda run: sum(ends[run][1]) / len(ends[run][1]))
    height = -float("inf")
    right = max(step for step, _ in ends.values())
    for run in ordered:
        scores = ends[run][1]
        height = max(sum(scores) / len(scores), height + gap)
        axis.annotate(
            run,
            (right, height),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=colour_of(runs.index(run)),
            fontweight="bold",
            fontsize=9,
            annotation_clip=False,
        )


def _wrapped(row: Row) -> str:
    return "\n".join([row.name, *row.marks])
