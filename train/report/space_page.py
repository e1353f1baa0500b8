"""Embedding spaces in a folder: geometry.html, figures as PNG and SVG, all numbers as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from sightline.output import Output, json_record
from train.evaluate.space import GOLD, Agreement, ModelSpace, SpaceStudy, binned_means
from train.report.drawing import to_png, to_svg
from train.report.grid import Grid, GridCell, GridRow, number_cell, printable
from train.report.html import Drawing, Section, to_page
from train.report.space_plots import (
    MANY_PAIRS,
    gold_chart,
    map_chart,
    plane_chart,
    spectrum_chart,
)

RECORD, SCHEMA = "geometry.json", "sightline.geometry/1"
PAGE = "geometry.html"

_CHARTS: dict[str, Callable[[SpaceStudy], Figure | None]] = {
    "plane": plane_chart,
    "map": map_chart,
    "gold": gold_chart,
    "spectrum": spectrum_chart,
}
_COLUMNS = (
    "model",
    "Spearman × 100",
    "alignment",
    "uniformity",
    "mean cosine",
    "largest singular value",
    "effective rank",
    "silhouette",
)
_MEASURES = (
    "Alignment and uniformity as the papers define them, lower is better. Bold: the best. Mean "
    "cosine of all pairs of distinct sentences: near 1 if all embeddings point one way. Singular "
    "values of the normalised embeddings; their squares sum to 1. Effective rank: how many "
    "directions the embeddings use."
)
_PLANE = (
    "One dot per model, coloured by its score. Alignment: mean squared distance of pairs with a "
    "gold score above 4. Uniformity: log of the mean of exp(−2 × squared distance) over all pairs "
    "of distinct sentences. (MCSE, figure 2.)"
)
_SPECTRUM = (
    "Of the normalised embeddings of all distinct sentences, without centring. A flat curve "
    "spreads the sentences over many directions; a steep one leaves them in a few."
)
_FILES = (RECORD, PAGE, *(f"{name}.{kind}" for name in _CHARTS for kind in ("png", "svg")))


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
    figures = {name: chart(study) for name, chart in _CHARTS.items()}
    drawn = {name: figure for name, figure in figures.items() if figure is not None}
    svg = {name: to_svg(figure) for name, figure in drawn.items()}
    contents = {PAGE: page_of(study, title, svg).encode()}
    for name, figure in drawn.items():
        contents[f"{name}.png"] = to_png(figure)
        contents[f"{name}.svg"] = (svg[name] + "\n").encode()
    with _output(out, inputs) as output, output.scratch() as made:
        for name, data in contents.items():
            (made / name).write_bytes(data)
        output.publish(made, {"schema": SCHEMA, "title": title, **to_json(study)})
    return [out / name for name in _FILES if name == RECORD or name in contents]


def _output(out: Path, inputs: Sequence[Path]) -> Output:
    return Output(out, RECORD, json_record(SCHEMA), inputs)


def page_of(study: SpaceStudy, title: str, figures: Mapping[str, str]) -> str:
    """One self-contained HTML document; all text is escaped.

    Args:
        figures: name → SVG, the only input that is not escaped.
    """
    note = (
        f"{len(study.pairs):,} graded pairs ({study.pairs.name}). Figures are also PNG and SVG "
        f"files beside this page; every number is in {RECORD}."
    )
    return to_page(title, sections_of(study, figures), "Sightline geometry", [note])


def sections_of(study: SpaceStudy, figures: Mapping[str, str]) -> list[Section]:
    """What a page shows of ``study``; ``figures`` as for `page_of`."""
    notes = [f"Not defined: {reason}." for reason in _reasons(study.models)]
    sections = [Section("Embeddings", (grid_of_spaces(study),), notes=(_MEASURES, *notes))]
    plane = _drawings(figures, {"plane": ("Alignment and uniformity", _PLANE)})
    clusters = _drawings(figures, {"map": ("Clusters", _map_note(study))})
    rest = {
        "gold": ("Gold score and cosine", _gold_note(study)),
        "spectrum": ("Singular values", _SPECTRUM),
    }
    agreement = _agreement(study)
    notes = [_agreement_note(study)] if agreement else []
    sections += [Section("Embedding space", drawings=(*plane, *_drawings(figures, rest)))]
    sections += [Section("Clusters", agreement, clusters, tuple(notes))]
    return [each for each in sections if each.grids or each.drawings]


def drawn_sections(study: SpaceStudy) -> list[Section]:
    """`sections_of`, with every figure that there is."""
    figures = {name: chart(study) for name, chart in _CHARTS.items()}
    drawn = {name: to_svg(figure) for name, figure in figures.items() if figure is not None}
    return sections_of(study, drawn)


def grid_of_spaces(study: SpaceStudy) -> Grid:
    """A row for each model with its figures; the best of a column in which one end is better."""
    best = _best(study.models)
    rows = []
    for each in study.models:
        values = {
            "spearman": each.similarity.spearman,
            "alignment": each.geometry.alignment,
            "uniformity": each.geometry.uniformity,
        }
        cells = [
            number_cell(
                value,
                ".2f" if name == "spearman" else ".3f",
                value is not None and value == best[name],
            )
            for name, value in values.items()
        ]
        rank = each.spectrum.effective_rank
        cells += [
            number_cell(each.mean_cosine, ".3f"),
            number_cell(float(each.spectrum.singular_values[0]), ".3f"),
            GridCell((f"{rank:.1f}", f"of {each.width}"), value=rank),
            number_cell(each.map.silhouette if each.map else None, ".3f"),
        ]
        rows.append(GridRow(printable(each.name), tuple(cells), runs=(each.name,)))
    title = f"{len(study.pairs):,} pairs of {printable(study.pairs.name)}"
    return Grid(title, _COLUMNS, tuple(rows))


def _drawings(
    figures: Mapping[str, str], captions: Mapping[str, tuple[str, str]]
) -> tuple[Drawing, ...]:
    return tuple(
        # Bins that get darker with more pairs need a light ground.
        Drawing(caption, note, figures[name], themed=name != "gold")
        for name, (caption, note) in captions.items()
        if name in figures
    )


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
    found = _symmetric(study.agreements())
    rows = []
    for one in names:
        cells = []
        for two in names:
            if one == two:
                cells.append(GridCell(("–",)))
                continue
            both = found[(one, two)]
            text = f"{both.adjusted_rand:.2f} / {both.mutual_information:.2f}"
            cells.append(GridCell((text,), value=both.adjusted_rand))
        rows.append(GridRow(printable(one), tuple(cells), runs=(one,)))
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


def to_json(study: SpaceStudy) -> dict[str, object]:
    """Every number of the page and of the figures; an undefined one is null."""
    edges, _, counts = binned_means(study.pairs.gold, study.pairs.gold)
    return {
        "pairs": {
            "name": study.pairs.name,
            "count": len(study.pairs),
            "sha256": study.pairs.sha256,
            "gold": study.pairs.gold.tolist(),
            "gold_ranges": [_rounded(edge) for edge in edges],
            "pairs_in_range": counts.tolist(),
        },
        "map": {
            "sentences": study.sentences.name,
            "drawn_from": study.sentences.drawn_from,
            **asdict(study.settings),
            "texts": list(study.sentences.texts),
            "groups": None if study.sentences.groups is None else list(study.sentences.groups),
        },
        "models": [_model_json(each, study.pairs.gold) for each in study.models],
        "agreement": [
            {"between": list(names), **asdict(found)} for names, found in study.agreements().items()
        ],
    }


def _model_json(model: ModelSpace, gold: np.ndarray) -> dict[str, object]:
    return {
        "model": model.name,
        "width": model.width,
        "spearman": asdict(model.similarity),
        "geometry": asdict(model.geometry),
        "mean_cosine": model.mean_cosine,
        "effective_rank": model.spectrum.effective_rank,
        "singular_values": [_rounded(value) for value in model.spectrum.singular_values],
        "mean_cosine_by_gold": [_rounded(v) for v in binned_means(gold, model.cosines)[1]],
        "cosines": [_rounded(value) for value in model.cosines],
        "map": None
        if model.map is None
        else {
            "silhouette": model.map.silhouette,
            "clusters": model.map.labels.tolist(),
            "points": [[round(float(x), 3), round(float(y), 3)] for x, y in model.map.points],
        },
        "no_map": model.no_map,
    }


def _symmetric(found: Mapping[tuple[str, str], Agreement]) -> dict[tuple[str, str], Agreement]:
    return {**found, **{(two, one): each for (one, two), each in found.items()}}


def _best(models: Sequence[ModelSpace]) -> dict[str, float | None]:
    """Column → its best value, of those in which one end is better; None for a single model."""
    columns = {
        "spearman": (max, [each.similarity.spearman for each in models]),
        "alignment": (min, [each.geometry.alignment for each in models]),
        "uniformity": (min, [each.geometry.uniformity for each in models]),
    }
    found: dict[str, float | None] = {}
    for name, (best, values) in columns.items():
        known = [value for value in values if value is not None]
        found[name] = best(known) if known and len(models) > 1 else None
    return found


def _reasons(models: Sequence[ModelSpace]) -> list[str]:
    reasons = []
    for each in models:
        said = (each.similarity.reason, *each.geometry.reasons, each.no_map)
        reasons += [f"{each.name}: {why}" for why in said if why]
    return reasons


def _rounded(value: float) -> float | None:
    return round(float(value), 6) if math.isfinite(value) else None
