"""Features that others made, in known layouts; read by numpy and pyarrow, never unpickled.

- clip-retrieval (https://github.com/rom1504/clip-retrieval, clip_inference/writer.py):
  ``img_emb/img_emb_N.npy`` and ``text_emb/text_emb_N.npy``, whose row i belongs to row i of
  ``metadata/metadata_N.parquet`` with ``image_path`` and ``caption``.
- DataComp (https://github.com/mlfoundations/datacomp): ``X.npz`` with ``b32_img``, ``b32_txt``,
  ``l14_img`` and ``l14_txt``, whose row i belongs to row i of ``X.parquet`` with ``uid`` and
  ``text``.
- Parquet and Arrow files with a column of lists, in one file or a folder of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.interchange.rows import FEATURES, KEY
from sightline.arrow_files import batches_of, readable, schema_of
from sightline.cache.record import Kind
from sightline.errors import SightlineError

NAMES = {
    "image": ("image_path", "path", "file_name", "filename", "image_id", "uid", "__key__"),
    "text": ("caption", "text", "sentence"),
}
"""Columns of metadata that name images or hold texts, in the order of preference."""
SUFFIXES = (".npz", ".parquet", ".arrow", ".npy")
"""Of files that may hold rows."""
_ROWS = 1024  # of a table at a time
_BLOCK_BYTES = 8 << 20  # of an array
_DTYPES = ("float16", "float32")
_HEX = re.compile(r"[0-9a-f]{64}")
_EXPECTED = (
    "expected a tar from `sightline cache export`, a folder of clip-retrieval (img_emb, metadata), "
    "one of DataComp (.npz beside .parquet), or Parquet or Arrow files with a column of features"
)


@dataclass(frozen=True)
class Part:
    """One file of rows, and the table that says what they describe.

    Attributes:
        rows, table: one file for both, if it is a table.
        column: array of an archive, or column of a table, that holds the rows.
        names: column of ``table`` with the names of the images, the texts, or the keys.
        keyed: whether it holds keys, as our exports write them.
    """

    rows: Path
    table: Path
    column: str
    names: str
    keyed: bool

    def names_of_rows(self) -> list[str | None]:
        """The names, one per row; None where the cell is empty."""
        batches = batches_of(self.table, [self.names], _ROWS)
        return [value for batch in batches for value in batch.column(0).to_pylist()]

    def blocks(self) -> Iterator[NDArray]:
        """The rows [≤ n, dim] of float16 or float32, in order.

        Raises:
            SightlineError: damaged, or not rows of numbers.
        """
        with readable(self.rows):
            for block in self._lists() if self.rows == self.table else self._array():
                if block.dtype.name not in _DTYPES or block.ndim != 2 or not block.shape[1]:
                    raise SightlineError(
                        f"{self.rows}: {block.dtype} {list(block.shape)}, expected float16 or "
                        "float32 [n, dim]; convert it first"
                    )
                yield block.astype(block.dtype.newbyteorder("<"), copy=False)

    def _array(self) -> Iterator[NDArray]:
        loaded = np.load(self.rows, mmap_mode="r", allow_pickle=False)
        array = loaded if isinstance(loaded, np.ndarray) else loaded[self.column]  # read whole
        step = max(1, _BLOCK_BYTES // max(1, array[:1].nbytes))
        for start in range(0, max(len(array), 1), step):
            yield np.ascontiguousarray(array[start : start + step])

    def _lists(self) -> Iterator[NDArray]:
        done = dim = 0
        for batch in batches_of(self.rows, [self.column], _ROWS):
            column = batch.column(0)
            values = column.flatten()
            dim = dim or len(values) // max(len(column), 1)
            if column.null_count or values.null_count or set(map(len, column)) - {dim}:
                raise SightlineError(
                    f"{self.rows}: column {self.column!r}, rows {done:,} to "
                    f"{done + len(column) - 1:,}: found empty cells or lists of several lengths"
                )
            done += len(column)
            yield values.to_numpy(zero_copy_only=False).reshape(len(column), -1)


@dataclass(frozen=True)
class Foreign:
    """Features in a known layout.

    Attributes:
        form: name of the layout.
        known: what the record can say about them, such as the array's name.
    """

    form: str
    kind: Kind
    parts: list[Part]
    known: dict[str, str]


def find(source: Path, kind: Kind | None, features: str | None, names: str | None) -> Foreign:
    """The features in a file or folder.

    Args:
        kind: what the rows describe; None if the layout says so.
        features: array or column that holds them; None if there is only one.
        names: column that names the images or holds the texts; None: the usual ones.

    Raises:
        SightlineError: no known layout, nothing that says what the rows describe, or a choice
            that only the user can make; says which option makes it.
    """
    if not source.exists():
        raise SightlineError(f"{source}: no such file or folder; {_EXPECTED}")
    if folders := [kind_of for kind_of in ("img", "text") if (source / f"{kind_of}_emb").is_dir()]:
        return _clip_retrieval(source, folders, kind, features, names)
    files = [source] if source.is_file() else sorted(source.rglob("*"))
    for suffix in SUFFIXES[:-1]:
        if files_of := [path for path in files if path.suffix == suffix and path.is_file()]:
            return _datacomp_or_tables(files_of, kind, features, names)
    if any(path.suffix == ".npy" for path in files):
        raise SightlineError(
            f"{source}: rows without metadata: nothing says which image or text each of them "
            "describes, so they have no keys. Put them into clip-retrieval's layout, with "
            "metadata/metadata_N.parquet"
        )
    raise SightlineError(f"{source}: no features found; {_EXPECTED}")


def _clip_retrieval(
    source: Path, folders: list[str], kind: Kind | None, features: str | None, names: str | None
) -> Foreign:
    if features is not None:
        raise SightlineError("--features is for .npz, Parquet and Arrow; here, choose with --kind")
    if kind is None and len(folders) > 1:
        raise SightlineError(
            f"{source}: has img_emb and text_emb; choose with --kind image or text"
        )
    kind = kind or ("image" if folders == ["img"] else "text")
    prefix = "img" if kind == "image" else "text"
    numbered = {
        match[1]: path
        for path in (source / f"{prefix}_emb").glob("*.npy")
        if (match := re.fullmatch(rf"{prefix}_emb_(\d+)\.npy", path.name))
    }
    if not numbered:
        raise SightlineError(f"{source}: has no {prefix}_emb/{prefix}_emb_N.npy")
    parts = [
        _part(numbered[number], source / f"metadata/metadata_{number}.parquet", "", kind, names)
        for number in sorted(numbered, key=int)
    ]
    return Foreign("clip-retrieval", kind, parts, {})


def _datacomp_or_tables(
    files: list[Path], kind: Kind | None, features: str | None, names: str | None
) -> Foreign:
    archives = files[0].suffix == ".npz"
    columns = [_column_of_rows(path, features) for path in files]
    if kind is None and archives:
        kinds: dict[str, Kind] = {"_img": "image", "_txt": "text"}
        kind = kinds.get(columns[0][-4:])
    if kind is None:
        raise SightlineError(
            f"{files[0]}: do its rows describe images or texts? Give --kind image or text"
        )
    parts = [
        _part(path, path.with_suffix(".parquet") if archives else path, column, kind, names)
        for path, column in zip(files, columns, strict=True)
    ]
    facts = {} if features is None else {"array" if archives else "column": features}
    return Foreign(files[0].suffix[1:], kind, parts, facts)


def _column_of_rows(path: Path, name: str | None) -> str:
    """The array of an archive, or the column of a table, that holds the rows."""
    if path.suffix == ".npz":
        with readable(path), np.load(path, allow_pickle=False) as archive:
            kinds = dict.fromkeys(archive.files)
        usual = list(kinds)
    else:
        kinds = {field.name: field.type for field in schema_of(path)}
        usual = [column for column, kind in kinds.items() if pa.types.is_fixed_size_list(kind)]
        if len(usual) != 1 and FEATURES in kinds:
            usual = [FEATURES]
    if name is None and len(usual) == 1:
        name = usual[0]
    if name is None or name not in kinds:
        columns = (f"{each!r}: {kind}" if kind else repr(each) for each, kind in kinds.items())
        raise SightlineError(
            f"{path}: has {', '.join(columns)[:500] or 'no arrays'}; name the array, or the column "
            "of lists of numbers, with --features"
        )
    kind = kinds[name]
    if kind and str(getattr(kind, "value_type", "")) not in ("halffloat", "float"):
        raise SightlineError(
            f"{path}: column {name!r} is {kind}, expected lists of float16 or float32; convert it "
            "first"
        )
    return name


def _part(rows: Path, table: Path, column: str, kind: Kind, names: str | None) -> Part:
    """Rows with the metadata in ``table``."""
    if not table.is_file():
        raise SightlineError(
            f"{rows}: {table.name} is missing, so nothing says which {kind} each row describes; "
            "without it there are no keys"
        )
    columns = {field.name: str(field.type) for field in schema_of(table)}
    usual = (KEY, *NAMES["image" if kind == "image" else "text"])
    for name in usual if names is None else (names,):
        keyed = name == KEY and name in columns and _has_keys(table)
        if name not in columns or (name == KEY and names is None and not keyed):
            continue
        if columns[name] not in ("string", "large_string"):
            raise SightlineError(f"{table}: column {name!r} is {columns[name]}, expected texts")
        return Part(rows, table, column, name, keyed)
    role = "names the images" if kind == "image" else "holds the texts"
    raise SightlineError(
        f"{table}: has columns {', '.join(columns)[:300]}; without one that {role} there are no "
        "keys: give it with --names"
    )


def is_key(name: object) -> bool:
    """Whether a name is a key as our exports write it: SHA-256 in hexadecimal."""
    return isinstance(name, str) and _HEX.fullmatch(name) is not None


def _has_keys(table: Path) -> bool:
    first = next(batches_of(table, [KEY], 1), None)
    return first is not None and is_key(first.column(0)[0].as_py())
