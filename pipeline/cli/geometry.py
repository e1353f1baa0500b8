"""`sightline geometry`: the embedding spaces of several models, in figures and numbers."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import (
    DEVICE,
    JSON,
    MODELS,
    MOST_SEED,
    OUT,
    POOLING,
    models_of,
)

if TYPE_CHECKING:
    from train.evaluate.similarity import GradedPairs


class Split(StrEnum):
    """Values of ``--split``."""

    TRAIN = "train"
    DEV = "dev"
    TEST = "test"
    ALL = "all"


def geometry(
    data: Annotated[
        Path,
        typer.Option(help="TSV of graded pairs, or SentEval's `downstream` folder, for STS-B."),
    ],
    out: OUT,
    models: MODELS = None,
    split: Annotated[
        Split | None, typer.Option(help="Of STS-B; `all` is every split.", show_default="dev")
    ] = None,
    sentences: Annotated[
        Path | None,
        typer.Option(
            help="Sentences of the map: a captions manifest (.parquet), or a TSV with the header "
            "group, sentence; default: those of --data."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=3, help="Maximum sentences of the map; of more, some are drawn.")
    ] = 1000,
    clusters: Annotated[int, typer.Option(min=2, help="Clusters of k-means.")] = 10,
    perplexity: Annotated[float, typer.Option(min=1.0, help="Of t-SNE.")] = 30.0,
    seed: Annotated[
        int, typer.Option(min=0, max=MOST_SEED, help="Of the drawing, k-means and t-SNE.")
    ] = 0,
    pooling: POOLING = None,
    device: DEVICE = "auto",
    title: Annotated[str, typer.Option(help="Title of the page.")] = "Embedding spaces",
    as_json: JSON = False,
) -> None:
    """Draw models' embedding spaces: alignment and uniformity, clusters, cosines, singular values.

    Example: sightline geometry --model runs/simcse/seed-0 --model runs/mcse-clip/seed-0
    --data senteval/downstream --out geometry
    """
    sources = models_of(models)
    if split is not None and not data.is_dir():
        raise typer.BadParameter(
            f"{data} is not SentEval's folder, and has no splits; leave it out",
            param_hint="--split",
        )
    from sightline.extras import require
    from sightline.progress import progress

    require("matplotlib", "a chart")
    from train.evaluate.models import load_each, name_models
    from train.evaluate.similarity import sentences_of
    from train.evaluate.space import MapSentences, MapSettings, SpaceStudy, read_map_sentences
    from train.report.render import show
    from train.report.space_page import check_output, document_of, write_geometry

    named = name_models(sources)
    inputs = [data, *([sentences] if sentences is not None else [])]
    inputs += [Path(each.source) for each in named]
    check_output(out, inputs)
    pairs = _pairs(data, split)
    if sentences is None:
        drawn = MapSentences.draw(pairs.name, list(sentences_of([pairs])), limit, seed)
    else:
        drawn = read_map_sentences(sentences, limit, seed)
    study = SpaceStudy(pairs, drawn, MapSettings(clusters, perplexity, seed))
    with progress("geometry", len(named), "models") as advance:
        for each, model in load_each(named, pooling, device):
            model.encode_once(study.every_sentence())
            study.add(each.name, model.encode)
            advance(1)
    files = write_geometry(study, title, out, inputs)
    show(document_of(study, title, {}), "json" if as_json else "terminal")
    for file in () if as_json else files:
        print(file)


def _pairs(data: Path, split: Split | None) -> GradedPairs:
    """STS-B's split of SentEval's folder, or the pairs of a TSV."""
    import numpy as np

    from train.evaluate.similarity import GradedPairs
    from train.evaluate.sts import load_dev_set, load_sts_benchmark

    if split is None:
        return load_dev_set(data)
    if split is not Split.ALL:
        return load_sts_benchmark(data, split.value)
    parts = [load_sts_benchmark(data, each.value) for each in Split if each is not Split.ALL]
    return GradedPairs(
        "STS-B",
        tuple(text for part in parts for text in part.first),
        tuple(text for part in parts for text in part.second),
        np.concatenate([part.gold for part in parts]),
    )
