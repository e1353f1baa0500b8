"""`sightline cache`: diff, export and import sets, also in the formats of other tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import Annotated, Literal

import typer

from pipeline.cli.model_options import takes
from pipeline.cli.options import JSON, OUT, of_dataset, place, print_json, set_folder
from pipeline.interchange.feature_layouts import ImportOptions
from sightline.files.places import is_url, shown
from sightline.wording import counted, in_bytes

SET = Annotated[
    Path,
    typer.Argument(metavar="SET", help="A set, or its URL.", parser=set_folder, show_default=False),
]
_TOOLS, _TAR = "the files of other tools", "a tar"
_FOR_HUBS = ("--data", "--normalise", "--licence")
_EXPORT_TAKES = {
    "tar": (),
    "parquet": _FOR_HUBS,
    "npy": _FOR_HUBS,
}
_IMPORT_TAKES = {
    _TAR: (),
    _TOOLS: ("--data", "--kind", "--features", "--names", "--source", "--allow-missing"),
    "mcse": ("--data", "--texts", "--source"),
}
"""Format → the options that it has besides --out."""


def diff(a: SET, b: SET, as_json: JSON = False) -> None:
    """Show the rows that a set has gained, lost and changed.

    Example: sightline cache diff features/old features/new
    """
    from sightline.cache.diff import compare

    difference = compare(a, b)
    if as_json:
        print_json(asdict(difference))
        return
    print("\n".join(difference.lines()))


def export_set(
    path: SET,
    out: Annotated[
        Path,
        typer.Option(
            help="File (tar) or its URL, or folder to write.",
            show_default=False,
            parser=place,
            metavar="<path>",
        ),
    ],
    form: Annotated[
        Literal["tar", "parquet", "npy"],
        typer.Option(
            "--format",
            help="tar: any set, one file. parquet, npy: features, a folder for other tools and "
            "hubs.",
        ),
    ] = "tar",
    data: Annotated[
        Path | None,
        of_dataset("Prepared data set, or its URL; it names the rows."),
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
    options = {"--data": data, "--normalise": normalise, "--licence": licence}
    _only(form, _EXPORT_TAKES[form], options)
    if form == "tar":
        from sightline.cache.archive import export_set as export

        print(f"{shown(out)}: {in_bytes(export(path, out))}")
    else:
        _require_here(out, "--out")
        from pipeline.interchange.export import export_features
        from pipeline.provenance import about, described

        done = export_features(
            path,
            out,
            form,
            lambda record: described(about(path, record)),
            dataset=data,
            normalise=normalise,
            licence=licence,
        )
        parts = counted(done.rows, "row"), counted(done.files, "file"), in_bytes(done.bytes)
        print(f"{out}: {', '.join(parts)}")
        if done.unnamed:
            print(f"{done.unnamed:,} rows are not in {data}; their name is empty")


@takes("options", ImportOptions, panel="Data")
def import_set(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="A tar or its URL, a folder or a file; see below.",
            show_default=False,
            parser=place,
        ),
    ],
    out: OUT,
    form: Annotated[
        Literal["mcse"] | None,
        typer.Option(
            "--format",
            help="mcse: an HDF5 file beside --texts; default: recognised.",
            show_default=False,
        ),
    ] = None,
    texts: Annotated[
        Path | None, typer.Option(help="For mcse: captions, one per line, aligned with the rows.")
    ] = None,
    *,
    options: ImportOptions,
) -> None:
    """Make a set from a tar of `cache export`, or from features in the files of other tools.

    Recognises by their content tars, clip-retrieval's folders, DataComp's .npz beside .parquet,
    Parquet, Arrow and Feather with a column of features, and .npz, safetensors and HDF5 with names.
    The files of MCSE become a data set as well.

    Example: sightline cache import embeddings --kind image --data photos --out features/clip
    """
    from pipeline.interchange.row_arrays import kind_of_rows

    content = kind_of_rows(source) if not is_url(source) and source.is_file() else None
    suffix = PurePath(shown(source)).suffix.lower()
    archive = content == "tar" or (content is None and suffix == ".tar")
    if not archive:
        _require_here(source, "SOURCE")
    layout = form or (_TAR if archive else _TOOLS)
    data, note = options.data, options.source
    values = {f"--{name.replace('_', '-')}": value for name, value in options}
    values["--texts"] = texts
    _only(layout, _IMPORT_TAKES[layout], values)
    if form == "mcse":
        from pipeline.interchange.mcse_files import import_mcse

        note, dataset = note or "an HDF5 file in MCSE's form", _needed(data, "--data")
        record, report = import_mcse(source, _needed(texts, "--texts"), dataset, out, note)
        print(f"{out}: {counted(record.rows, 'image')}\n{dataset}: {report.summary()}")
    elif archive:
        from sightline.cache.archive import import_set as unpack
        from sightline.cache.record import set_of_kind

        record = unpack(source, out)
        kind = set_of_kind(record.spec.kind)
        parts = kind, counted(len(record.files), "file"), in_bytes(record.size)
        print(f"{out}: {', '.join(parts)}")
    else:
        from pipeline.interchange.import_rows import import_rows

        print("\n".join(import_rows(source, out, options).lines(out)))
        print(f"check it: sightline extract … --out {out} --check 20")


def _require_here(path: Path | str, hint: str) -> None:
    if is_url(path):
        fault = f"{shown(path)}: a URL, which only the tar of a set may have"
        raise typer.BadParameter(f"{fault}; give a path", param_hint=hint)


def _only(layout: str, takes: tuple[str, ...], options: Mapping[str, object]) -> None:
    """Misuse (exit code 2) of options that are for another format."""
    if used := [option for option, value in options.items() if value and option not in takes]:
        has = f"has {', '.join(takes)}" if takes else "has no such options"
        raise typer.BadParameter(f"{layout} {has}", param_hint=" and ".join(used))


def _needed(value: Path | None, option: str) -> Path:
    if value is None:
        raise typer.BadParameter("this format needs it", param_hint=option)
    return value
