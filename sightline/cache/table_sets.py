"""Sets that are not of features: all their rows, read and written, and their settings."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import ConfigDict, ValidationError

from sightline.cache.keys import Keys, unique_sorted
from sightline.cache.publish import commit_rows, write_shards
from sightline.cache.record import Provenance, SetRecord, TableKind, TableSpec, set_output
from sightline.cache.rows import Rows, rows_of_no_file
from sightline.cache.verify import snapshot, sound_rows
from sightline.errors import CacheError
from sightline.tables.arrow_arrays import number_array

H = TypeVar("H")
EXACTLY = ConfigDict(extra="forbid", strict=True)
"""Of settings in a record: no more, no fewer, no other types."""


def open_tables(
    folder: Path, kind: TableKind
) -> tuple[SetRecord[TableSpec], Rows, dict[bytes, str]]:
    """A sound set that is not of features: its record, its rows, and the codes of failed keys.

    Raises:
        CacheError: missing, damaged, or of a different kind or version.
    """
    return snapshot(folder, lambda record: (record, *sound_rows(folder, record)), kind)


def read_rows(folder: Path, kind: TableKind) -> tuple[pa.Table, dict[bytes, str]]:
    """All rows of such a set in the order of their keys, and the codes of failed keys."""

    def read(record: SetRecord[TableSpec]) -> tuple[pa.Table, dict[bytes, str]]:
        rows, failed = sound_rows(folder, record)
        return rows.gather(np.arange(len(rows))), failed

    return snapshot(folder, read, kind)


def write_rows(folder: Path, spec: TableSpec, keys: Keys, rows: pa.Table) -> int:
    """Write a set of rows that are all there, and publish it; returns the number of its rows.

    The set holds these rows afterwards, whatever it held: the phrases of a pair may change under
    one description.

    Args:
        keys: uint8 [n, 32]; of equal keys the first counts.
        rows: n rows of the kind (`sightline.cache.tables`).
    """
    first = unique_sorted(keys)
    every = rows_of_no_file(spec, keys[first], rows.take(number_array(first)))
    with set_output(folder, kind=spec.kind) as output:
        shards = write_shards(output, every.keys, every.format.shard_rows, every)
        return commit_rows(output, [shards], {}, Provenance()).rows


def described(header: Any) -> dict[str, Any]:
    """A dataclass of settings as a set's record has it: a prompt only if there is one."""
    return {name: value for name, value in asdict(header).items() if value or name != "prompt"}


def header_of(folder: Path, record: SetRecord[TableSpec], header: type[H], made_by: str) -> H:
    """The settings that a set was made with, from its record."""
    try:
        return header(**record.spec.description)
    except (TypeError, ValidationError) as error:
        raise CacheError(
            f"{folder}: described by a different version; rerun `{made_by}`"
        ) from error


def lists_of(rows: Rows, name: str) -> tuple[Any, NDArray[np.int64]]:
    """The items of all lists in a column, and where each list begins and ends: int64 [n + 1]."""
    column = rows.gather(np.arange(len(rows))).column(name)
    lengths = [np.diff(np.from_dlpack(chunk.offsets)) for chunk in column.chunks]
    items = pa.chunked_array([chunk.flatten() for chunk in column.chunks], column.type.value_type)
    return items, np.concatenate([[0], *lengths]).cumsum(dtype=np.int64)


def int32_array(values: pa.ChunkedArray) -> NDArray[np.int32]:
    """The values of an Arrow array without nulls; those of one chunk are not copied."""
    chunks = [np.from_dlpack(chunk).astype(np.int32, copy=False) for chunk in values.chunks]
    return chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, np.int32), *chunks])


def ranges(begin: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """begin[0] … begin[0] + counts[0] − 1, then those of 1, and so on: int64 [sum of counts]."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(begin - (ends - counts), counts)
