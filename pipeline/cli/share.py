"""`sightline cache`: diff, export and import sets, and convert formats."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.options import JSON, OUT, print_json
from pipeline.cli.sets import SET
from sightline.wording import counted, in_bytes

_FILE = Annotated[Path, typer.Option("--out", help="File to write.", show_default=False)]
_TEXTS = Annotated[Path, typer.Option(help="Captions, one per line, aligned with the rows.")]
_MANIFESTS = Annotated[
    Path, typer.Option("--dataset", help="Folder for (or of) its manifests.", show_default=False)
]
_SOURCE = Annotated[
    str, typer.Option(help="What computed the rows; stored as the record's source.")
]


class Format(StrEnum):
    """Values of ``cache export --format``."""

    TAR = "tar"
    PARQUET = "parquet"
    NPY = "npy"


class ImportKind(StrEnum):
    """Values of ``cache import --kind``."""

    IMAGE = "image"
    TEXT = "text"
    TEACHER = "teacher"


def diff(a: SET, b: SET, as_json: JSON = False) -> None:
    """Show the rows that a set has gained, lost and changed.

    Example: sightline cache diff features/old features/new
    """
    from sightline.cache.diff import compare

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


def export_set(
    path: SET,
    out: Annotated[
        Path, typer.Option("--out", help="File (tar) or folder to write.", show_default=False)
    ],
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="tar: any set, one file. The others: features, a folder for other tools and hubs.",
        ),
    ] = Format.TAR,
    dataset: Annotated[
        Path | None,
        typer.Option(help="Prepared data set; adds image_path or caption to the rows."),
    ] = None,
    normalise: Annotated[
        bool, typer.Option("--normalise", help="Divide every row by its length.")
    ] = False,
    licence: Annotated[
        str | None,
        typer.Option(help="Licence of the features for the card, such as cc-by-4.0."),
    ] = None,
) -> None:
    """Write a set for others: as a tar, or features as Parquet or npy.

    Example: sightline cache export data/features/scenes/image/clip --format parquet
    --out clip-of-scenes
    """
    from sightline.cache.archive import export_set as export

    if form is Format.TAR:
        _only_with("another --format", dataset=dataset, normalise=normalise, licence=licence)
        print(f"{out}: {in_bytes(export(path, out))}")
        return
    from pipeline.interchange.export import export_features
    from pipeline.provenance import described, licence_note

    note = licence_note(path)
    done = export_features(
        path,
        out,
        "parquet" if form is Format.PARQUET else "npy",
        lambda record: described(record, note),
        dataset=dataset,
        normalise=normalise,
        licence=licence,
    )
    parts = counted(done.rows, "row"), counted(done.files, "file"), in_bytes(done.bytes)
    print(f"{out}: {', '.join(parts)}")
    if done.unnamed:
        print(f"{done.unnamed:,} rows are not in {dataset}; their name is empty")


def import_set(
    source: Annotated[
        Path,
        typer.Argument(help="A tar, a folder or a file; see below.", show_default=False),
    ],
    out: OUT,
    images: Annotated[
        Path | None, typer.Option(help="Images that the metadata names: folder or manifest.")
    ] = None,
    kind: Annotated[ImportKind | None, typer.Option(help="What the rows describe.")] = None,
    features: Annotated[
        str | None, typer.Option(help="Array of an .npz, or column of a table, of the features.")
    ] = None,
    names: Annotated[
        str | None, typer.Option(help="Column that names the images, or holds the texts.")
    ] = None,
    source_note: Annotated[
        str | None, typer.Option("--source", help="What computed the rows, for the record.")
    ] = None,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Leave out rows whose image is not there.")
    ] = False,
) -> None:
    """Make a set from a tar of `cache export`, or from features in the files of other tools.

    Recognises tars, clip-retrieval's folders, DataComp's .npz beside .parquet, and Parquet or Arrow
    tables with a column of features.

    Example: sightline cache import embeddings --images photos --out features/clip
    """
    from pipeline.interchange.foreign import SUFFIXES
    from pipeline.interchange.import_rows import ImportOptions, import_rows

    archive = source.suffix == ".tar" or (source.is_file() and source.suffix not in SUFFIXES)
    options = ImportOptions(
        images=images,
        kind=None if kind is None else kind.value,
        features=features,
        names=names,
        source=source_note,
        allow_missing=allow_missing,
    )
    if archive:
        _only_with("the files of other tools", **asdict(options))
        _import_archive(source, out)
        return
    found = import_rows(source, out, options)
    spec = found.record.spec
    length = "normalised" if spec.normalised else "not normalised"
    print(
        f"{out}: {counted(found.record.rows, 'row')} of {spec.dim:,} {spec.dtype}, "
        f"kind {spec.kind}, {length}, from {found.form}; {found.record.provenance}"
    )
    if found.missing:
        print(f"{counted(found.missing, 'row')} left out: their {spec.kind} is missing")
    if found.trimmed:
        print(f"white space around {counted(found.trimmed, 'text')} left out, as in every data set")
    if found.repeated:
        print(
            f"{counted(found.repeated, 'row')} left out: an earlier row describes the same "
            f"{spec.kind}; {found.contradicting:,} of them hold other numbers than it"
        )
    if found.record.failed:
        print(f"{counted(found.record.failed, 'row')} without a value")
    print(f"check it: sightline cache verify {out} --recompute 20 --inputs … --encoder …")


def _import_archive(archive: Path, out: Path) -> None:
    from sightline.cache.archive import import_set as unpack
    from sightline.cache.record import NAMES

    record = unpack(archive, out)
    size = in_bytes(record.size)
    print(f"{out}: {NAMES[record.spec.kind]}, {counted(len(record.files), 'file')}, {size}")


def _only_with(what: str, **given: object) -> None:
    """Misuse (exit code 2) of options that are for something else."""
    used = [f"--{name.replace('_', '-')}" for name, value in given.items() if value]
    if used:
        raise typer.BadParameter(f"{', '.join(used)}: only used with {what}")


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

    record, report = import_features(features, texts, dataset, out, source)
    print(f"{out}: {counted(record.rows, 'image')}")
    print(f"{dataset}: {report.summary()}")


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

    pictures, captions, report = import_features(path, dataset, images, texts, source)
    print(f"{images}: {counted(pictures.rows, 'image')}")
    print(f"{texts}: {counted(captions.rows, 'caption')}")
    print(f"{dataset}: {report.summary()}")


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
