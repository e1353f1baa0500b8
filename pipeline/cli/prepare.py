"""`sightline prepare`: turn a data set into manifests, with explicit paths."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.cli.options import JSON, MOST_SEED, OUT, first_mistake, pairs_of, print_json

app = typer.Typer(help="Turn a data set into manifests.", no_args_is_help=True)

_IMAGES = Annotated[Path, typer.Option(help="Folder of images.")]
_STRICT = Annotated[bool, typer.Option("--strict", help="Treat every problem as an error.")]
_SPLITS = Annotated[
    list[str], typer.Option(help="NAME=FILE listing the images of a split; repeatable.")
]
_KARPATHY = Annotated[
    Path | None, typer.Option(help="Karpathy's JSON: splits, and captions without --captions.")
]


@app.command()
def pairs(
    images: _IMAGES,
    out: OUT,
    captions: Annotated[
        Path | None,
        typer.Option(help="name.jpg#k<TAB>caption, or CSV, TSV or JSONL with a header."),
    ] = None,
    splits: _SPLITS = [],  # noqa: B006
    karpathy: _KARPATHY = None,
    strict: _STRICT = False,
    as_json: JSON = False,
) -> None:
    """Any folder of images with their captions, and splits from lists or Karpathy's JSON.

    Example: sightline prepare pairs --images photos --captions captions.csv --out data/mine
    """
    _prepare_pairs("pairs", images, captions, splits, karpathy, strict, out, as_json)


@app.command()
def flickr30k(
    images: _IMAGES,
    out: OUT,
    captions: Annotated[Path | None, typer.Option(help="results_20130124.token")] = None,
    splits: _SPLITS = [],  # noqa: B006
    karpathy: _KARPATHY = None,
    strict: _STRICT = False,
    as_json: JSON = False,
) -> None:
    """Flickr30k: as `pairs`, with splits and its licence.

    Example: sightline prepare flickr30k --images flickr30k-images
    --captions results_20130124.token --splits train=train.txt --splits dev=val.txt
    --splits test=test.txt --out data/flickr30k
    """
    _prepare_pairs("flickr30k", images, captions, splits, karpathy, strict, out, as_json)


def _prepare_pairs(
    kind: str,
    images: Path,
    captions: Path | None,
    splits: list[str],
    karpathy: Path | None,
    strict: bool,
    out: Path,
    as_json: bool,
) -> None:
    given = {
        "images": images,
        "captions": captions,
        "splits": pairs_of(splits, "--splits") or None,
        "karpathy": karpathy,
        "strict": strict,
    }
    _prepare(kind, given, out, as_json)


@app.command()
def coco(
    images: _IMAGES,
    out: OUT,
    captions: Annotated[
        list[str], typer.Option(help="SPLIT=FILE, as in train=captions_train2017.json; repeatable.")
    ] = [],  # noqa: B006
    karpathy: Annotated[
        Path | None, typer.Option(help="dataset_coco.json, with a test split, instead of captions.")
    ] = None,
    restval: Annotated[
        bool, typer.Option("--restval", help="Train on Karpathy's restval images as well.")
    ] = False,
    folders: Annotated[
        list[str], typer.Option(help="Subfolder of images to search; repeatable; default: all.")
    ] = [],  # noqa: B006
    strict: _STRICT = False,
    as_json: JSON = False,
) -> None:
    """MS COCO captions, COCO's own or with Karpathy's splits.

    Example: sightline prepare coco --images coco --captions train=captions_train2017.json
    --out data/coco
    """
    given = {
        "images": images,
        "captions": pairs_of(captions, "--captions"),
        "karpathy": karpathy,
        "restval": restval,
        "folders": folders or None,
        "strict": strict,
    }
    _prepare("coco", given, out, as_json)


@app.command()
def webdataset(
    images: Annotated[Path, typer.Option(help="Folder of the shards.")],
    out: OUT,
    shards: Annotated[
        str | None,
        typer.Option(help="Which files below it, such as '{00000..01242}.tar'; default: '*.tar'."),
    ] = None,
    splits: Annotated[
        list[str],
        typer.Option(help="NAME=PATTERN, the shards of a split; repeatable."),
    ] = [],  # noqa: B006
    caption_field: Annotated[
        str | None,
        typer.Option(help="Field of KEY.json with the caption or a list; default: KEY.txt."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Read only this many images.")] = None,
    strict: _STRICT = False,
    as_json: JSON = False,
) -> None:
    """WebDataset shards, as img2dataset writes them; nothing is unpacked.

    Example: sightline prepare webdataset --images cc12m --shards '{00000..00099}.tar'
    --out data/cc12m
    """
    given = {
        "images": images,
        "shards": shards,
        "splits": pairs_of(splits, "--splits") or None,
        "caption_field": caption_field,
        "limit": limit,
        "strict": strict,
    }
    _prepare("webdataset", given, out, as_json)


@app.command()
def huggingface(
    out: OUT,
    path: Annotated[
        Path | None, typer.Option(help="Folder of save_to_disk, or of Parquet or Arrow files.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name on the hub, instead of a path.")] = None,
    revision: Annotated[str | None, typer.Option(help="Of the named data set.")] = None,
    config: Annotated[str | None, typer.Option(help="One of its configurations.")] = None,
    image: Annotated[str, typer.Option(help="Column of images.")] = "image",
    caption: Annotated[str, typer.Option(help="Column of captions, or of lists of them.")] = (
        "caption"
    ),
    splits: Annotated[
        list[str],
        typer.Option(help="NAME=SPLIT, as in dev=validation; repeatable."),
    ] = [],  # noqa: B006
    split_column: Annotated[
        str | None, typer.Option(help="Column with the split of each row.")
    ] = None,
    images: Annotated[
        Path | None, typer.Option(help="Folder that the paths in a column of paths start from.")
    ] = None,
    strict: _STRICT = False,
    as_json: JSON = False,
) -> None:
    """A Hugging Face data set with a column of images and one of captions.

    Example: sightline prepare huggingface --path flickr30k --caption captions --out data/flickr30k
    """
    given = {
        "name": name,
        "revision": revision,
        "config": config,
        "image": image,
        "caption": caption,
        "splits": pairs_of(splits, "--splits") or None,
        "split_column": split_column,
        "images": images,
        "strict": strict,
        **({} if path is None else {"path": path}),
    }
    _prepare("huggingface", given, out, as_json)


@app.command()
def sentences(
    path: Annotated[Path, typer.Option(help="A UTF-8 text file, one sentence per line.")],
    out: OUT,
    as_json: JSON = False,
) -> None:
    """Plain sentences, one per line, such as Wiki1M.

    Example: sightline prepare sentences --path wiki1m_for_simcse.txt --out data/wiki
    """
    _prepare("sentences", {"path": path}, out, as_json)


@app.command()
def joined(
    parts: Annotated[
        list[str], typer.Option(help="NAME=FOLDER with the manifests of a data set; repeatable.")
    ],
    images: Annotated[
        list[str], typer.Option(help="NAME=FOLDER, the base of its image paths; repeatable.")
    ],
    out: OUT,
    as_json: JSON = False,
) -> None:
    """Join several prepared data sets of pairs.

    Example: sightline prepare joined --parts flickr=data/flickr30k --images flickr=flickr30k-images
    --parts coco=data/coco --images coco=coco --out data/flickr30k-coco
    """
    given = {"parts": pairs_of(parts, "--parts"), "images": pairs_of(images, "--images")}
    _prepare("joined", given, out, as_json)


@app.command()
def scenes(
    out: OUT,
    count: Annotated[
        int | None,
        typer.Option("--scenes", min=1, help="Images to draw; default: 3,000, as in the demo."),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=MOST_SEED, help="Seed for drawing and training.")
    ] = 0,
    as_json: JSON = False,
) -> None:
    """Draw the built-in demo data and train its small encoders on it.

    Example: sightline prepare scenes --scenes 200 --out data/scenes
    """
    given = {"seed": seed} if count is None else {"scenes": count, "seed": seed}
    _prepare("scenes", given, out, as_json)


def _prepare(kind: str, given: dict[str, Any], out: Path, as_json: bool) -> None:
    from pydantic import ValidationError

    from pipeline.datasets.kinds import prepare, source_type
    from pipeline.datasets.source import DatasetError
    from sightline.progress import PhaseProgress

    try:
        source = source_type(kind).model_validate(given)
    except ValidationError as error:
        raise DatasetError(f"{kind}: {first_mistake(error)}") from error
    report = prepare(kind, source, out, PhaseProgress())
    if as_json:
        counts = {"counts": report.counts, "problem_counts": report.problem_counts}
        print_json({**counts, "shards": report.shards} if report.shards else counts)
        return
    print(f"{out}: {report.summary()}")
    if report.problems:
        print(f"  all are listed in {out / 'dataset.json'}")
