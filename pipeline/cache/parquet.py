"""Untrusted tables: reject a small file before it expands to gigabytes.

Three things make a Parquet file grow when read: compression, run lengths (a million equal
values in four bytes), and a dictionary with one long text that a million rows reference. The
first two are summed from the page headers before anything is expanded. Texts are read in batches
as dictionary references, and their sizes are summed before they are expanded.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.cache.errors import CacheError
from pipeline.cache.parquet_pages import pages

FLOOR, RATIO = 64 << 20, 32
"""A table may take FLOOR bytes plus RATIO times its file size; ours take less than 12 times."""
_ROWS = 1 << 16
_READ_BYTES = 1 << 20
_BATCH_BYTES = FLOOR // 4  # the library needs several times the size of a batch
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_LEVELS = 4  # overhead per value in bytes: definition and repetition levels


def read_schema(path: Path) -> pa.Schema:
    """Columns and types of a Parquet file, and its own metadata.

    Raises:
        CacheError: it is not a readable Parquet file.
    """
    try:
        return pq.read_schema(path)
    except Exception as error:  # on forged or damaged files the library may raise anything
        raise CacheError(f"{path}: not a readable Parquet file ({error})") from error


def read_table(path: Path, columns: list[str] | None = None) -> pa.Table:
    """A Parquet file as a table, or some of its columns.

    Raises:
        CacheError: it is not a readable Parquet file, or would take more than FLOOR bytes plus
            RATIO times its size.
    """
    try:
        return _read(path, columns)
    except CacheError:
        raise
    except Exception as error:  # as in `read_schema`
        raise CacheError(f"{path}: not a readable Parquet file ({error})") from error


def read_batches(path: Path, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
    """Some columns of a Parquet file, at most ``rows`` rows at a time; for columns of numbers.

    Raises:
        CacheError: as `read_table`.
    """
    try:
        with pq.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False) as file:
            _check_declared(path, file, FLOOR + RATIO * path.stat().st_size)
            for batch in file.iter_batches(rows, columns=columns):
                batch.validate(full=True)
                yield batch
    except CacheError:
        raise
    except Exception as error:  # as in `read_schema`
        raise CacheError(f"{path}: not a readable Parquet file ({error})") from error


def _read(path: Path, columns: list[str] | None) -> pa.Table:
    limit = FLOOR + RATIO * path.stat().st_size
    with pq.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False) as file:
        longest = _check_declared(path, file, limit)
        schema = file.schema_arrow
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns], schema.metadata)
        leaves = [file.schema.column(i) for i in range(len(file.schema))]
        texts = [
            leaf.path
            for leaf in leaves
            if leaf.physical_type == "BYTE_ARRAY" and leaf.path.split(".")[0] in schema.names
        ]
        flat = [text for text in texts if text in schema.names]
        inside = [text for text in texts if text not in schema.names]
        if inside:  # a struct cannot hold references: read in small batches and sum first
            size = 0
            for batch in file.iter_batches(max(1, _BATCH_BYTES // longest), columns=inside):
                size += batch.nbytes
                _require(path, size, limit)
    batches: list[pa.RecordBatch] = []
    size = 0
    with pq.ParquetFile(
        path, read_dictionary=flat, buffer_size=_READ_BYTES, pre_buffer=False
    ) as file:
        for batch in file.iter_batches(_ROWS, columns=columns):
            size += sum(_expanded(column) for column in batch.columns)
            _require(path, size, limit)
            batches.append(batch.cast(schema))
    table = pa.Table.from_batches(batches, schema)
    table.validate(full=True)  # invalid Unicode would fail every reader
    return table


def _check_declared(path: Path, file: pq.ParquetFile, limit: int) -> int:
    """Sum the declared page sizes; returns the largest, which bounds the size of any value."""
    size, largest = 0, 1
    with path.open("rb") as data:
        for group in map(file.metadata.row_group, range(file.metadata.num_row_groups)):
            for i in range(group.num_columns):
                leaf = file.schema.column(i)
                width = _WIDTHS.get(leaf.physical_type, leaf.length or 4)
                for page in pages(data, group.column(i)):
                    size += page.bytes + page.values * (width + _LEVELS)
                    largest = max(largest, page.bytes)
                    _require(path, size, limit)
    return largest


def _expanded(column: pa.Array) -> int:
    """Bytes of a column once its texts are expanded."""
    if not pa.types.is_dictionary(column.type):
        return column.nbytes
    lengths = pc.call_function("binary_length", [column.dictionary]).cast(pa.int64())
    total = pc.call_function("sum", [lengths.take(column.indices)]).as_py()
    return (total or 0) + 4 * len(column)  # the sum of nothing is None


def _require(path: Path, size: int, limit: int) -> None:
    if size > limit:
        raise CacheError(
            f"{path}: a file of {path.stat().st_size:,} bytes that would expand to more than "
            f"{limit:,} bytes of memory; no Sightline manifest does that. Do not use it; recreate "
            "it, or get it from a trusted source"
        )
