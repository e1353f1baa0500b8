"""The figures of a diagnosis; everything drawn is in its JSON."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from train.diagnose.diagnosis import Diagnosis
from train.diagnose.distribution import Distribution
from train.diagnose.filter_checks import Filter
from train.diagnose.findings import percent
from train.diagnose.pair_checks import Cosines, CrossChecks, Ranks
from train.diagnose.set_checks import SetChecks
from train.report.drawing import COLOURS, FAINT, INK, PLAIN, STYLE, clean

_MATCHED, _MISMATCHED, _THIRD = COLOURS[1], COLOURS[0], COLOURS[2]
_WIDTH = 9.0  # inches
_LEAST_SHARE = 1e-5  # the bottom of a logarithmic axis of shares
_PERCENT = FuncFormatter(lambda value, _: percent(value))


def cosine_figure(diagnosis: Diagnosis) -> Figure | None:
    """Histograms of matched and mismatched cosines, one panel per kind (KDMCSE, figure 6)."""
    drawn: list[tuple[str, Cosines, str, tuple[str, str]]] = []
    if diagnosis.cross is not None:
        names = "an image and its caption", "an image and another's caption"
        drawn.append(("image and caption", diagnosis.cross.cosines, "image", names))
    if diagnosis.captions is not None:
        names = "two captions of one image", "captions of two images"
        drawn.append(("two captions", diagnosis.captions, "teacher_text", names))
    if not drawn:
        return None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH, 3.3), layout="constrained")
        for axis, (title, cosines, term, names) in zip(
            figure.subplots(1, len(drawn), squeeze=False).flat, drawn, strict=True
        ):
            _outline(axis, cosines.mismatched, _MISMATCHED, names[1])
            _outline(axis, cosines.matched, _MATCHED, names[0])
            _mark_thresholds(axis, diagnosis.filters, term, diagnosis.settings.whose)
            axis.set_title(title, loc="left", fontsize=10, fontweight="bold")
            axis.set_xlabel("cosine")
            axis.set_yticks([])
            axis.set_ylim(bottom=0)
            clean(axis, keep=("bottom",))
            _legend_below(axis)
    return figure


def rank_figure(cross: CrossChecks) -> Figure:
    """Share of queries whose true match is within a rank (KDMCSE, figure 5, cumulated)."""
    lines: list[tuple[str, Ranks, str]] = [
        (f"best caption of an image, among {cross.best_caption.pool:,}", cross.best_caption, "-"),
        (
            f"worst caption of an image, among {cross.worst_caption.pool:,}",
            cross.worst_caption,
            "--",
        ),
        (f"image of a caption, among {cross.image.pool:,}", cross.image, "-"),
    ]
    colours = _MATCHED, _MATCHED, _THIRD
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH, 4.0), layout="constrained")
        axis = figure.subplots()
        for (label, ranks, style), colour in zip(lines, colours, strict=True):
            at, shares = zip(*ranks.curve, strict=True)
            axis.plot(at, shares, style, color=colour, linewidth=1.8, label=label)
        for rank in (100, 200):
            if rank < cross.worst_caption.pool:
                axis.axvline(rank, color=FAINT, linewidth=0.9, linestyle=":")
        ranks = np.geomspace(1, cross.image.pool, 100)
        axis.plot(
            ranks,
            ranks / cross.image.pool,
            color=FAINT,
            linewidth=1.2,
            label="image of a caption by chance",
        )
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_xlim(left=1)
        axis.set_ylim(0, 1.02)
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))
        axis.set_xlabel("rank (dotted: 100 and 200)")
        axis.set_ylabel("share within that rank")
        axis.grid(axis="y", color=PLAIN, linewidth=0.8)
        axis.set_axisbelow(True)
        clean(axis)
        _legend_below(axis, columns=2)
    return figure


def removal_figure(filters: Sequence[Filter], whose: str) -> Figure | None:
    """Share of the negatives that a threshold removes, and of matched pairs it recognises.

    Args:
        whose: configured or default, for the legend.
    """
    titles = {"image": "image term", "teacher_text": "teacher-text term"}
    drawn = [each for each in filters if each.term in titles]
    if not drawn:
        return None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH, 3.6), layout="constrained")
        axes = figure.subplots(1, len(drawn), squeeze=False, sharey=True).flat
        for axis, each in zip(axes, drawn, strict=True):
            _removal_panel(axis, each)
            axis.set_title(titles[each.term], loc="left", fontsize=10, fontweight="bold")
            _mark_thresholds(axis, filters, each.term, whose)
            _legend_below(axis)
        axes = figure.axes
        axes[0].set_ylabel("share (logarithmic)")
    return figure


def set_figure(checks: SetChecks) -> Figure:
    """Norms, cosine to the nearest other row, and singular values of one set."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH, 2.7), layout="constrained")
        norms, nearest, spectrum = figure.subplots(1, 3)
        if checks.norms is not None:
            _bars(norms, checks.norms)
            norms.set_xlim(left=min(0.0, checks.norms.least))
        norms.set_title("norms", loc="left", fontsize=10, fontweight="bold")
        norms.set_xlabel("length of a row as stored")
        if checks.neighbours is not None:
            _bars(nearest, checks.neighbours.cosines)
            if nearest.get_xlim()[1] > checks.neighbours.bound:
                nearest.axvline(checks.neighbours.bound, color=INK, linewidth=1, linestyle="--")
        nearest.set_title("nearest other row", loc="left", fontsize=10, fontweight="bold")
        nearest.set_xlabel("cosine (dashed: near-duplicates from here)")
        if checks.spectrum is not None and sum(checks.spectrum.shares) > 0:
            shares = [share for share in checks.spectrum.shares if share > 0]
            spectrum.plot(range(1, len(shares) + 1), shares, color=_MISMATCHED, linewidth=1.6)
            spectrum.axvline(checks.spectrum.centred, color=INK, linewidth=1, linestyle="--")
            spectrum.set_yscale("log")
            spectrum.yaxis.set_major_formatter(_PERCENT)
            spectrum.yaxis.set_minor_formatter(NullFormatter())
        spectrum.set_title("singular values", loc="left", fontsize=10, fontweight="bold")
        spectrum.set_xlabel("number (dashed: effective rank)")
        spectrum.set_ylabel("share of the sum")
        for axis in (norms, nearest):
            axis.set_ylabel("rows")
        for axis in (norms, nearest, spectrum):
            axis.title.set_fontsize(10)
            axis.xaxis.label.set_fontsize(8.5)
            clean(axis)
    return figure


def _removal_panel(axis: Axes, each: Filter) -> None:
    at = [removal.threshold for removal in each.removals]
    floor = _LEAST_SHARE
    low = [max(removal.least, floor) for removal in each.removals]
    high = [max(removal.greatest, floor) for removal in each.removals]
    axis.fill_between(at, low, high, color=_MISMATCHED, alpha=0.18, linewidth=0)
    shown = [(r.threshold, r.share) for r in each.removals if r.share >= floor]
    if shown:
        label = "negatives removed (band: least and most in a batch)"
        axis.plot(*zip(*shown, strict=True), "o-", color=_MISMATCHED, ms=3.2, label=label)
    matched = [(r.threshold, r.matched) for r in each.removals if r.matched and r.matched >= floor]
    if matched:
        label = "pairs that belong together, at or above it"
        axis.plot(*zip(*matched, strict=True), "o--", color=_MATCHED, ms=3.2, label=label)
    axis.set_yscale("log")
    axis.set_ylim(floor, 1.6)
    axis.yaxis.set_major_locator(LogLocator(numticks=8))
    axis.yaxis.set_major_formatter(_PERCENT)
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("threshold (cosine)")
    axis.grid(axis="y", color=PLAIN, linewidth=0.8)
    axis.set_axisbelow(True)
    clean(axis)


def _outline(axis: Axes, values: Distribution, colour: str, label: str) -> None:
    """A histogram scaled to a height of 1: a narrow one would flatten the other."""
    heights = np.array(values.counts) / max(values.counts)
    axis.stairs(heights, values.edges, color=colour, linewidth=1.4, fill=False, label=label)
    axis.stairs(heights, values.edges, color=colour, alpha=0.15, fill=True)


def _bars(axis: Axes, values: Distribution) -> None:
    axis.stairs(values.counts, values.edges, color=_MISMATCHED, alpha=0.85, fill=True)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _mark_thresholds(axis: Axes, filters: Sequence[Filter], term: str, whose: str) -> None:
    for each in filters:
        if each.term == term:
            for removal in each.removals:
                if removal.configured:
                    label = f"{whose} threshold {removal.threshold:g}"
                    axis.axvline(
                        removal.threshold, color=INK, linewidth=1, linestyle="--", label=label
                    )


def _legend_below(axis: Axes, columns: int = 1) -> None:
    """Under the panel, where no line is."""
    axis.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.2),
        frameon=False,
        fontsize=8.5,
        handlelength=1.6,
        ncols=columns,
    )
