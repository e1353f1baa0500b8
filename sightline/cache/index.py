"""The index of a feature set: key → shard, row and status, sorted by key."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3
from numpy.typing import NDArray

from sightline.cache.errors import CacheError
from sightline.cache.keys import KEY_BYTES, Keys, as_keys, increasing, picked, sort_order
from sightline.cache.manifest import key_array, key_column
from sightline.cache.parquet import read_batches, read_schema
from sightline.cache.record import FeatureSetRecord, FileRecord
from sightline.cache.shard import check_file
from sightline.output import Output

OK = "ok"
_READ_ROWS = 1 << 16
_SCHEMA = pa.schema(
    [
        ("key", pa.binary(32)),
        ("shard", pa.int32()),  # position in the record's list; -1 for a failed row
        ("row", pa.int32()),
        ("status", pa.dictionary(pa.int8(), pa.string())),
    ]
)
# Keys are random bytes; shards and rows mostly count up, which delta encoding stores in a few bits.
_ENCODING = {"key": "PLAIN", "shard": "DELTA_BINARY_PACKED", "row": "DELTA_BINARY_PACKED"}


@dataclass(frozen=True)
class Index:
    """The position of every live row, and which keys failed.

    Attributes:
        keys: uint8 [n, 32], strictly increasing.
        shards, rows: int32 [n], position of the shard and the row within it.
        failed: key → error code.
    """

    keys: Keys
    shards: NDArray[np.int32]
    rows: NDArray[np.int32]
    failed: dict[bytes, str]

    def by_shard(self, count: int) -> list[NDArray[np.int64]]:
        """For each of ``count`` shards, the entries that point into it."""
        order = np.argsort(self.shards, kind="stable")
        edges = np.searchsorted(self.shards[order], np.arange(count + 1))
        return [order[start:end] for start, end in pairwise(edges)]


def write_index(output: Output, index: Index) -> FileRecord:
    """Write the index under a content-derived name."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        _table(index),
        sink,
        compression="none",
        column_encoding=_ENCODING,
        use_dictionary=["status"],  # pyright: ignore[reportArgumentType]
        write_statistics=False,
    )
    data = memoryview(sink.getvalue())
    digest = blake3(data).hexdigest()
    name = f"index-{digest[:32]}.parquet"
    output.write(name, data)
    return FileRecord(name=name, blake3=digest, bytes=data.nbytes)


def _table(index: Index) -> pa.Table:
    """Live and failed keys together, sorted."""
    keys, shards, rows = index.keys, index.shards, index.rows
    codes = [OK] * bool(len(keys))
    status = np.zeros(len(keys), dtype=np.int8)
    if index.failed:
        failed = sorted(index.failed)
        codes = list(dict.fromkeys([*codes, *(index.failed[key] for key in failed)]))
        none = np.full(len(failed), -1, dtype=np.int32)
        bad = np.array([codes.index(index.failed[key]) for key in failed], dtype=np.int8)
        keys = np.concatenate([keys, as_keys(failed)])
        order = sort_order(keys)
        keys = keys[order]
        shards = np.concatenate([shards, none])[order]
        rows = np.concatenate([rows, none])[order]
        status = np.concatenate([status, bad])[order]
    coded = pa.DictionaryArray.from_arrays(status, pa.array(codes, pa.string()))
    columns = [key_array(keys), shards, rows, coded]
    return pa.table(dict(zip(_SCHEMA.names, columns, strict=True)), schema=_SCHEMA)


def read_index(folder: Path, record: FeatureSetRecord) -> Index:
    """Read and check the index that ``record`` references.

    Raises:
        CacheError: it is missing, truncated, unsorted, or points outside the shards.
    """
    path = check_file(folder, record.index)
    remedy = "pull the feature set again, or rerun its stage"
    count = record.rows + record.failed
    keys = np.empty((count, KEY_BYTES), dtype=np.uint8)
    shards, rows = np.empty(count, dtype=np.int32), np.empty(count, dtype=np.int32)
    failed: dict[bytes, str] = {}
    if not read_schema(path).equals(_SCHEMA):
        raise CacheError(f"{path}: not an index of this version; {remedy}")
    end = 0
    for batch in read_batches(path, _SCHEMA.names, _READ_ROWS):
        start, end = end, end + len(batch)
        if end > count:
            break
        keys[start:end] = key_column(batch.column("key"))
        # Arrow's own to_numpy() takes half a second to import pandas
        shards[start:end] = np.from_dlpack(batch.column("shard"))
        rows[start:end] = np.from_dlpack(batch.column("row"))
        failed |= _failed(batch)
    if end != count:
        raise CacheError(f"{path}: has other rows than the {count} expected; {remedy}")
    if not increasing(keys):
        raise CacheError(f"{path}: keys are not sorted or appear twice; {remedy}")
    live = shards >= 0
    keys, shards, rows = picked(keys, live), picked(shards, live), picked(rows, live)
    sizes = np.array([shard.rows for shard in record.shards], dtype=np.int32)
    inside = len(keys) == 0 or (
        shards.max() < len(sizes) and rows.min() >= 0 and bool((rows < sizes[shards]).all())
    )
    if len(keys) != record.rows or not inside:
        raise CacheError(f"{path}: points to rows that do not exist; {remedy}")
    return Index(keys, shards, rows, failed)


def _failed(batch: pa.RecordBatch) -> dict[bytes, str]:
    """Key → error code of the failed rows in a batch."""
    status = batch.column("status")
    codes = status.dictionary.to_pylist()
    bad = np.flatnonzero(np.from_dlpack(batch.column("shard")) < 0)
    keys = key_column(batch.column("key"))[bad]
    return {
        key.tobytes(): codes[i]
        for key, i in zip(keys, np.from_dlpack(status.indices)[bad], strict=True)
    }
