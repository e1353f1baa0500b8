"""The plane of alignment and uniformity: a dot for each model, coloured by its score."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from train.report.drawing import FAINT, INK, PLAIN, STYLE, clean

_LONGEST = 34  # characters of a label
_RINGS = (9, 22, 36, 52, 70)  # points from a dot to its label; beyond the first, with a line
_ANGLES = (0, 180, 90, 270, 35, 145, 325, 215)


@dataclass(frozen=True)
class Dot:
    """A model; one without alignment or uniformity is not drawn, one without a score is hollow."""

    name: str
    alignment: float | None
    uniformity: float | None
    score: float | None


def draw_plane(dots: Sequence[Dot], score: str) -> Figure | None:
    """Uniformity across, alignment up, both better when lower (MCSE, figure 2).

    Args:
        score: what the colours mean.

    Returns:
        None if no model has both.
    """
    drawn = [dot for dot in dots if dot.alignment is not None and dot.uniformity is not None]
    if not drawn:
        return None
    x = np.array([dot.uniformity for dot in drawn], dtype=float)
    y = np.array([dot.alignment for dot in drawn], dtype=float)
    scores = np.array([np.nan if dot.score is None else dot.score for dot in drawn])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.6), layout="constrained")
        axis = figure.subplots()
        known = np.isfinite(scores)
        look = {"s": 70, "edgecolors": INK, "linewidths": 0.7, "zorder": 3}
        axis.scatter(x[~known], y[~known], facecolors="white", **look)
        if known.any():
            low, high = scores[known].min(), scores[known].max()
            low, high = (low - 0.5, high + 0.5) if high - low < 1 else (low, high)
            points = axis.scatter(
                x[known],
                y[known],
                c=scores[known],
                cmap="viridis",
                vmin=low,
                vmax=high,
                **look,
            )
            bar = figure.colorbar(points, ax=axis, pad=0.02)
            bar.set_label(score)
            bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        for limits, values, least in (
            (axis.set_xlim, x, 0.2),
            (axis.set_ylim, y, 0.05),
        ):
            room = max(0.16 * float(np.ptp(values)), least)
            limits(values.min() - room, values.max() + room)
        axis.set_xlabel("uniformity (lower is better)")
        axis.set_ylabel("alignment (lower is better)")
        axis.grid(color=PLAIN, linewidth=0.8)
        axis.set_axisbelow(True)
        clean(axis)
        axis.annotate(
            "best",
            (0.012, 0.02),
            xytext=(0.075, 0.105),
            xycoords="axes fraction",
            textcoords="axes fraction",
            arrowprops={"arrowstyle": "-|>", "color": FAINT, "shrinkB": 0},
            color="#5b6770",
            fontsize=8.5,
            ha="center",
        )
        _label_dots(figure, axis, x, y, [short(dot.name) for dot in drawn])
    return figure


def _label_dots(
    figure: Figure, axis: Axes, x: np.ndarray, y: np.ndarray, labels: Sequence[str]
) -> None:
    """A label beside each dot, where it covers no dot and no other label.

    Further away, with a line to its dot, where there is no room beside it.
    """
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # fixes the layout, so that positions on the page are known
    renderer = canvas.get_renderer()
    inside = axis.get_window_extent(renderer)
    dots = axis.transData.transform(np.column_stack([x, y]))
    pixels = figure.dpi / 72
    radius = 6 * pixels
    taken = [Bbox.from_bounds(px - radius, py - radius, 2 * radius, 2 * radius) for px, py in dots]
    taken += [text.get_window_extent(renderer) for text in axis.texts]
    for number, label in enumerate(labels):
        best: tuple[float, Annotation, list[Bbox]] | None = None
        for ring, angle in itertools.product(_RINGS, _ANGLES):
            text = _label(axis, (x[number], y[number]), label, ring, angle)
            text.update_positions(renderer)
            words = Text.get_window_extent(text, renderer)  # without the line
            covered = [Bbox.from_bounds(words.x0, words.y0, words.width, words.height)]
            if ring > _RINGS[0]:
                reach = np.radians(angle)
                step = np.array([np.cos(reach), np.sin(reach)]) * pixels
                along = dots[number] + np.outer(np.linspace(8, ring, 8), step)
                covered += [Bbox.from_bounds(px - 1, py - 1, 2, 2) for px, py in along]
            cost = float(sum(one.overlaps(other) for one in covered for other in taken))
            cost += not (inside.x0 <= words.x0 and words.x1 <= inside.x1)
            cost += not (inside.y0 <= words.y0 and words.y1 <= inside.y1)
            if best is None or cost < best[0]:
                if best is not None:
                    best[1].remove()
                best = cost, text, covered
            else:
                text.remove()
            if cost == 0:
                break
        assert best is not None
        taken += best[2]


def _label(
    axis: Axes, point: tuple[float, float], label: str, ring: float, angle: float
) -> Annotation:
    """``label`` at ``ring`` points from ``point``, in the direction ``angle``."""
    dx, dy = ring * np.cos(np.radians(angle)), ring * np.sin(np.radians(angle))
    side = "left" if dx > 0.5 else "right" if dx < -0.5 else "center"
    height = "center" if abs(dy) < 0.5 else "bottom" if dy > 0 else "top"
    line = {"arrowstyle": "-", "color": FAINT, "shrinkA": 1, "shrinkB": 4, "lw": 0.8}
    return axis.annotate(
        label,
        point,
        xytext=(dx, dy),
        textcoords="offset points",
        ha=side,
        va=height,
        fontsize=9,
        zorder=4,
        arrowprops=line if ring > _RINGS[0] else None,
    )


def short(name: str) -> str:
    """``name``, without its middle if it is long."""
    half = (_LONGEST - 1) // 2
    return name if len(name) <= _LONGEST else f"{name[:half]}…{name[-half:]}"
