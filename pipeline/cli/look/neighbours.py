"""`sightline look neighbours`: the nearest captions and images of sentences."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import DATA, DEVICE, JSON, MODELS, POOLING, models_of, seed_of
from sightline.errors import SightlineError

if TYPE_CHECKING:
    from train.evaluate.models import NamedModel
    from train.evaluate.pools import CaptionPool, ImagePool
    from train.evaluate.results import ModelNeighbours

_TITLE = "Nearest neighbours"
_SIDE = 160  # of a photograph on the page, in pixels


def neighbours(
    data: DATA,
    sentences: Annotated[
        list[str] | None, typer.Argument(metavar="SENTENCE", help="Sentences to start from.")
    ] = None,
    models: MODELS = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="Instead of --model: the frozen encoder of --features, whose text tower encodes "
            "the sentences, such as ViT-B-32."
        ),
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="Of --encoder: pretrained:TAG, file:PATH or random:SEED.")
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(dir_okay=False, help="File with a sentence on each line.")
    ] = None,
    sample: Annotated[
        int, typer.Option(min=0, help="Also start from this many captions, drawn at random.")
    ] = 0,
    seed: Annotated[
        int, typer.Option(parser=seed_of, metavar="<int>", help="Seed of --sample.")
    ] = 0,
    split: Annotated[
        str | None, typer.Option(help="Only captions and images of this split; default: all.")
    ] = None,
    k: Annotated[int, typer.Option(min=1, help="Neighbours of each sentence.")] = 5,
    to_images: Annotated[
        bool,
        typer.Option("--to-images", help="Also the nearest images, by the heads of each run."),
    ] = False,
    features: Annotated[
        Path | None,
        typer.Option(
            help="Image features: one set, or the folder that holds those of each run; default: "
            "those of --data in data/features.",
            show_default=False,
        ),
    ] = None,
    pooling: POOLING = None,
    device: DEVICE = "auto",
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="HTML file to write as well.")
    ] = None,
    no_photographs: Annotated[
        bool, typer.Option("--no-photographs", help="Leave the photographs off the page.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Find the captions nearest to a sentence under several models, side by side.

    With --encoder, find the images nearest to it by cached features, without a trained run.

    Example: sightline look neighbours "a dog runs" --model runs/simcse/seed-0 --model
    runs/mcse-clip/seed-0 --data data/datasets/scenes
    """
    if encoder is None:
        if weights is not None:
            raise typer.BadParameter("give it with --encoder", param_hint="--weights")
        models = models_of(models)
    elif models or pooling or to_images:
        hint = "a frozen encoder needs no --model, --pooling or --to-images"
        raise typer.BadParameter(hint, param_hint="--encoder")
    elif features is None or weights is None:
        raise typer.BadParameter("needs --features SET and --weights", param_hint="--encoder")
    if not sentences and queries is None and not sample:
        raise typer.BadParameter("give a sentence, --queries FILE or --sample N")
    from pipeline import layout
    from pipeline.grounding.page_pictures import thumbnails
    from sightline.cache.prepared import PreparedDataset
    from sightline.files.output import check_output_file, write_file
    from train.evaluate.models import name_models
    from train.evaluate.pools import read_images, read_pool, read_queries
    from train.evaluate.results import ModelNeighbours
    from train.report.formats import show, to_file
    from train.report.neighbour_tables import SCHEMA, document_of, shown_images

    dataset, runs = PreparedDataset.open(data), name_models(models or [])
    captions, manifest = dataset.captions_manifest, dataset.images_manifest
    inputs = [path for path in (captions, manifest, queries, features) if path is not None]
    inputs += [Path(model.source) for model in runs]
    if out is not None:
        check_output_file(out, SCHEMA.encode(), inputs)
    pool = read_pool(captions, split)
    starts = [*read_queries(sentences or [], queries), *pool.sample(sample, seed)]
    starts = tuple(dict.fromkeys(starts))
    where = dataset.folder.name + ("" if split is None else f", split {split!r}")
    truth = tuple(map(pool.images_of, starts))
    if encoder is None:
        question = ModelNeighbours(starts, truth, f"{len(pool):,} distinct captions of {where}", k)
        images = read_images(manifest, split) if to_images else None
        place = features or layout.FEATURES / dataset.folder.name
        answers, marks = _of_runs(
            runs, question, pool, images, place, dataset.folder, pooling, device
        )
    else:
        assert features is not None  # checked above
        assert weights is not None
        images = read_images(manifest, split)
        question = ModelNeighbours(starts, truth, f"{len(images.ids):,} images of {where}", k)
        answers, marks = _of_encoder(encoder, weights, question, pool, images, features, device)
    show(document_of(answers, _TITLE, marks), "json" if as_json else "terminal")
    if out is not None:
        shown = None
        if dataset.image_root is not None and not no_photographs:
            shown = thumbnails(manifest, dataset.image_root, shown_images(answers), side=_SIDE)
        page = to_file(document_of(answers, _TITLE, marks, shown), "html")
        write_file(out, page, SCHEMA.encode(), inputs)
        print(f"{out}: written, {len(page) / 1e6:.1f} MB", file=sys.stderr)


def _of_runs(
    runs: list[NamedModel],
    question: ModelNeighbours,
    pool: CaptionPool,
    images: ImagePool | None,
    features: Path,
    data: Path,
    pooling: str | None,
    device: str,
) -> tuple[dict[str, ModelNeighbours], dict[str, tuple[str, ...]]]:
    """The nearest captions by each model, and the nearest ``images`` by its heads; their marks."""
    from sightline.machine.progress import progress
    from train.evaluate.evaluation import unscored
    from train.evaluate.models import EvaluatedModel
    from train.evaluate.neighbours import find_captions, find_images

    answers_of: dict[str, ModelNeighbours] = {}
    marks_of: dict[str, tuple[str, ...]] = {}
    reasons: list[str] = []
    with progress("neighbours", len(runs), "models") as advance:
        for names in runs:
            model = EvaluatedModel.load(names.source, pooling, device)
            answers = replace(
                question, captions=find_captions(model, question.queries, pool, question.k)
            )
            if images is not None:
                pictures, notes = find_images(
                    model,
                    question.queries,
                    question.images,
                    images,
                    features,
                    data,
                    question.k,
                    captions=pool.captions_of_images(),
                )
                for note in notes:
                    print(f"{names.name}: {note}", file=sys.stderr)
                reasons += [f"{names.name}: {pictures.reason}"] if pictures.reason else []
                answers = replace(answers, pictures=pictures)
            answers_of[names.name] = answers
            marks_of[names.name] = unscored(model, names.run).marks
            advance(1)
    if len(reasons) == len(runs):
        raise SightlineError(
            f"--to-images: no model can find images ({'; '.join(reasons)}); give the folder of a "
            "finished run that learned from images, such as runs/mcse-clip/seed-0, or leave the "
            "option out"
        )
    return answers_of, marks_of


def _of_encoder(
    encoder: str,
    weights: str,
    question: ModelNeighbours,
    pool: CaptionPool,
    images: ImagePool,
    features: Path,
    device: str,
) -> tuple[dict[str, ModelNeighbours], dict[str, tuple[str, ...]]]:
    """The nearest images by a frozen encoder, whose image tower made ``features``; its marks."""
    from pipeline.encoders.encoder import checked_encoder
    from pipeline.encoders.names import named_encoder
    from sightline.cache import FeatureSet
    from sightline.devices import pick_device
    from train.evaluate.neighbours import find_images_by_rows
    from train.evaluate.results import UNTRAINED

    opened = FeatureSet.open(features)
    spec, config = opened.record.spec, named_encoder(encoder, weights, "text")
    if spec.kind != "image":
        raise SightlineError(f"{features}: features of kind {spec.kind}, expected kind image")
    config.require_files()
    tower = config.build_text(pick_device(device), "fp32")
    tower = checked_encoder(tower, config.build_text, "build_text")
    warning = None
    if spec.is_foreign:
        warning = f"{features} is {opened.record.provenance}: nothing says that {encoder} made it"
    elif (made_by := spec.encoder).weights_sha256 != tower.identity.weights_sha256 or (
        made_by.name != tower.identity.name
    ):
        raise SightlineError(
            f"{features}: made by {made_by.name}, {made_by.source}, not by "
            f"{tower.identity.name}, {tower.identity.source}; cosines of two models mean nothing: "
            "give the --encoder and --weights that it was extracted with"
        )
    if spec.dim != tower.dim:
        raise SightlineError(
            f"{features}: rows of {spec.dim} numbers, but {encoder} gives {tower.dim}; give the "
            "--encoder that made them"
        )
    rows = tower.encode_all(question.queries)
    pictures = find_images_by_rows(
        rows, question.images, images, opened, question.k, pool.captions_of_images()
    )
    name, pictures = f"{encoder}, {weights}", replace(pictures, warning=pictures.warning or warning)
    marks = (UNTRAINED,) if tower.identity.untrained else ()
    return {name: replace(question, pictures=pictures)}, {name: marks}
