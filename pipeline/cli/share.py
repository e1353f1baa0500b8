"""`sightline cache`: diff, export and import sets, and convert formats."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.options import JSON, OUT, print_json
from pipeline.cli.sets import SET, readable_size

_FILE = Annotated[Path, typer.Option("--out", help="File to write.", show_default=False)]
_TEXTS = Annotated[Path, typer.Option(help="Captions, one per line, aligned with the rows.")]
_MANIFESTS = Annotated[
    Path, typer.Option("--dataset", help="Folder for (or of) its manifests.", show_default=False)
]
_SOURCE = Annotated[
    str, typer.Option(help="What computed the rows; stored as the record's source.")
]


def diff(a: SET, b: SET, as_json: JSON = False) -> None:
    """Show the rows that a set has gained, lost and changed.

    Example: sightline cache diff features/old features/new
    """
    from pipeline.cache.diff import compare

    found = compare(a, b)
    if as_json:
        print_json(asdict(found))
        return
    for line in found.why:
        print(f"  {line}")
    print(
        f"{found.added:,} added, {found.gone:,} removed, {found.changed:,} changed, "
        f"{found.same:,} unchanged"
    )
    if found.changed:
        print(f"largest cosine change {found.largest_change:.3g}, key {found.changed_most}")
    if found.added_failures or found.gone_failures:
        print(f"failed rows: {found.added_failures:,} added, {found.gone_failures:,} removed")


def export_set(path: SET, out: _FILE) -> None:
    """Write a set to one tar file with the SHA-256 of every file in it.

    Example: sightline cache export data/features/scenes/image/clip --out clip.tar
    """
    from pipeline.cache.archive import export_set as export

    print(f"{out}: {export(path, out) / 1e6:,.1f} MB")


def import_set(
    archive: Annotated[Path, typer.Argument(help="A tar from `cache export`.", show_default=False)],
    out: OUT,
) -> None:
    """Unpack a tar from `cache export` into a new set, completely or not at all.

    Example: sightline cache import clip.tar --out data/features/scenes/image/clip
    """
    from pipeline.cache.archive import import_set as unpack
    from pipeline.cache.record import NAMES

    record = unpack(archive, out)
    size = readable_size(record.size)
    print(f"{out}: {NAMES[record.spec.kind]}, {len(record.files)} files, {size}")


def import_mcse(
    features: Annotated[
        Path, typer.Argument(help="MCSE's file, such as flickr.hdf5.", show_default=False)
    ],
    texts: _TEXTS,
    dataset: _MANIFESTS,
    out: OUT,
    source: _SOURCE = "an HDF5 file in MCSE's form",
) -> None:
    """Make manifests and a feature set from MCSE's HDF5 file and captions.

    Example: sightline cache import-mcse flickr.hdf5 --texts flickr_random_captions.txt
    --dataset data/datasets/mcse --out data/features/mcse/image/resnet50
    """
    from pipeline.interchange.mcse import import_mcse as import_features

    record = import_features(features, texts, dataset, out, source)
    print(f"{out}: {record.rows:,} images; captions and images: {dataset}")


def import_kdmcse(
    path: Annotated[Path, typer.Argument(help="KDMCSE's file, such as flickr30k_ViT_L14.json.")],
    dataset: _MANIFESTS,
    images: Annotated[Path, typer.Option(help="Image feature set to write.")],
    texts: Annotated[Path, typer.Option(help="Caption feature set to write.")],
    source: _SOURCE = "a JSON file in KDMCSE's form",
) -> None:
    """Make manifests and two feature sets from KDMCSE's JSON, read one image at a time.

    Example: sightline cache import-kdmcse flickr30k_ViT_L14.json --dataset data/datasets/kdmcse
    --images data/features/kdmcse/image/clip --texts data/features/kdmcse/text/clip
    """
    from pipeline.interchange.kdmcse import import_kdmcse as import_features

    pictures, captions = import_features(path, dataset, images, texts, source)
    print(f"{images}: {pictures.rows:,} images; {texts}: {captions.rows:,} captions")


def export_mcse(
    path: SET,
    dataset: _MANIFESTS,
    out: _FILE,
    texts: Annotated[Path, typer.Option(help="Text file to write, one caption per line.")],
    split: Annotated[str, typer.Option(help="Split of the captions.")] = "train",
) -> None:
    """Write an image feature set and its captions in MCSE's format.

    Example: sightline cache export-mcse data/features/scenes/image/clip
    --dataset data/datasets/scenes --out scenes.hdf5 --texts scenes_captions.txt
    """
    from pipeline.interchange.mcse import export_mcse as export_features

    print(f"{out}: {export_features(dataset, path, out, texts, split):,} rows and lines")
