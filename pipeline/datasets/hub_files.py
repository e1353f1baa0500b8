"""The files of a Hugging Face data set, by split, and their rows; runs no code of it."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow.dataset import ParquetFragmentScanOptions

from pipeline.datasets.source import DatasetError
from sightline.errors import first_lines
from sightline.extras import require
from sightline.loading import from_hub, quiet

_TABLES = ("parquet", "arrow")
_SAVED = ("dataset_dict.json", "state.json")
_FETCHED = ["*.parquet", "*.arrow", "README.md", *(f"*{name}" for name in _SAVED)]
_FETCHED += ["*dataset_info.json"]
_NUMBERED = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<rest>.*)")
_ROWS = 64  # a batch of photographs, a few megabytes


class ImageRow(NamedTuple):
    """One row of a data set.

    Attributes:
        data: bytes of the image; None if the row has a path, or nothing.
        path: of the image, as the row has it; empty if it has none.
        captions: its captions; empty if it has none.
        split: the row's entry in the split column; empty without one.
    """

    data: bytes | None
    path: str
    captions: list[str]
    split: str


class Columns(NamedTuple):
    """The columns to read.

    Attributes:
        image: binary, string, or a struct of ``bytes`` and ``path`` (`datasets.Image`).
        caption: a string or a list of strings.
        split: a string; None: there is no such column.
    """

    image: str
    caption: str
    split: str | None


def fetch(name: str, revision: str | None) -> Path:
    """The folder of a data set of the hub in this machine's cache; fetches what is missing there.

    Only Parquet and Arrow files and their descriptions are fetched. Nothing is with HF_HUB_OFFLINE.

    Raises:
        SightlineError: it is not cached and cannot be fetched, or the name is not valid.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        with from_hub(name, "data set"), quiet():
            folder = snapshot_download(
                name, repo_type="dataset", revision=revision, allow_patterns=_FETCHED
            )
    except HFValidationError as error:
        raise DatasetError(
            f"{name}: not a valid name of a data set on the hub ({first_lines(error, 1)}); for one "
            "on disk give `path`"
        ) from error
    return Path(folder)


def files_by_split(path: Path, config: str | None) -> dict[str, list[Path]]:
    """Split → its Arrow or Parquet files, in order; a data set without splits has the split "".

    Args:
        path: a file, a folder of `save_to_disk`, or a folder of Parquet or Arrow files, whose
            README and names tell splits and configurations as on the hub.

    Raises:
        DatasetError: nothing there, other kinds of files, or a data set that needs its own code.
    """
    if path.is_file():
        return {"": [path]}
    if not path.is_dir():
        raise DatasetError(f"{path}: no such file or folder; check the path")
    datasets = require("datasets", "a Hugging Face data set")
    saved = any((path / name).is_file() for name in _SAVED)
    try:
        with quiet():
            return _saved(datasets, path) if saved else _loose(datasets, path, config)
    except DatasetError:
        raise
    except Exception as error:  # the library has no base class for errors of its files
        raise DatasetError(
            f"{path}: not a data set that `datasets` can read ({type(error).__name__}: "
            f"{first_lines(error)}); expected a folder of save_to_disk, or of Parquet or Arrow "
            "files (on the hub: revision refs/convert/parquet)"
        ) from error


def _saved(datasets: Any, path: Path) -> dict[str, list[Path]]:
    loaded = datasets.load_from_disk(str(path), keep_in_memory=False)
    named = loaded if isinstance(loaded, datasets.DatasetDict) else {"": loaded}
    return {
        split: [Path(each["filename"]) for each in part.cache_files]
        for split, part in named.items()
    }


def _loose(datasets: Any, path: Path, config: str | None) -> dict[str, list[Path]]:
    attempts: list[dict[str, str]] = [{"path": str(path)}]
    # beside many images, the library takes a folder for one of images
    attempts += [
        {"path": kind, "data_dir": str(path)}
        for kind in _TABLES
        if next(path.rglob(f"*.{kind}"), None) is not None
    ]
    for attempt in attempts:
        with tempfile.TemporaryDirectory() as scratch:
            builder = datasets.load_dataset_builder(**attempt, name=config, cache_dir=scratch)
        splits: dict[str, list[Path]] = {}
        for split, files in (builder.config.data_files or {}).items():
            if tables := [Path(each) for each in files if Path(each).suffix[1:] in _TABLES]:
                splits[str(split)] = tables
        if splits:
            return splits
    raise DatasetError(
        f"{path}: contains no Parquet or Arrow files; for tar files use the kind `webdataset`, for "
        "a folder of images `pairs`"
    )


def missing_numbers(files: Iterable[Path]) -> list[str]:
    """What is missing of files that are named as in ``train-00000-of-00012.parquet``."""
    counts: Counter[tuple[Path, str, str, int]] = Counter()
    for file in files:
        if match := _NUMBERED.fullmatch(file.name):
            # save_to_disk has the same names in the folder of every split
            counts[file.parent, match["stem"], match["rest"], int(match["count"])] += 1
    return [
        f"{there} of {count} files {stem}-*-of-{count:05d}{rest} are in {folder.name}; get the "
        "others too"
        for (folder, stem, rest, count), there in counts.items()
        if there != count
    ]


def read_rows(path: Path, columns: Columns) -> Iterator[ImageRow]:
    """The rows of an ``.arrow`` or ``.parquet`` file, in order, a few at a time.

    Raises:
        DatasetError: the file is missing or damaged, or a column is missing or has another type.
    """
    if not path.is_file():
        raise DatasetError(f"{path}: no such file; get the complete data set")
    datasets = require("datasets", "a Hugging Face data set")
    parquet = path.suffix.lower() == ".parquet"
    # without these, whole files are read ahead into memory
    scan = ParquetFragmentScanOptions(pre_buffer=False, use_buffered_stream=True)
    some = {"batch_size": _ROWS, "fragment_scan_options": scan}
    kind, options = ("parquet", some) if parquet else ("arrow", {})
    try:
        with quiet(), tempfile.TemporaryDirectory() as scratch:
            builder = datasets.load_dataset_builder(
                kind, data_files=str(path), cache_dir=scratch, **options
            )
            (stream,) = builder.as_streaming_dataset().values()
            _check(path, stream.features.arrow_schema, columns)
            stream = stream.select_columns([*dict.fromkeys(filter(None, columns))])
            stream = stream.cast_column(columns.image, datasets.Image(decode=False))
            for batch in stream.iter(_ROWS):
                yield from _rows(batch, columns)
    except DatasetError:
        raise
    except Exception as error:  # on forged or damaged files the library may raise anything
        raise DatasetError(
            f"{path}: damaged, or of another kind ({first_lines(error, 1)}); get it again"
        ) from error


def _rows(batch: dict[str, list], columns: Columns) -> Iterator[ImageRow]:
    count = len(batch[columns.image])
    splits = batch[columns.split] if columns.split else [""] * count
    for image, said, split in zip(
        batch[columns.image], batch[columns.caption], splits, strict=True
    ):
        image = image or {}
        captions = [said] if isinstance(said, str) else [each for each in said or [] if each]
        yield ImageRow(image.get("bytes"), image.get("path") or "", captions, split or "")


def _check(path: Path, schema: pa.Schema, columns: Columns) -> None:
    """Refuse a file whose columns are missing or of other types."""
    found = ", ".join(f"{field.name}: {field.type}" for field in schema)
    for setting, name, fits, expected in (
        ("image", columns.image, _is_image, "bytes, a path, or a struct of both"),
        ("caption", columns.caption, _is_caption, "a string or a list of strings"),
        ("split_column", columns.split, _is_text, "a string"),
    ):
        if name is None:
            continue
        if schema.names.count(name) != 1:
            raise DatasetError(
                f"{path}: has no column {name!r}; name one of its columns with `{setting}` "
                f"({found[:500]})"
            )
        if not fits(schema.field(name).type):
            raise DatasetError(
                f"{path}: column {name!r} is {schema.field(name).type}, expected {expected}; name "
                f"another column with `{setting}` ({found[:500]})"
            )


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _is_caption(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _is_text(kind.value_type)
    return _is_text(kind)


def _is_image(kind: pa.DataType) -> bool:
    if not pa.types.is_struct(kind):
        return _is_text(kind) or _is_bytes(kind)
    fields = {field.name: field.type for field in kind}
    fits = {"bytes": _is_bytes, "path": _is_text}
    return bool(fields) and all(name in fits and fits[name](each) for name, each in fields.items())
