"""Parquet and Arrow files that others wrote: their columns, and their rows a few at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sightline.errors import SightlineError, first_lines
from sightline.files.file_kinds import file_kind, unexpected
from sightline.files.places import is_url, shown
from sightline.files.storage import opened, require_of_file

_BUFFER = 1 << 20  # bytes; without it, a column of a whole row group is read at once

Batches = Callable[[list[str], int], Iterator[pa.RecordBatch]]
"""Yields some columns, at most so many rows at a time."""


def schema_of(path: Path | str) -> pa.Schema:
    """Columns and types of a Parquet file, here or at a URL, or of an Arrow file or stream here.

    Raises:
        SightlineError: it is damaged, or not such a file.
    """
    with _opened(path) as (schema, _):
        list(schema.names)  # decodes them: here, a name that is not UTF-8 is damage
        return schema


def batches_of(path: Path | str, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
    """Some columns of the same files, at most ``rows`` rows at a time; raises as `schema_of`."""
    with _opened(path) as (_, read):
        for batch in read(columns, rows):
            batch.validate(full=True)
            if len(batch):
                yield batch


def plain_type(kind: pa.DataType) -> str:
    """The name of a type without how its values are stored: string, binary, list of string, …"""
    values = getattr(kind, "value_type", None)  # of a list, or of what is encoded
    if values is None:
        return str(kind).removeprefix("large_").removesuffix("_view")
    encoded = pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind)
    return plain_type(values) if encoded else f"list of {plain_type(values)}"


@contextmanager
def readable(path: Path | str) -> Iterator[None]:
    """Errors of a damaged file as one sentence: on such files, libraries may raise anything."""
    try:
        yield
    except SightlineError:
        raise
    except Exception as error:
        require_of_file(error, path)
        raise SightlineError(
            f"{shown(path)}: damaged, or not such a file ({first_lines(error, 1)}); get it again"
        ) from error


@contextmanager
def _opened(path: Path | str) -> Iterator[tuple[pa.Schema, Batches]]:
    with readable(path):
        kind = "parquet" if is_url(path) else file_kind(Path(path))
        if kind not in ("parquet", "arrow", None):
            raise unexpected(Path(path), kind, "a Parquet or Arrow file")
        if kind == "parquet":
            with (
                opened(str(path)) as source,
                pq.ParquetFile(source, pre_buffer=False, buffer_size=_BUFFER) as file,
            ):
                yield (
                    file.schema_arrow,
                    lambda columns, rows: file.iter_batches(rows, columns=columns),
                )
        else:
            with pa.memory_map(os.fsencode(path)) as source:
                yield _arrow(source)


def _arrow(source: pa.MemoryMappedFile) -> tuple[pa.Schema, Batches]:
    """A stream, which `datasets` writes, or a file."""
    try:
        reader = pa.ipc.open_stream(source)
        batches: Iterator[pa.RecordBatch] = iter(reader)
    except pa.ArrowInvalid:
        source.seek(0)
        reader = pa.ipc.open_file(source)
        batches = map(reader.get_batch, range(reader.num_record_batches))

    return reader.schema, lambda columns, rows: sliced(batches, columns, rows)


def sliced(
    batches: Iterable[pa.RecordBatch], columns: list[str], rows: int
) -> Iterator[pa.RecordBatch]:
    """Some columns of batches, at most ``rows`` rows at a time."""
    for batch in batches:
        chosen = batch.select(columns)
        yield from (chosen.slice(start, rows) for start in range(0, len(chosen), rows))
