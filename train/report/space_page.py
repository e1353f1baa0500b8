"""Embedding spaces in a folder: geometry.html, figures as PNG and SVG, all numbers as JSON."""

from __future__ import annotations

import colorsys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from pydantic_core import to_jsonable_python

from sightline.errors import SightlineError
from sightline.output import Output, json_record
from train.evaluate.space import GOLD, ModelSpace, SpaceStudy, binned_means
from train.report.charts import (
    COLOURS,
    SOFT,
    STYLE,
    clean,
    colour_of,
    draw_plane,
    legend_above,
    short,
    to_png,
    to_svg,
)
from train.report.grid import (
    Document,
    Drawing,
    Grid,
    GridCell,
    GridRow,
    Section,
    number,
    number_cell,
    only,
    printable,
    text_cell,
)
from train.report.page import to_page
from train.report.render import to_json

RECORD, SCHEMA = "geometry.json", "sightline.geometry/2"
PAGE = "geometry.html"

MANY_PAIRS = 3000  # pairs from which a scatter plot is replaced by hexagonal bins
_DPI = 180  # of what is drawn as pixels inside an SVG
_BLUES = ListedColormap(matplotlib.colormaps["Blues"](np.linspace(0.18, 1, 256)))


_COLUMNS: Mapping[str, tuple[Callable[[ModelSpace], float | None], str, Callable | None]] = {
    "Spearman × 100": (lambda space: space.similarity.spearman, ".2f", max),
    "alignment": (lambda space: space.geometry.alignment, ".3f", min),
    "uniformity": (lambda space: space.geometry.uniformity, ".3f", min),
    "mean cosine": (lambda space: space.mean_cosine, ".3f", None),
    "largest singular value": (lambda space: float(space.spectrum.singular_values[0]), ".3f", None),
    "effective rank": (lambda space: space.spectrum.effective_rank, ".1f", None),
    "silhouette": (lambda space: space.map.silhouette if space.map else None, ".3f", None),
}
"""Column → its value, how that is printed, and which end is better, if one is."""
_MEASURES = (
    "Alignment and uniformity as the papers define them, lower is better. Bold: the best. Mean "
    "cosine of all pairs of distinct sentences: near 1 if all embeddings point one way. Singular "
    "values of the normalised embeddings; their squares sum to 1. Effective rank: how many "
    "directions the embeddings use."
)
_PLANE = (
    "A shape per model, coloured by its score. Alignment: mean squared distance of pairs with a "
    "gold score above 4. Uniformity: log of the mean of exp(−2 × squared distance) over all pairs "
    "of distinct sentences. (MCSE, figure 2.)"
)
_SPECTRUM = (
    "Of the normalised embeddings of all distinct sentences, without centring. A flat curve "
    "spreads the sentences over many directions; a steep one leaves them in a few."
)
_TITLES = {
    "plane": "Alignment and uniformity",
    "map": "Clusters",
    "gold": "Gold score and cosine",
    "spectrum": "Singular values",
}
"""Figure → its title; also the names of the files."""
_FILES = (RECORD, PAGE, *(f"{name}.{kind}" for name in _TITLES for kind in ("png", "svg")))


def check_output(out: Path, inputs: Sequence[Path] = ()) -> None:
    """Refuse early what `write_geometry` would refuse after all models are measured.

    Raises:
        SightlineError: as there.
    """
    with _output(out, inputs) as output:
        output.check(_FILES)


def write_geometry(
    study: SpaceStudy, title: str, out: Path, inputs: Sequence[Path] = ()
) -> list[Path]:
    """Write everything into the folder ``out``; equal input gives equal bytes.

    Args:
        inputs: files and folders that the study comes from.

    Returns:
        The files written.

    Raises:
        SightlineError: files in the folder that are not Sightline's (`sightline.output`).
    """
    figures = charts_of(study)
    svg = {name: to_svg(figure) for name, figure in figures.items()}
    document = document_of(study, title, svg)
    contents = {PAGE: to_page(document).encode()}
    for name, figure in figures.items():
        contents[f"{name}.png"] = to_png(figure)
        contents[f"{name}.svg"] = (svg[name] + "\n").encode()
    with _output(out, inputs) as output, output.scratch() as scratch:
        for name, data in contents.items():
            (scratch / name).write_bytes(data)
        output.publish(scratch, {"title": title, **to_json(document)})
    return [out / name for name in _FILES if name == RECORD or name in contents]


def _output(out: Path, inputs: Sequence[Path]) -> Output:
    return Output(out, RECORD, json_record(SCHEMA), inputs)


def geometry_section(folder: Path) -> Section:
    """The figures in a folder that `write_geometry` wrote, for another page.

    Raises:
        SightlineError: there is none.
    """
    figures = {name: folder / f"{name}.svg" for name in _TITLES}
    drawings = tuple(
        Drawing(_TITLES[name], "", file.read_text(encoding="utf-8"), foreign=True)
        for name, file in figures.items()
        if file.is_file()
    )
    if not drawings:
        raise SightlineError(
            f"{folder}: no figure here, such as plane.svg; expected a folder that `sightline "
            "look space` wrote"
        )
    note = f"From {folder.name}, written by `sightline look space`; its page has the numbers."
    return Section("Embedding spaces", drawings=drawings, notes=(note,))


def charts_of(study: SpaceStudy) -> dict[str, Figure]:
    """Every figure that there is, by name."""
    charts = (plane_chart, map_chart, gold_chart, spectrum_chart)
    figures = {name: chart(study) for name, chart in zip(_TITLES, charts, strict=True)}
    return {name: figure for name, figure in figures.items() if figure is not None}


def document_of(study: SpaceStudy, title: str, figures: Mapping[str, str]) -> Document:
    """What there is to read of ``study``.

    Args:
        figures: name → SVG, the only input that a page does not escape.
    """
    lead = (
        f"{len(study.pairs):,} graded pairs ({study.pairs.name}). Figures are also PNG and SVG "
        f"files beside this page; every number is in {RECORD}."
    )
    notes = [f"Not defined: {reason}." for reason in _reasons(study.models)]
    how = {"plane": _PLANE, "gold": _gold_note(study), "spectrum": _SPECTRUM}
    how["map"] = _map_note(study)
    # bins that get darker with more pairs need a light ground
    drawn = {
        name: Drawing(_TITLES[name], note, figures[name], themed=name != "gold")
        for name, note in how.items()
        if name in figures
    }
    clusters = tuple(drawn.pop(name) for name in ("map",) if name in drawn)
    agreement = _agreement(study)
    sections = (
        Section("Embeddings", (grid_of_spaces(study),), notes=(_MEASURES, *notes)),
        Section("Embedding space", drawings=tuple(drawn.values())),
        Section("Clusters", agreement, clusters, (_agreement_note(study),) if agreement else ()),
    )
    return Document(title, SCHEMA, only(sections), _body(study), (lead,))


def grid_of_spaces(study: SpaceStudy) -> Grid:
    """A row for each model with its figures; the best of a column in which one end is better."""
    columns = []
    for name, (value, form, better) in _COLUMNS.items():
        best = _best([value(space) for space in study.models], form, better)
        cells = [number_cell(value(space), form) for space in study.models]
        if name == "effective rank":
            widths = [f"of {space.width}" for space in study.models]
            cells = [replace(c, parts=(*c.parts, of)) for c, of in zip(cells, widths, strict=True)]
        columns.append([replace(cell, bold=cell.parts[0] == best) for cell in cells])
    rows = [
        GridRow(printable(space.name), cells, runs=(space.name,))
        for space, cells in zip(study.models, zip(*columns, strict=True), strict=True)
    ]
    title = f"{len(study.pairs):,} pairs of {printable(study.pairs.name)}"
    return Grid(title, ("model", *_COLUMNS), tuple(rows))


def _best(values: Sequence[float | None], form: str, better: Callable | None) -> str:
    """The best value as it is printed; empty if no end is better or all print alike."""
    texts = {number(value, form): value for value in values if value is not None}
    return better(texts, key=lambda text: texts[text]) if better and len(texts) > 1 else ""


def _map_note(study: SpaceStudy) -> str:
    drawn, of = len(study.sentences.texts), study.sentences.drawn_from
    return (
        f"t-SNE (perplexity {study.settings.perplexity:g}, seed {study.settings.seed}) of {drawn:,}"
        f"{f' of {of:,}' if of > drawn else ''} distinct sentences of {study.sentences.name}, "
        f"coloured by {study.settings.clusters} clusters of k-means on the embeddings themselves. "
        "A colour is the same cluster in every panel as far as the clusters share sentences. "
        "Distances between far-apart points of such a map mean nothing. Silhouette: 1 for tight "
        "clusters far from each other, 0 for clusters that overlap; a space that has collapsed to "
        "a few directions has tight clusters too, whatever the sentences mean. (DALR, figure 3.)"
    )


def _gold_note(study: SpaceStudy) -> str:
    dots = (
        "Darker: more pairs, on a logarithmic scale"
        if len(study.pairs) > MANY_PAIRS
        else "One dot per pair"
    )
    return (
        f"{dots}. Orange: mean cosine in five equal ranges of the gold score. Spearman sees only "
        "the order; whether unrelated pairs are far apart is seen here. (DALR, figure 4.)"
    )


def _agreement(study: SpaceStudy) -> tuple[Grid, ...]:
    names = list(study.groupings)
    if len(names) < 2:
        return ()
    cells = {}
    for (one, two), both in study.agreements().items():
        text = f"{number(both.adjusted_rand)} / {number(both.mutual_information)}"
        cells[one, two] = cells[two, one] = GridCell((text,), value=both.adjusted_rand)
    empty = text_cell("")
    rows = []
    for one in names:
        own = tuple(cells.get((one, two), empty) for two in names)
        rows.append(GridRow(printable(one), own, runs=(one,)))
    header = ("agreement of clusters", *map(printable, names))
    return (Grid("Agreement of clusters", header, tuple(rows), runs=("", *names)),)


def _agreement_note(study: SpaceStudy) -> str:
    gold = (
        f", or of a model and the gold groups of {study.sentences.name}"
        if GOLD in study.groupings
        else ""
    )
    return (
        "Adjusted Rand index / normalised mutual information, between the clusters of two models"
        f"{gold}. Both are 1 if the sentences are grouped alike. The first is 0 on average for "
        "random groups; the second is not corrected for chance."
    )


def _body(study: SpaceStudy) -> dict[str, object]:
    """Every number of the page and of the figures; an undefined one is null."""
    gold = study.pairs.gold
    edges, _, counts = binned_means(gold, gold)
    body = {
        "pairs": {
            "name": study.pairs.name,
            "count": len(study.pairs),
            "sha256": study.pairs.sha256,
            "gold": gold,
            "gold_ranges": edges,
            "pairs_in_range": counts,
        },
        "map": {**vars(study.sentences), **vars(study.settings)},
        "models": [
            {**vars(each), "mean_cosine_by_gold": binned_means(gold, each.cosines)[1]}
            for each in study.models
        ],
        "agreement": [
            {"between": names, **vars(agreement)} for names, agreement in study.agreements().items()
        ],
    }
    return to_jsonable_python(body, fallback=_plain)


def _plain(values: np.ndarray) -> object:
    """An array as lists of numbers with six decimals; what is not finite is None."""
    return np.where(np.isfinite(values), np.round(values, 6), None).tolist()  # pyright: ignore


def _reasons(models: Sequence[ModelSpace]) -> list[str]:
    reasons = []
    for each in models:
        said = (each.similarity.reason, *each.geometry.reasons, each.no_map)
        reasons += [f"{each.name}: {why}" for why in said if why]
    return reasons


def plane_chart(study: SpaceStudy) -> Figure | None:
    """A shape per model, coloured by Spearman. None if no model has alignment and uniformity."""
    models = {
        each.name: (each.geometry.alignment, each.geometry.uniformity, each.similarity.spearman)
        for each in study.models
    }
    return draw_plane(models, f"Spearman × 100, {short(study.pairs.name)}")


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
            _title(axis, each.name, f"silhouette {number(each.map.silhouette)}")
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
        for place, (axis, each) in enumerate(zip(axes, drawn, strict=True)):
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
            clean(axis, lines="y")
            score = each.similarity.spearman
            said = "not defined" if score is None else number(score)
            _title(axis, each.name, f"Spearman × 100: {said}")
            if place % 3 == 0:
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
        for place, each in enumerate(study.models):
            values = each.spectrum.singular_values
            values = values[values > 1e-6]  # the rest is rounding of float32
            axis.plot(
                np.arange(1, len(values) + 1),
                values,
                color=colour_of(place),
                linestyle=("-", "--", ":")[place // len(COLOURS) % 3],
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
        axis.margins(x=0.02)
        clean(axis, lines="y")
        legend_above(figure, 2 if len(study.models) > 1 else 1, handlelength=1.4)
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
        color=SOFT,
        fontsize=8.5,
    )
