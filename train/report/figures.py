"""Figures of results: training curves, subsets, and the plane of alignment and uniformity.

The same figure gives the same bytes.
"""

from __future__ import annotations

import hashlib
import html
import io
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from train.evaluate.results import RunResult
from train.evaluate.sts import STS_AVERAGE, SUBSETS
from train.records import DEV
from train.report.scores import ALPHA, Change
from train.report.tables import Table, printable

INK, SOFT, FAINT, PLAIN = "#1f2933", "#5b6770", "#9aa5b1", "#e4e7eb"
COLOURS = ("#2f6f9f", "#d9773f", "#3f8f6b", "#8a63b0", "#b8495c", "#8c7a2b", "#3d9aa8", SOFT)

MARK = b"Sightline figure"
"""Begins every figure, so that a later command may replace it."""
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "text.parse_math": False,  # a run may be called "$x$"
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.hashsalt": "sightline",
}
"""For `matplotlib.rc_context`."""

_LONGEST = 34  # characters of a label
_LEGEND = 26  # characters that three columns of a legend have no room for
_SHAPES = "os^DvPX<>p*h"  # of dots that a legend names, so that no label overprints another


def clean(axis: Axes, keep: Sequence[str] = ("left", "bottom"), lines: str = "") -> None:
    """Hide the axis lines except those to ``keep``; faint grid ``lines`` of x, y or both."""
    for side in ("top", "right", "left", "bottom"):
        axis.spines[side].set_visible(side in keep)
    if lines:
        axis.grid(axis=lines, color=PLAIN, linewidth=0.8)  # pyright: ignore[reportArgumentType]
        axis.set_axisbelow(True)


def legend_above(figure: Figure, columns: int, **spacing: float) -> None:
    """What the lines and dots are, above the panels."""
    figure.legend(loc="outside upper left", frameon=False, ncols=columns, **spacing)  # pyright: ignore


def colour_of(index: int) -> str:
    """Colour of the line or dots number ``index``."""
    return COLOURS[index % len(COLOURS)]


def short(name: str) -> str:
    """``name``, without its middle if it is long."""
    half = (_LONGEST - 1) // 2
    return name if len(name) <= _LONGEST else f"{name[:half]}…{name[-half:]}"


def to_svg(figure: Figure) -> str:
    """The figure as SVG text without a date."""
    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": MARK.decode()})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def to_html(figure: Figure, caption: str, note: str, *, titled: bool) -> str:
    """The figure for a page, with ``note`` on how to read it; `titled`: below its caption.

    Without matplotlib's style element, which a page's policy does not allow: it is in page.css,
    with what its ink and paper become in the dark.
    """
    svg = re.sub(r"<(style|metadata)\b.*?</\1>", "", to_svg(figure), flags=re.S)
    svg = _with_ids_of_its_own(svg)
    caption, note = html.escape(caption), html.escape(note)
    heading = f"<h3>{caption}</h3>\n" if titled else ""
    return (
        f'{heading}<figure class="scroll" role="img" aria-label="{caption}">{svg}</figure>\n'
        f'<p class="soft">{note}</p>'
    )


def _with_ids_of_its_own(svg: str) -> str:
    """An SVG whose ids no other one of a page has, without those that nothing refers to."""
    prefix = hashlib.sha256(svg.encode()).hexdigest()[:8]
    svg = re.sub(r' id="([^"]+)"', lambda id_: id_[0] if f"#{id_[1]}" in svg else "", svg)
    return re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)


def to_png(figure: Figure) -> bytes:
    """The figure as a PNG at 180 dots per inch."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format="png", dpi=180, metadata={"Software": MARK.decode()})
    return buffer.getvalue()


def training_chart(results: Sequence[RunResult], entry: str) -> Figure | None:
    """An entry of the training logs against step: one line per seed, one colour per run.

    Runs are named at the end of their lines; of dev scores, the best checkpoints are marked. None
    if no run logged one.
    """
    trainings = {
        (result.run, result.seed): result.training for result in results if result.training
    }
    points_of = {seed: points for seed, run in trainings.items() if (points := run.curve(entry))}
    if not points_of:
        return None
    dev_sets = {run.dev for run in trainings.values() if run.dev_history and run.dev}
    of_dev = dev_sets.pop() if len(dev_sets) == 1 else "dev score"
    runs = list(dict.fromkeys(result.run for result in results))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.4), layout="constrained")
        axis = figure.subplots()
        ends: dict[str, tuple[float, list[float]]] = {}
        for (run, seed), points in points_of.items():
            steps, scores = [step for step, _ in points], [score for _, score in points]
            colour = colour_of(runs.index(run))
            marker = "o" if len(points) == 1 else "None"  # a line through one point is nothing
            look = {"color": colour, "linewidth": 1.6, "alpha": 0.9}
            axis.plot(steps, scores, marker=marker, ms=4.5, **look)
            best = trainings[run, seed].best_step
            if kept := [point for point in points if point[0] == best and entry == DEV]:
                axis.plot(*zip(*kept, strict=True), "o", color=colour, ms=4.5)
            last, values = ends.get(run, (0.0, []))
            ends[run] = (max(last, steps[-1]), [*values, scores[-1]])
        _label_ends(axis, ends, runs)
        axis.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
        axis.set_xlabel("step")
        axis.set_ylabel(of_dev if entry == DEV else entry)
        axis.margins(x=0.02)
        clean(axis, lines="y")
    return figure


def subset_chart(table: Table | None, changes: Sequence[Change]) -> Figure | None:
    """Each run's difference from the baseline on each subset, as in MCSE's figure 4.

    One line per subset and one dot per run, filled where the difference is significant; both in
    the order of the changes. A rule separates the years. None without a difference.

    Args:
        table: with subsets such as "STS12 MSRpar" as its columns.
        changes: of its runs from one baseline.
    """
    if table is None or not changes:
        return None
    labels = {row.name: printable(row.label) for row in table.rows}
    subsets = list(dict.fromkeys(change.task for change in changes))
    runs = list(dict.fromkeys(change.run for change in changes))
    tasks = {subset.split()[0] for subset in subsets}
    unit = ["Spearman × 100"] if tasks <= SUBSETS.keys() else []
    lane = 0.6 / len(runs)
    columns = 3 if max(len(labels[run]) for run in runs) < _LEGEND else 1
    height = 1.0 + len(subsets) * max(0.22, 0.12 * len(runs)) + 0.2 * -(-len(runs) // columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, height), layout="constrained")
        axis = figure.subplots()
        axis.axvline(0, color=INK, linewidth=1)
        for place, run in enumerate(runs):
            colour = colour_of(place)
            axis.plot([], [], "o", ms=5, color=colour, label=labels[run])
            for change in changes:
                if change.run != run or change.change is None:
                    continue
                y = subsets.index(change.task) + lane * (place - (len(runs) - 1) / 2)
                fill = colour if change.significant else "white"
                axis.plot([0, change.change], [y, y], color=colour, alpha=0.4, linewidth=1.2)
                axis.plot([change.change], [y], "o", ms=5, color=colour, mfc=fill)
        for row, (above, below) in enumerate(pairwise(subsets)):
            if above.split()[0] != below.split()[0]:
                axis.axhline(row + 0.5, color=PLAIN, linewidth=0.8, zorder=0)
        axis.set_yticks(range(len(subsets)), subsets)
        axis.set_ylim(len(subsets) - 0.4, -0.6)
        axis.tick_params(axis="y", length=0)
        label = [f"difference from {labels[changes[0].baseline]}", *unit]
        axis.set_xlabel(f"{', '.join(label)} (filled: p < {ALPHA:g})")
        clean(axis, keep=("bottom",), lines="x")
        legend_above(figure, columns, handletextpad=0.2)
    return figure


def plane_of_runs(table: Table) -> Figure | None:
    """Uniformity across, alignment up, both better when lower (MCSE, figure 2); a shape a run.

    Colours are the average or the first other score; a run without it is hollow. None if no run was
    scored on both.
    """
    if not {"alignment", "uniformity"} <= {*table.names}:
        return None
    scores = [
        column.name for column in table.columns if column.better == "high" and not column.part
    ]
    score = STS_AVERAGE if STS_AVERAGE in scores else next(iter(scores), "")
    placed: dict[str, list[float | None]] = {}
    for name, row in table.measured.items():
        cells = [row.cells.get(task) for task in ("alignment", "uniformity", score)]
        means = [cell.value if cell else None for cell in cells]
        if None not in means[:2]:
            placed[name] = means
    if not placed:
        return None
    y, x, score_of = np.array(list(placed.values()), dtype=float).T
    colouring = score_of[np.isfinite(score_of)].tolist()
    names = list(map(short, placed))
    columns = 3 if max(map(len, names)) < _LEGEND else 2
    height = 4.4 + 0.2 * -(-len(placed) // columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, height), layout="constrained")
        axis = figure.subplots()
        low, high = min(colouring, default=0.0), max(colouring, default=0.0)
        low, high = (low - 0.5, high + 0.5) if high - low < 1 else (low, high)
        colours = ScalarMappable(Normalize(low, high), "viridis")
        for place, name in enumerate(names):
            value = score_of[place]
            face = colours.to_rgba(value) if np.isfinite(value) else "white"
            edge = (INK, *COLOURS[1:])[place // len(_SHAPES) % len(COLOURS)]
            look = {"ms": 8.4, "mfc": face, "mec": edge, "mew": 0.9, "ls": "", "zorder": 3}
            axis.plot(x[place], y[place], marker=_SHAPES[place % len(_SHAPES)], label=name, **look)
        if colouring:
            bar = figure.colorbar(colours, ax=axis, pad=0.02)
            bar.set_label(score)
            bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        for limits, values, least in ((axis.set_xlim, x, 0.2), (axis.set_ylim, y, 0.05)):
            room = max(0.16 * float(np.ptp(values)), least)
            limits(values.min() - room, values.max() + room)
        axis.set_xlabel("uniformity (lower is better)")
        axis.set_ylabel("alignment (lower is better)")
        clean(axis, lines="both")
        legend_above(figure, columns, handletextpad=0.2)
    return figure


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
