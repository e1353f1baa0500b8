"""Rows of Arrow and Parquet files, and where in the file the bytes of each image are."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.datasets.source import DatasetError

_ROWS = 64  # a batch of photographs, a few megabytes
_FEATHER = b"ARROW1"
_PREFIX_BYTES = 4  # Parquet's plain encoding: the length of a value, then the value


class ImageRow(NamedTuple):
    """One row of a data set.

    Attributes:
        data: bytes of the image; None if the row has a path, or nothing.
        offset: where they start in the file; None if the file does not contain them verbatim.
        path: of the image, as the row has it; None or empty: it has none.
        captions: its captions; None if it has none.
        split: the row's entry in the split column; empty without one.
    """

    data: bytes | None
    offset: int | None
    path: str | None
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

    @property
    def names(self) -> list[str]:
        return [name for name in self if name is not None]


def read_rows(path: Path, columns: Columns) -> Iterator[ImageRow]:
    """The rows of an ``.arrow`` or ``.parquet`` file, in order.

    Raises:
        DatasetError: the file is missing or damaged, or a column is missing or has another type.
    """
    if not path.is_file():
        raise DatasetError(f"{path}: no such file; get the complete data set")
    read = _parquet if path.suffix.lower() == ".parquet" else _arrow
    try:
        yield from read(path, columns)
    except DatasetError:
        raise
    except Exception as error:  # on forged or damaged files the library may raise anything
        first = str(error).partition("\n")[0]
        raise DatasetError(
            f"{path}: damaged, or of another kind ({first}); get it again"
        ) from error


class _Finder(Protocol):
    """Finds the values of a binary array in the file."""

    def __call__(self, values: pa.Array) -> list[int | None]: ...


def _arrow(path: Path, columns: Columns) -> Iterator[ImageRow]:
    with pa.memory_map(str(path)) as source:
        whole = source.read_buffer(source.size())
    found: pa.RecordBatchReader | pa.RecordBatchFileReader
    if whole[: len(_FEATHER)].to_pybytes() == _FEATHER:
        found = pa.ipc.open_file(whole)
        batches = (found.get_batch(number) for number in range(found.num_record_batches))
    else:
        found = pa.ipc.open_stream(whole)
        batches = iter(found)
    _check(path, found.schema, columns)

    def find(values: pa.Array) -> list[int | None]:
        return _addresses(values, whole.address, whole.size)

    for batch in batches:
        some = batch.select(columns.names)
        some.validate(full=True)  # offsets in a damaged file can point anywhere
        for start in range(0, len(some), _ROWS):
            yield from _rows(some.slice(start, _ROWS), columns, find)


def _addresses(values: pa.Array, base: int, size: int) -> list[int | None]:
    """Offsets of binary values in a file mapped at ``base``; a compressed one is elsewhere."""
    buffer = values.buffers()[2]
    if buffer is None or not base <= buffer.address <= base + size - buffer.size:
        return [None] * len(values)
    kind = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    starts = np.frombuffer(values.buffers()[1], kind)[values.offset :][: len(values)]
    return (starts.astype(np.int64) + (buffer.address - base)).tolist()


def _parquet(path: Path, columns: Columns) -> Iterator[ImageRow]:
    with (
        path.open("rb") as opened,
        pq.ParquetFile(opened) as file,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as whole,
    ):
        _check(path, file.schema_arrow, columns)
        for group in range(file.num_row_groups):
            find = _finder(file.metadata.row_group(group), columns.image, whole)
            for batch in file.iter_batches(_ROWS, [group], columns.names):
                yield from _rows(batch.select(columns.names), columns, find)


def _finder(group: pq.RowGroupMetaData, column: str, whole: mmap.mmap) -> _Finder:
    """Finds the values of a row group: in order in its pages, or in the page of its dictionary."""
    chunks = [group.column(number) for number in range(group.num_columns)]
    found = [each for each in chunks if each.path_in_schema in (column, f"{column}.bytes")]
    if not found:  # a column of paths
        return lambda values: [None] * len(values)
    chunk = found[0]
    if chunk.compression != "UNCOMPRESSED":
        return lambda values: [None] * len(values)
    start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    at, end = start, start + chunk.total_compressed_size

    def find(values: pa.Array) -> list[int | None]:
        nonlocal at
        places: list[int | None] = []
        for value in values.to_pylist():
            if value is None:
                places.append(None)
                continue
            stored = len(value).to_bytes(_PREFIX_BYTES, "little") + value
            there = at if whole[at : at + len(stored)] == stored else whole.find(stored, at, end)
            if there < 0:
                there = whole.find(stored, start, at)
            else:
                at = there + len(stored)
            places.append(None if there < 0 else there + _PREFIX_BYTES)
        return places

    return find


def _rows(batch: pa.RecordBatch, columns: Columns, find: _Finder) -> Iterator[ImageRow]:
    data, offsets, paths = _images(batch.column(0), find)
    captions = batch.column(1).to_pylist()
    splits = batch.column(2).to_pylist() if columns.split else [""] * len(batch)
    for row in zip(data, offsets, paths, captions, splits, strict=True):
        said = [row[3]] if isinstance(row[3], str) else [each for each in row[3] or [] if each]
        yield ImageRow(row[0], row[1], row[2], said, row[4] or "")


def _images(
    column: pa.Array, find: _Finder
) -> tuple[list[bytes | None], list[int | None], list[str | None]]:
    values, paths = None, column
    if pa.types.is_struct(column.type):
        fields = dict(zip([field.name for field in column.type], column.flatten(), strict=True))
        values, paths = fields.get("bytes"), fields.get("path")
    elif _is_bytes(column.type):
        values, paths = column, None
    count = len(column)
    return (
        [None] * count if values is None else values.to_pylist(),
        [None] * count if values is None else find(values),
        [None] * count if paths is None else paths.to_pylist(),
    )


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
