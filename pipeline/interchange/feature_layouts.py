"""Features that others made, in known layouts; read by numpy and pyarrow, never unpickled.

- clip-retrieval (https://github.com/rom1504/clip-retrieval, clip_inference/writer.py):
  ``img_emb/img_emb_N.npy`` and ``text_emb/text_emb_N.npy``, whose row i belongs to row i of
  ``metadata/metadata_N.parquet`` with ``image_path`` and ``caption``.
- DataComp (https://github.com/mlfoundations/datacomp): ``X.npz`` with ``b32_img``, ``b32_txt``,
  ``l14_img`` and ``l14_txt``, whose row i belongs to row i of ``X.parquet`` with ``uid`` and
  ``text``. Any other file of arrays may have such a table beside it.
- Files of arrays (`pipeline.interchange.row_arrays`), one of rows and one of names, or
  one for each image.
- Parquet, Arrow and Feather files with a column of lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.interchange.row_arrays import (
    ARRAYS,
    NEEDED,
    Column,
    columns_in,
    kind_of_rows,
    table_beside,
)
from pipeline.interchange.rows import FEATURES, KEY
from sightline.cache.feature_kind import RowOf, is_of_texts, known_kind
from sightline.cache.keys import key_of_bytes
from sightline.cache.record import Kind
from sightline.errors import SightlineError
from sightline.files.file_kinds import FileKind, data_kind, unexpected
from sightline.settings import Settings
from sightline.tables.arrow_files import readable
from sightline.tables.outside_columns import KNOWN

NAMES = {
    "image": (
        "image_path", "path", *KNOWN["image"], "image_id", "uid", "__key__", "name", "id",
    ),
    "caption": KNOWN["caption"],
}  # fmt: skip
"""What names images or holds texts, in the order of preference; ``names`` counts as ``name``."""
_HEX = re.compile(r"[0-9a-f]{64}")
_EXPECTED = (
    "expected a tar from `sightline cache export`, a folder of clip-retrieval (img_emb, metadata), "
    "one of DataComp (.npz beside .parquet), Parquet, Arrow or Feather files with a column of "
    "features, or .npz, safetensors or HDF5 with names"
)


class ImportOptions(Settings):
    """What the files do not say.

    Attributes:
        data: the images that the metadata names, a folder or a prepared data set; of MCSE's files
            the data set to write.
        kind: what the rows describe; an export of ours says it itself.
        features: array of an .npz, or column of a table, of the features.
        names: column that names the images, or holds the texts.
        source: what computed the rows, for the record.
        allow_missing: leave out rows whose image is not there.
    """

    data: Path | None = None
    kind: Literal["image", "object", "text", "teacher"] | None = None
    features: str | None = None
    names: str | None = None
    source: str | None = None
    allow_missing: bool = False


@dataclass(frozen=True)
class RowFile:
    """One file of rows, and the file that says what they describe.

    Attributes:
        rows, table: one file for both, if it has names as well.
        kind: what the rows describe.
        column: the rows.
        names: names of the images, the texts, or what gives keys.
        keyed: whether it gives keys: as our exports write them, or as bytes of images.
        about: the names of both columns, in words.
    """

    rows: Path
    table: Path
    kind: Kind
    column: Column
    names: Column
    keyed: bool
    about: str

    def names_of_rows(self) -> list[Any]:
        """The names, or keys if ``keyed``, one per row; None where there is none."""
        values = (value for block in self.names.read() for value in block)
        if self.keyed:
            return [_key_in(value) for value in values]
        return [None if value is None else str(value) for value in values]

    def blocks(self) -> Iterator[NDArray]:
        """The rows [≤ n, dim] of float16 or float32, in order; float64 is rounded."""
        with readable(self.rows):
            for block in self.column.read():
                kind = block.dtype if block.dtype.itemsize < 8 else np.dtype(np.float32)
                with np.errstate(over="ignore"):  # infinity, a row without a value
                    block = block.astype(kind.newbyteorder("<"), copy=False)
                yield block


def find(source: Path, options: ImportOptions) -> tuple[str, list[RowFile]]:
    """The name of a layout, and the features in a file or folder of it, all of one kind.

    Raises:
        SightlineError: no known layout, nothing that says what the rows describe, or a choice
            that only the user can make; says which option makes it.
    """
    if not source.exists():
        raise SightlineError(f"{source}: no such file or folder; {_EXPECTED}")
    if exported := _exported_kind(source, options.kind):
        options = options.model_copy(update={"kind": exported})
    if folders := [kind_of for kind_of in ("img", "text") if (source / f"{kind_of}_emb").is_dir()]:
        return "clip-retrieval", _clip_retrieval(source, folders, options)
    form, files = _files_of_rows(source)
    first = _part(files[0], options)
    options = options.model_copy(update={"kind": first.kind})
    return form, [first, *(_part(path, options) for path in files[1:])]


def _exported_kind(source: Path, requested: Kind | None) -> Kind | None:
    """What the rows of a folder describe that `sightline cache export` wrote, or what is given.

    Raises:
        SightlineError: they are rows of something else than what is given.
    """
    from pipeline.interchange.export import read_exported

    exported = read_exported(source)
    if exported is None:
        return requested
    kind = exported.spec.kind
    if requested is not None and _row_of(requested) != _row_of(kind):
        raise SightlineError(f"{source}: exported features of kind {kind}; leave out --kind")
    return requested or kind


def _row_of(kind: Kind) -> RowOf:
    """What a row of a kind is of; of one whose package is absent, what only keys can name."""
    registered = known_kind(kind)
    return "object" if registered is None else registered.row_of


def _files_of_rows(source: Path) -> tuple[FileKind, list[Path]]:
    """The files that may hold rows, which are of one kind, without tables beside arrays."""
    files = [source] if source.is_file() else sorted(filter(Path.is_file, source.rglob("*")))
    kinds: dict[Path, FileKind | None] = {path: kind_of_rows(path) for path in files}
    beside = {table_beside(path) for path, kind in kinds.items() if kind in ARRAYS}
    by_kind: dict[FileKind, list[Path]] = {}
    for path, kind in kinds.items():
        if kind and kind in (*ARRAYS, "parquet", "arrow") and path not in beside:
            by_kind.setdefault(kind, []).append(path)
    if len(by_kind) > 1:
        several = " and ".join(paths[0].name for paths in by_kind.values())
        raise SightlineError(f"{source}: {several} may both hold the rows; name one of them")
    if by_kind:
        return next(iter(by_kind.items()))
    for path, kind in kinds.items():
        if kind is not None:
            raise unexpected(path, kind, _EXPECTED.removeprefix("expected "), NEEDED)
    problem = (
        "text, or a format that is not known here, from which no features are read; write lists of "
        "float32 as Parquet"
        if source.is_file()
        else "no features found"
    )
    raise SightlineError(f"{source}: {problem}; {_EXPECTED}")


def _clip_retrieval(source: Path, folders: list[str], options: ImportOptions) -> list[RowFile]:
    if options.features is not None:
        raise SightlineError(
            "--features is for files with several arrays or columns; here, choose with --kind"
        )
    if options.kind is None and len(folders) > 1:
        raise SightlineError(
            f"{source}: has img_emb and text_emb; choose with --kind image or text"
        )
    kind = options.kind or ("image" if folders == ["img"] else "text")
    options = options.model_copy(update={"kind": kind})
    prefix = "text" if is_of_texts(kind) else "img"
    numbered = {
        match[1]: path
        for path in (source / f"{prefix}_emb").glob("*.npy")
        if (match := re.fullmatch(rf"{prefix}_emb_(\d+)\.npy", path.name))
    }
    if not numbered:
        raise SightlineError(f"{source}: has no {prefix}_emb/{prefix}_emb_N.npy")
    return [
        _part(numbered[n], options, source / f"metadata/metadata_{n}.parquet")
        for n in sorted(numbered, key=int)
    ]


def _part(rows: Path, options: ImportOptions, table: Path | None = None) -> RowFile:
    """The rows of a file, and what they describe.

    Args:
        table: that has the names; None: the same file, or the table beside it.
    """
    columns = columns_in(rows)
    name, names = _column_of_rows(rows, columns, options.features), options.names
    kinds: dict[str, Kind] = {"_img": "image", "_txt": "text"}  # of DataComp
    kind = options.kind or kinds.get(name[-4:])
    if kind is None:
        raise SightlineError(
            f"{rows}: do its rows describe images, texts or objects? Give --kind image, text or "
            "object"
        )
    column = columns.pop(name)
    naming = _names_in(rows, columns, kind, names) if table is None else None
    if naming is None and (table is not None or kind_of_rows(rows) in ARRAYS):
        table = table or table_beside(rows) or rows.with_suffix(".parquet")
        if not table.is_file():
            names_may_be_there = {"texts", "numbers"} & {c.holds for c in columns.values()}
            remedy = "; if that names them, give it with --names" if names_may_be_there else ""
            raise SightlineError(
                f"{rows}: nothing says which {kind} each row describes: {table.name} is missing, "
                f"and besides its rows it has {_in_words(columns)}{remedy}"
            )
        columns = columns_in(table)
        naming = _names_in(table, columns, kind, names)
    table = table or rows
    if naming is None:
        role = {
            "image": "names the images",
            "caption": "holds the texts",
            "object": f"holds keys of cut-outs, such as {KEY!r} of an export,",
        }[_row_of(kind)]
        raise SightlineError(
            f"{table}: has {_in_words(columns)}; without one that {role} there are no keys: give "
            "it with --names"
        )
    keyed = columns[naming].holds == "images" or _is_of_keys(naming, columns[naming])
    rounded = ", rounded to float32" if re.search("float64|double", column.about) else ""
    keys = f"{'keys' if keyed else 'names'} from {naming!r} in {table.name}"
    about = f"rows from {name!r}{rounded}, {keys}"
    return RowFile(rows, table, kind, column, columns[naming], keyed, about)


def _column_of_rows(path: Path, columns: dict[str, Column], name: str | None) -> str:
    """The column that is given, or the only one of rows, or that of our exports."""
    rows = [label for label, column in columns.items() if column.holds == "rows"]
    usual = [label for label in rows if columns[label].about.startswith("fixed_size")] or rows
    usual = [FEATURES] if len(usual) > 1 and FEATURES in rows else usual
    name = usual[0] if name is None and len(usual) == 1 else name
    if name in rows:
        return name
    if name in columns or not rows:
        unfit = {name: columns[name]} if name in columns else columns
        raise SightlineError(
            f"{path}: found {_in_words(unfit)}; expected float16, float32 or float64 [n, dim], or "
            "lists of them; convert it, of a group of vectors to one for each image, such as their "
            "mean"
        )
    raise SightlineError(
        f"{path}: has {_in_words(columns)}; name the array, or the column of lists of numbers, "
        "with --features; if each is the vectors of one image, write one for each, such as their "
        "mean"
    )


def _names_in(path: Path, columns: dict[str, Column], kind: Kind, name: str | None) -> str | None:
    """The column that gives keys, by itself or as images, or else the usual one that has names."""
    row_of = _row_of(kind)
    usable = ("texts", "images") if row_of == "image" else ("texts",)
    if name is not None:
        fits = (*usable, "numbers") if row_of == "image" else usable
        if name in columns and columns[name].holds not in fits:
            raise SightlineError(f"{path}: {name!r} is {columns[name].about}, expected texts")
        if name in columns and row_of == "object" and not _is_of_keys(name, columns[name]):
            return None
        return name if name in columns else None
    columns = {label: column for label, column in columns.items() if column.holds in usable}
    images = [label for label, column in columns.items() if _is_of_images(column)]
    if len(images) > 1:
        raise SightlineError(
            f"{path}: {' and '.join(map(repr, images))} hold images; choose one with --names"
        )
    keys = [label for label, column in columns.items() if _is_of_keys(label, column)]
    if row_of == "object":
        return next(iter(keys), None)
    names = (
        label for usual in NAMES[row_of] for label in columns if _plain(label) == _plain(usual)
    )
    texts = (label for label in names if columns[label].holds == "texts")
    return next(iter([*keys, *images, *texts]), None)


def _in_words(columns: dict[str, Column]) -> str:
    words = ", ".join(f"{name!r}: {column.about}" for name, column in columns.items())
    return words[:500] or "nothing"


def _plain(name: str) -> str:
    """A name without its groups in HDF5, and without a plural."""
    return name.rpartition("/")[2].strip().lower().removesuffix("s")


def _is_of_keys(name: str, column: Column) -> bool:
    return _plain(name) == KEY and column.holds == "texts" and is_key(_first(column))


def _is_of_images(column: Column) -> bool:
    data = _bytes_in(_first(column)) if column.holds == "images" else b""
    return data_kind(data) == "image"


def _first(column: Column) -> Any:
    return next((value for block in column.read() for value in block if value), None)


def is_key(name: object) -> bool:
    """Whether a name is a key as our exports write it: SHA-256 in hexadecimal."""
    return isinstance(name, str) and _HEX.fullmatch(name) is not None


def _bytes_in(value: Any) -> bytes:
    """The bytes of an image, which `datasets` has in an object."""
    return (value.get("bytes") if isinstance(value, dict) else value) or b""


def _key_in(value: Any) -> bytes | None:
    """The key that a cell holds, or that of the image in it."""
    if isinstance(value, str):
        return bytes.fromhex(value) if is_key(value) else None
    data = _bytes_in(value)
    return key_of_bytes(data) if data else None
