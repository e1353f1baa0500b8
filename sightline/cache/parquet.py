"""Parquet files from anywhere: what pyarrow cannot read is one error that names the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sightline.cache.errors import CacheError


def read_schema(path: Path) -> pa.Schema:
    """Columns and types of a Parquet file, and its own metadata.

    Raises:
        CacheError: it is not a readable Parquet file.
    """
    with _readable(path):
        return pq.read_schema(path)


def read_table(path: Path, columns: list[str] | None = None) -> pa.Table:
    """A Parquet file as a table, or some of its columns; raises as `read_schema`."""
    with _readable(path):
        # one file, not a folder of partitions
        with pq.ParquetFile(path) as file:
            table = file.read(columns)
        table.validate(full=True)  # invalid Unicode would fail every reader
        return table


def read_batches(path: Path, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
    """Some columns of a Parquet file, at most ``rows`` rows at a time; raises as `read_schema`."""
    with _readable(path), pq.ParquetFile(path, pre_buffer=False) as file:
        yield from file.iter_batches(rows, columns=columns)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # on damaged files the library may raise anything
        raise CacheError(f"{path}: not a readable Parquet file ({error})") from error
