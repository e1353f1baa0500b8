"""`sightline look space`: the embedding spaces of several models, in figures and numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from pipeline.cli.options import DEVICE, JSON, MODELS, MOST_SEED, OUT, POOLING, models_of

_TITLE = "Embedding spaces"


def space(
    pairs: Annotated[
        Path,
        typer.Option(help="TSV of graded pairs, or SentEval's `downstream` folder, for STS-B."),
    ],
    out: OUT,
    models: MODELS = None,
    split: Annotated[
        Literal["train", "dev", "test", "all"] | None,
        typer.Option(help="Of STS-B; `all` is every split.", show_default="dev"),
    ] = None,
    sentences: Annotated[
        Path | None,
        typer.Option(
            help="Sentences of the map: a TSV with the header group, sentence; default: those of "
            "--pairs."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Prepared data set whose captions are the sentences of the map."),
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
    as_json: JSON = False,
) -> None:
    """Draw models' embedding spaces: alignment and uniformity, clusters, cosines, singular values.

    Example: sightline look space --model runs/simcse/seed-0 --model runs/mcse-clip/seed-0
    --pairs senteval/downstream --out space
    """
    sources = models_of(models)
    if split is not None and not pairs.is_dir():
        raise typer.BadParameter(
            f"{pairs} is not SentEval's folder, and has no splits; leave it out",
            param_hint="--split",
        )
    if data is not None and sentences is not None:
        raise typer.BadParameter("give one of them", param_hint="--data and --sentences")
    from sightline.cache.prepared import PreparedDataset
    from sightline.extras import require
    from sightline.progress import progress

    require("matplotlib", "a chart")
    from train.evaluate.models import EvaluatedModel, name_models
    from train.evaluate.similarity import sentences_of
    from train.evaluate.space import MapSentences, MapSettings, SpaceStudy, read_map_sentences
    from train.evaluate.sts import load_graded_pairs
    from train.report.render import show
    from train.report.space_page import check_output, document_of, write_geometry

    if data is not None:
        sentences = PreparedDataset.open(data).captions_manifest
    named = name_models(sources)
    inputs = [pairs, *([sentences] if sentences is not None else [])]
    inputs += [Path(model.source) for model in named]
    check_output(out, inputs)
    graded = load_graded_pairs(pairs, split or "dev")
    if sentences is None:
        drawn = MapSentences.draw(graded.name, list(sentences_of([graded])), limit, seed)
    else:
        drawn = read_map_sentences(sentences, limit, seed)
    study = SpaceStudy(graded, drawn, MapSettings(clusters, perplexity, seed))
    with progress("space", len(named), "models") as advance:
        for names in named:
            model = EvaluatedModel.load(names.source, pooling, device)
            model.encode_once(study.every_sentence())
            study.add(names.name, model.encode)
            advance(1)
    files = write_geometry(study, _TITLE, out, inputs)
    show(document_of(study, _TITLE, {}), "json" if as_json else "terminal")
    for file in () if as_json else files:
        print(file)
