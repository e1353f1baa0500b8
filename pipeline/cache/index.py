"""The index of a feature set: key → shard, row and status, sorted by key."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.cache.atomic import write_bytes
from pipeline.cache.errors import CacheError
from pipeline.cache.keys import Keys, increasing
from pipeline.cache.manifest import key_array, key_column
from pipeline.cache.record import FeatureSetRecord, FileRecord
from pipeline.cache.shard import check_file

OK = "ok"
_CODE = re.compile(r"[a-z0-9_]{1,40}")  # each failed row holds its own copy
_SCHEMA = pa.schema(
    [
        ("key", pa.binary(32)),
        ("shard", pa.int32()),  # position in the record's list; -1 for a row in error
        ("row", pa.int32()),
        ("status", pa.dictionary(pa.int8(), pa.string())),
    ]
)
# No column is compressed, so that a small file cannot become a large table. Keys are random bytes,
# and shards and rows are mostly counted up, which differences say in a few bits.
_ENCODING = {"key": "PLAIN", "shard": "DELTA_BINARY_PACKED", "row": "DELTA_BINARY_PACKED"}


@dataclass(frozen=True)
class Index:
    """Where every live row lies, and which keys failed.

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
        """For each of ``count`` shards the entries that point into it."""
        order = np.argsort(self.shards, kind="stable")
        edges = np.searchsorted(self.shards[order], np.arange(count + 1))
        return [order[start:end] for start, end in pairwise(edges)]


def write_index(folder: Path, index: Index) -> FileRecord:
    """Write the index, named by its content."""
    failed = sorted(index.failed)
    bad = np.frombuffer(b"".join(failed), dtype=np.uint8).reshape(-1, 32)
    none = np.full(len(bad), -1, dtype=np.int32)
    keys = np.concatenate([index.keys, bad])
    table = pa.table(
        {
            "key": key_array(keys),
            "shard": np.concatenate([index.shards, none]),
            "row": np.concatenate([index.rows, none]),
            "status": pa.array(
                [OK] * len(index.keys) + [index.failed[key] for key in failed], pa.string()
            ).dictionary_encode(),
        }
    )
    order = np.lexsort(tuple(keys.view(">u8")[:, word] for word in (3, 2, 1, 0)))
    table = table.take(pa.array(order)).cast(_SCHEMA)
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="none",
        column_encoding=_ENCODING,
        use_dictionary=["status"],  # pyright: ignore[reportArgumentType]
        write_statistics=False,
    )
    data = sink.getvalue().to_pybytes()
    sha256 = hashlib.sha256(data).hexdigest()
    name = f"index-{sha256[:32]}.parquet"
    write_bytes(folder / name, data)
    return FileRecord(name=name, sha256=sha256, bytes=len(data))


def _compressed(metadata: pq.FileMetaData) -> bool:
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    columns = (group.column(i) for group in groups for i in range(group.num_columns))
    return any(column.compression != "UNCOMPRESSED" for column in columns)


def read_index(folder: Path, record: FeatureSetRecord) -> Index:
    """Read and check the index that ``record`` names.

    Raises:
        CacheError: it is missing, cut short, unsorted, or points outside the shards.
    """
    path = check_file(folder, record.index)
    remedy = "pull the feature set again, or run its stage again"
    try:
        with pq.ParquetFile(path) as file:
            found, expected = file.metadata.num_rows, record.rows + record.failed
            if found != expected:
                raise CacheError(f"{path}: {found} rows, expected {expected}; {remedy}")
            if not file.schema_arrow.equals(_SCHEMA) or _compressed(file.metadata):
                raise CacheError(f"{path}: not an index of this version; {remedy}")
            table = file.read()
    except CacheError:
        raise
    except Exception as error:  # on forged or damaged files the library raises anything at all
        raise CacheError(f"{path}: not a readable Parquet file ({error}); {remedy}") from error
    if any(table.column(name).null_count for name in table.column_names):
        raise CacheError(f"{path}: holds empty cells; {remedy}")
    keys = key_column(table.column("key"))
    if not increasing(keys):
        raise CacheError(f"{path}: keys are not sorted or appear twice; {remedy}")
    shards, rows = table.column("shard").to_numpy(), table.column("row").to_numpy()
    codes = {code for chunk in table.column("status").chunks for code in chunk.dictionary.tolist()}
    if not all(isinstance(code, str) and _CODE.fullmatch(code) for code in codes):
        raise CacheError(f"{path}: holds error codes that are none; {remedy}")
    live = shards >= 0
    status = table.column("status").filter(pa.array(~live)).to_pylist()
    bad = keys[~live]
    failed = {bad[i].tobytes(): code for i, code in enumerate(status)}
    if not live.all():
        keys, shards, rows = keys[live], shards[live], rows[live]
    sizes = np.array([shard.rows for shard in record.shards], dtype=np.int32)
    inside = len(keys) == 0 or (
        shards.max() < len(sizes) and rows.min() >= 0 and bool((rows < sizes[shards]).all())
    )
    if len(keys) != record.rows or not inside:
        raise CacheError(f"{path}: points to rows that no shard has; {remedy}")
    return Index(keys, shards, rows, failed)
