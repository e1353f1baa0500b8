"""Figures of embedding spaces: alignment–uniformity plane, maps, gold against cosine, spectra."""

from __future__ import annotations

import colorsys
import textwrap
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from train.evaluate.space import SpaceStudy, binned_means
from train.report.drawing import COLOURS, PLAIN, STYLE, clean
from train.report.plane_plot import Dot, draw_plane, short

MANY_PAIRS = 3000  # pairs from which a scatter plot is replaced by hexagonal bins
_DPI = 180  # of what is drawn as pixels inside an SVG
_BLUES = ListedColormap(matplotlib.colormaps["Blues"](np.linspace(0.18, 1, 256)))


def plane_chart(study: SpaceStudy) -> Figure | None:
    """A dot per model, coloured by Spearman. None if no model has alignment and uniformity."""
    dots = [
        Dot(each.name, each.geometry.alignment, each.geometry.uniformity, each.similarity.spearman)
        for each in study.models
    ]
    return draw_plane(dots, f"Spearman × 100, {short(study.pairs.name)}")


def map_chart(study: SpaceStudy) -> Figure | None:
    """A t-SNE map per model, coloured by its clusters of k-means (DALR, figure 3).

    Colours are those of the first model's clusters. None if no model has a map.
    """
    drawn = [each for each in study.models if each.map is not None]
    if not drawn:
        return None
    palette = cluster_colours(study.settings.clusters)
    with matplotlib.rc_context(STYLE):
        figure, axes = _panels(len(drawn), (2.9, 2.95))
        for axis, each in zip(axes, drawn, strict=True):
            assert each.map is not None
            points = each.map.points
            axis.scatter(
                points[:, 0],
                points[:, 1],
                c=[palette[label] for label in each.map.labels],
                s=float(np.clip(6000 / len(points), 1.5, 16)),
                linewidths=0,
                alpha=0.85,
                rasterized=True,
            )
            axis.set_aspect("equal", "datalim")
            axis.set_xticks([])
            axis.set_yticks([])
            clean(axis, keep=())
            _title(axis, each.name, f"silhouette {each.map.silhouette:.2f}")
    return figure


def gold_chart(study: SpaceStudy) -> Figure | None:
    """Cosine of each pair against its gold score, one panel per model (DALR, figure 4).

    The line joins the mean cosines of five equal ranges of the gold score. None if no cosine is
    defined.
    """
    drawn = [each for each in study.models if np.isfinite(each.cosines).all()]
    gold = study.pairs.gold
    if not drawn or not len(gold):
        return None
    low = min(0.9, *(float(each.cosines.min()) for each in drawn))
    least, most = float(gold.min()), float(gold.max())
    across = (least, most) if most > least else (least - 0.5, most + 0.5)
    with matplotlib.rc_context(STYLE):
        figure, axes = _panels(len(drawn), (2.9, 2.75), shared=True)
        for number, (axis, each) in enumerate(zip(axes, drawn, strict=True)):
            if len(gold) > MANY_PAIRS:
                axis.hexbin(
                    gold,
                    each.cosines,
                    gridsize=(12, 14),  # gold scores are often multiples of 0.2 or 0.25
                    extent=(*across, low, 1.0),
                    bins="log",
                    mincnt=1,
                    cmap=_BLUES,
                    linewidths=0.1,
                    rasterized=True,
                )
            else:
                axis.scatter(
                    gold,
                    each.cosines,
                    s=float(np.clip(4000 / len(gold), 3, 18)),
                    color=COLOURS[0],
                    alpha=0.35 if len(gold) > 100 else 0.7,
                    linewidths=0,
                    rasterized=True,
                )
            edges, means, _ = binned_means(gold, each.cosines)
            there = np.isfinite(means)
            centres = (edges[:-1] + edges[1:]) / 2
            axis.plot(
                centres[there], means[there], "o-", color=COLOURS[1], ms=4.5, mec="white", lw=1.6
            )
            axis.grid(axis="y", color=PLAIN, linewidth=0.8)
            axis.set_axisbelow(True)
            clean(axis)
            score = each.similarity.spearman
            said = "not defined" if score is None else f"{score:.2f}"
            _title(axis, each.name, f"Spearman × 100: {said}")
            if number % 3 == 0:
                axis.set_ylabel("cosine")
            axis.set_xlabel("gold score")
    return figure


def spectrum_chart(study: SpaceStudy) -> Figure | None:
    """Singular values of each model's directions, on a logarithmic scale.

    None without models.
    """
    if not study.models:
        return None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.6), layout="constrained")
        axis = figure.subplots()
        for number, each in enumerate(study.models):
            values = each.spectrum.singular_values
            values = values[values > 1e-6]  # the rest is rounding of float32
            axis.plot(
                np.arange(1, len(values) + 1),
                values,
                color=COLOURS[number % len(COLOURS)],
                linestyle=("-", "--", ":")[number // len(COLOURS) % 3],
                linewidth=1.6,
                marker="o" if len(values) == 1 else None,
                label=f"{short(each.name)}: effective rank "
                f"{each.spectrum.effective_rank:.1f} of {each.width}",
            )
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        low, high = axis.get_ylim()  # matplotlib's own labels within a decade are TeX
        axis.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if high < 10 * low else "")
        axis.set_xlabel("number of the singular value")
        axis.set_ylabel("singular value")
        axis.grid(axis="y", color=PLAIN, linewidth=0.8)
        axis.set_axisbelow(True)
        axis.margins(x=0.02)
        clean(axis)
        columns = 2 if len(study.models) > 1 else 1
        figure.legend(loc="outside upper left", frameon=False, ncols=columns, handlelength=1.4)
    return figure


def cluster_colours(count: int) -> list[tuple[float, float, float]]:
    """``count`` distinguishable colours: matplotlib's lists of 10 and 20, then hues far apart."""
    for name, size in (("tab10", 10), ("tab20", 20)):
        if count <= size:
            return [matplotlib.colormaps[name](i)[:3] for i in range(count)]
    golden = 0.618034  # of a turn: neighbouring numbers have hues far apart
    return [
        colorsys.hls_to_rgb(golden * i % 1, (0.42, 0.62, 0.3)[i % 3], 0.55) for i in range(count)
    ]


def _panels(
    count: int, size: tuple[float, float], shared: bool = False
) -> tuple[Figure, Sequence[Axes]]:
    """``count`` panels of ``size`` inches in rows of at most three."""
    columns = min(3, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained", dpi=_DPI)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=shared, sharey=shared)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    for axis in axes.flat[:count]:
        axis.tick_params(labelbottom=True)
    return figure, list(axes.flat[:count])


def _title(axis: Axes, name: str, below: str) -> None:
    axis.set_title(
        "\n".join(textwrap.wrap(name, 30)[:2]), loc="left", fontsize=10, fontweight="bold", pad=18
    )
    axis.annotate(
        below,
        (0, 1),
        xytext=(0, 5),
        xycoords="axes fraction",
        textcoords="offset points",
        color="#5b6770",
        fontsize=8.5,
    )
