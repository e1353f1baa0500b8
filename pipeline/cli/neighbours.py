"""`sightline neighbours`: the nearest captions and images of sentences under several models."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.options import DEVICE, JSON, MODELS, MOST_SEED, POOLING, models_of
from sightline.errors import SightlineError


def neighbours(
    captions: Annotated[Path, typer.Option(help="The captions manifest to find neighbours in.")],
    sentences: Annotated[
        list[str] | None, typer.Argument(metavar="[SENTENCE]...", help="Sentences to start from.")
    ] = None,
    models: MODELS = None,
    queries: Annotated[
        Path | None, typer.Option(dir_okay=False, help="File with a sentence on each line.")
    ] = None,
    sample: Annotated[
        int, typer.Option(min=0, help="Also start from this many captions, drawn at random.")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Of --sample.")] = 0,
    split: Annotated[
        str | None, typer.Option(help="Only captions and images of this split; default: all.")
    ] = None,
    k: Annotated[int, typer.Option("--k", min=1, help="Neighbours of each sentence.")] = 5,
    images_manifest: Annotated[
        Path | None, typer.Option(help="The images manifest that the captions belong to.")
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(help="Base folder of its paths; with it the page shows the photographs."),
    ] = None,
    to_images: Annotated[
        bool,
        typer.Option("--to-images", help="Also the nearest images, by the heads of each run."),
    ] = False,
    features: Annotated[
        Path | None,
        typer.Option(
            help="Image features: one set, or the folder that holds those of each run.",
            show_default="data/features",
        ),
    ] = None,
    pooling: POOLING = None,
    device: DEVICE = "auto",
    out: Annotated[
        Path | None, typer.Option("--out", dir_okay=False, help="HTML file to write as well.")
    ] = None,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "Nearest neighbours",
    side: Annotated[
        int, typer.Option(min=32, max=1024, help="Longer side of a photograph, in pixels.")
    ] = 160,
    as_json: JSON = False,
) -> None:
    """Find the captions nearest to a sentence under several models, side by side.

    Example: sightline neighbours "a dog runs" --model runs/simcse/seed-0 --model
    runs/mcse-clip/seed-0 --captions data/datasets/scenes/captions.parquet
    """
    sources = models_of(models)
    if not sentences and queries is None and not sample:
        raise typer.BadParameter("give a sentence, --queries FILE or --sample N")
    for needed, option in ((to_images, "--to-images"), (root is not None, "--root")):
        if needed and images_manifest is None:
            raise typer.BadParameter(f"{option} needs it", param_hint="--images-manifest")
    from pipeline import graph
    from pipeline.grounding.pictures import thumbnails
    from sightline.output import check_output_file, write_file
    from sightline.progress import progress
    from train.evaluate.caption_pool import read_pool, read_queries
    from train.evaluate.models import load_each, name_models, open_features
    from train.evaluate.neighbours import find_captions, find_images, read_images
    from train.evaluate.results import ModelNeighbours
    from train.report.neighbours import SCHEMA, document_of, shown_images
    from train.report.render import show, to_file

    named = name_models(sources)
    given = (captions, queries, images_manifest, root, features)
    inputs = [path for path in given if path is not None]
    inputs += [Path(each.source) for each in named]
    if out is not None:
        check_output_file(out, SCHEMA.encode(), inputs)
    pool = read_pool(captions, split)
    asked = list(
        dict.fromkeys([*read_queries(sentences or [], queries), *pool.sample(sample, seed)])
    )
    images = None if images_manifest is None else read_images(images_manifest, split)
    own = tuple(pool.images_of(each) for each in asked)
    within = f"{len(pool):,} distinct captions of {captions.name}"
    within += f", split {split!r}" if split is not None else ""
    found: dict[str, ModelNeighbours] = {}
    place = features or graph.FEATURES
    with progress("neighbours", len(named), "models") as advance:
        for each, model in load_each(named, pooling, device):
            texts, pictures = find_captions(model, asked, pool, k), None
            if to_images:
                assert images is not None
                own_features = partial(open_features, model=model, place=place)
                pictures = find_images(model, asked, own, images, own_features, k)
            answer = ModelNeighbours(tuple(asked), own, within, k, texts, pictures)
            found[each.name] = answer
            advance(1)
    if to_images and all(each.pictures and each.pictures.reason for each in found.values()):
        reasons = {name: each.pictures.reason for name, each in found.items() if each.pictures}
        why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise SightlineError(
            f"--to-images: no model can find images ({why}); give the folder of a finished run "
            "that learned from images, such as runs/mcse-clip/seed-0, or leave the option out"
        )
    show(document_of(found, title), "json" if as_json else "terminal")
    if out is not None:
        shown = None
        if root is not None and images_manifest is not None:
            shown = thumbnails(images_manifest, root, shown_images(found), side=side)
        page = to_file(document_of(found, title, shown), "html")
        write_file(out, page, SCHEMA.encode(), inputs)
        print(f"{out}: written, {len(page) / 1e6:.1f} MB", file=sys.stderr)
