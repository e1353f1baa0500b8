"""The figure of a curve: lines with a band of ± one sample sd, or a dot for every run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from train.report.curve import Curve, Line, Point, value_text
from train.report.drawing import FAINT, INK, PLAIN, STYLE, clean, colour_of
from train.report.grid import printable
from train.report.table import Row

_LOGARITHMIC = 20  # largest value / smallest value from which the axis is logarithmic
_LONG_LABEL = 26  # characters that three columns of a legend have no room for
_CLOSEST = 0.04  # of the axis: values closer than this are spaced evenly


def curve_chart(curve: Curve) -> Figure:
    """Score against value: a line of means with the spread over seeds, and a dot for every seed.

    Where values are not numbers, every run is a row of its own. The baseline is a dashed line with
    its spread.
    """
    with matplotlib.rc_context(STYLE):
        figure = _lines(curve) if curve.ordered else _rows(curve)
        if len(curve.lines) > 1 or curve.baseline is not None:
            longest = max(len(text) for text in (*map(_label, curve.lines), _name(curve.baseline)))
            columns = 3 if longest < _LONG_LABEL else 1
            place = "outside upper left"
            figure.legend(loc=place, frameon=False, ncols=columns, handletextpad=0.5)
    return figure


def _lines(curve: Curve) -> Figure:
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    axis = figure.subplots()
    ticks, logarithmic = axis_of(curve)
    for number, line in enumerate(curve.lines):
        drawn = [point for point in line.points if point.cell.mean is not None]
        places = [ticks[value_text(point.value)] for point in drawn]
        means = [point.cell.mean or 0.0 for point in drawn]
        spread = [point.cell.sd or 0.0 for point in drawn]
        colour = colour_of(number)
        below = [mean - sd for mean, sd in zip(means, spread, strict=True)]
        above = [mean + sd for mean, sd in zip(means, spread, strict=True)]
        axis.fill_between(places, below, above, color=colour, alpha=0.16, linewidth=0)
        axis.plot(places, means, "o-", color=colour, linewidth=1.6, ms=4.5, label=_label(line))
        for place, point in zip(places, drawn, strict=True):
            _seeds(axis, [place] * len(point.cell.seeds), point.cell.seeds, colour)
    _baseline(axis, curve, vertical=False)
    if logarithmic:
        axis.set_xscale("log")
    axis.xaxis.set_major_locator(FixedLocator(list(ticks.values())))
    axis.xaxis.set_major_formatter(FixedFormatter(list(ticks)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel(printable(curve.parameter))
    axis.set_ylabel(printable(curve.metric))
    axis.grid(axis="y", color=PLAIN, linewidth=0.8)
    axis.set_axisbelow(True)
    clean(axis)
    return figure


def _rows(curve: Curve) -> Figure:
    """One row for each run, in the order of the lines; a line gives the colour."""
    points = curve.points
    figure = Figure(figsize=(7.2, 1.1 + 0.34 * len(points)), layout="constrained")
    axis = figure.subplots()
    row = 0
    for number, line in enumerate(curve.lines):
        colour = colour_of(number)
        if len(curve.lines) > 1:
            axis.plot([], [], "o", color=colour, ms=6, label=_label(line))
        for point in line.points:
            _row(axis, row, point, colour)
            row += 1
    _baseline(axis, curve, vertical=True)
    axis.set_yticks(range(len(points)), [printable(point.run) for point in points])
    axis.set_ylim(len(points) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)
    axis.set_xlabel(printable(curve.metric))
    axis.grid(axis="x", color=PLAIN, linewidth=0.8)
    axis.set_axisbelow(True)
    clean(axis, keep=("bottom",))
    return figure


def _row(axis: Axes, row: int, point: Point, colour: str) -> None:
    cell = point.cell
    if cell.mean is None:
        axis.annotate("not defined", (0.01, row), xycoords=("axes fraction", "data"), color=FAINT)
        return
    axis.errorbar(
        cell.mean, row, xerr=cell.sd, fmt="o", color=colour, ms=6, elinewidth=1.4, capsize=3
    )
    _seeds(axis, cell.seeds, [row] * len(cell.seeds), colour)


def _seeds(axis: Axes, x: Sequence[float], y: Sequence[float], colour: str) -> None:
    axis.plot(list(x), list(y), "o", color="white", mec=colour, mew=0.8, ms=3.2, zorder=3)


def _baseline(axis: Axes, curve: Curve, *, vertical: bool) -> None:
    row = curve.baseline
    if row is None:
        return
    cell = row.cells[curve.metric]
    if cell.mean is None:
        return
    line, band = (axis.axvline, axis.axvspan) if vertical else (axis.axhline, axis.axhspan)
    line(cell.mean, color=INK, linewidth=1, linestyle=(0, (4, 3)), label=_name(row))
    if cell.sd:
        band(cell.mean - cell.sd, cell.mean + cell.sd, color=FAINT, alpha=0.2, linewidth=0)


def axis_of(curve: Curve) -> tuple[dict[str, float], bool]:
    """Text of each value → its place on the axis, ascending; and whether the axis is logarithmic.

    It is where the values are positive and far apart. Places are numbered where a value is null, or
    where two values would be too close to read.
    """
    numbers = {value_text(p.value): float(p.value) for p in curve.points if p.value is not None}
    texts = sorted(numbers, key=lambda text: numbers[text])
    values = [numbers[text] for text in texts]
    wide = values[0] > 0 and values[-1] >= _LOGARITHMIC * values[0]
    on_paper = [math.log(value) if wide else value for value in values]
    least = _CLOSEST * (on_paper[-1] - on_paper[0])
    crowded = any(after - before < least for before, after in pairwise(on_paper))
    unset = [value_text(None)] if any(point.value is None for point in curve.points) else []
    if unset or crowded:
        return {text: float(place) for place, text in enumerate([*texts, *unset])}, False
    return dict(zip(texts, values, strict=True)), wide


def _name(baseline: Row | None) -> str:
    return "" if baseline is None else f"{printable(baseline.name)} (baseline)"


def _label(line: Line) -> str:
    return printable(line.label)
