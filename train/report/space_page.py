"""Embedding spaces in a folder: geometry.html, figures as PNG and SVG, all numbers as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from sightline.html_templates import html_templates
from sightline.output import Output, json_record
from train.evaluate.embedding_space import Agreement
from train.evaluate.space_study import GOLD, ModelSpace, SpaceStudy, binned_means
from train.report.drawing import to_png, to_svg
from train.report.space_plots import gold_chart, map_chart, plane_chart, spectrum_chart

RECORD, SCHEMA = "geometry.json", "sightline.geometry/1"
PAGE = "geometry.html"

_CHARTS: dict[str, Callable[[SpaceStudy], Figure | None]] = {
    "plane": plane_chart,
    "map": map_chart,
    "gold": gold_chart,
    "spectrum": spectrum_chart,
}
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
    contents = {PAGE: to_page(study, title, svg).encode()}
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


def to_page(study: SpaceStudy, title: str, figures: Mapping[str, str]) -> str:
    """One self-contained HTML document without a script; all text is escaped.

    Args:
        figures: name → SVG, the only input that is not escaped.
    """
    environment = html_templates(Path(__file__).parent)
    environment.filters["number"] = _number
    groupings = list(study.groupings)
    return environment.get_template("geometry.html.j2").render(
        title=title,
        study=study,
        figures={name: Markup(svg) for name, svg in figures.items()},
        best=_best(study.models),
        groupings=groupings,
        gold=GOLD if GOLD in groupings else None,
        agreement=_symmetric(study.agreements()),
        reasons=_reasons(study.models),
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
        "spearman": model.similarity.to_json(),
        "geometry": model.geometry.to_json(),
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


def _number(value: float | None, decimals: int = 3) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.{decimals}f}"


def _rounded(value: float) -> float | None:
    return round(float(value), 6) if math.isfinite(value) else None
