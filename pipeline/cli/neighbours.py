"""`sightline neighbours`: the nearest captions and images of sentences under several models."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import DEVICE, JSON, MODELS, MOST_SEED, POOLING, models_of, print_json
from sightline.errors import SightlineError

if TYPE_CHECKING:
    from pipeline.grounding.gallery.thumbnails import ManifestImages
    from train.evaluate.caption_pool import CaptionPool
    from train.evaluate.evaluated_model import EvaluatedModel
    from train.report.neighbours import Found


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
    from rich.console import Console

    from pipeline import graph
    from pipeline.grounding.gallery.thumbnails import ManifestImages
    from sightline.output_file import check_output_file, write_file
    from sightline.progress import progress
    from train.evaluate.caption_pool import read_pool, read_queries
    from train.evaluate.named_models import load_each, name_models
    from train.report.neighbours import Sides, print_neighbours, shown_images
    from train.report.neighbours_page import MARK, Thumbnail, page_of, with_pictures

    named = name_models(sources)
    given = (captions, queries, images_manifest, root, features)
    inputs = [path for path in given if path is not None]
    inputs += [Path(each.source) for each in named]
    if out is not None:
        check_output_file(out, MARK, inputs)
    pool = read_pool(captions, split)
    asked = list(
        dict.fromkeys([*read_queries(sentences or [], queries), *pool.sample(sample, seed)])
    )
    images = None if images_manifest is None else ManifestImages.read(images_manifest)
    own = tuple(pool.images_of(each) for each in asked)
    texts: dict[str, Found] = {}
    pictures: dict[str, Found] = {}
    with progress("neighbours", len(named), "models") as advance:
        for each, model in load_each(named, pooling, device):
            name = each.name
            texts[name] = _nearest_captions(model, asked, pool, k)
            if to_images:
                assert images is not None
                place = features or graph.FEATURES
                pictures[name] = _nearest_images(model, asked, own, images, split, place, k)
            advance(1)
    if to_images and all(found.reason for found in pictures.values()):
        why = "; ".join(f"{name}: {found.reason}" for name, found in pictures.items())
        raise SightlineError(
            f"--to-images: no model can find images ({why}); give the folder of a finished run "
            "that learned from images, such as runs/mcse-clip/seed-0, or leave the option out"
        )
    within = f"{len(pool):,} distinct captions of {captions.name}"
    within += f", split {split!r}" if split is not None else ""
    names = tuple(each.name for each in named)
    sides = Sides(tuple(asked), own, names, texts, pictures, within, k)
    pictures_of = None
    if root is not None and images is not None and (as_json or out is not None):
        thumbnails = images.thumbnails(shown_images(sides), root, side)
        pictures_of = {image: Thumbnail(*each) for image, each in thumbnails.items()}
    if as_json:
        print_json(sides.to_json() | with_pictures(pictures_of))
    else:
        print_neighbours(sides, Console(width=None if sys.stdout.isatty() else 100))
    if out is not None:
        page = page_of(sides, title, pictures_of)
        write_file(out, page, MARK, inputs)
        print(f"{out}: written, {len(page) / 1e6:.1f} MB", file=sys.stderr)


def _nearest_captions(model: EvaluatedModel, asked: list[str], pool: CaptionPool, k: int) -> Found:
    from train.evaluate.neighbours import nearest
    from train.report.neighbours import found_captions

    model.encode_once([*pool.texts, *asked])
    itself = {row: pool.row_of[each] for row, each in enumerate(asked) if each in pool.row_of}
    found = nearest(model.encode(asked), model.encode(pool.texts), k, itself)
    return found_captions(found, pool, [pool.images_of(each) for each in asked])


def _nearest_images(
    model: EvaluatedModel,
    asked: list[str],
    own: tuple[tuple[str, ...], ...],
    images: ManifestImages,
    split: str | None,
    features: Path,
    k: int,
) -> Found:
    """Images in the grounded space; a model without heads says why it finds none."""
    from train.evaluate.evaluated_model import NoHeadsError, project
    from train.evaluate.image_space import image_space, open_features, rows_of_images
    from train.evaluate.neighbours import nearest
    from train.report.neighbours import Found, found_images

    try:
        space = image_space(model)
    except NoHeadsError as error:
        return Found(reason=str(error))
    ids, keys = images.of_split(split)
    rows, kept = rows_of_images(open_features(space, model, features), keys)
    queries = project(space.sentences, model.encode(asked))
    found = nearest(queries, project(space.images, rows), k)
    return found_images(found, [ids[i] for i in kept], own)
