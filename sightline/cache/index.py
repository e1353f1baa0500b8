"""The index of a set: key → shard, row, digest of the row and status, sorted by key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3

from sightline.cache.keys import KEY_BYTES, as_keys, increasing, picked, sort_order
from sightline.cache.manifest import (
    KEY,
    count_rows,
    key_array,
    key_column,
    read_batches,
    read_schema,
)
from sightline.cache.record import FILE_NAME, FileRecord, SetRecord, check_file
from sightline.cache.rows import Rows, Shard
from sightline.cache.shards import DIGEST_BYTES
from sightline.errors import CacheError
from sightline.files.output import Output
from sightline.tables.arrow_arrays import number_array, os_file, text_array

OK = "ok"
INDEX_BYTES = 61
"""Of a row, about."""
_ROWS = 1 << 16  # at once
_AGAIN = "pull the set again, or rerun its stage"
_FEW_CODES, _MANY_CODES = pa.int8(), pa.int32()


def _schema(codes: pa.DataType) -> pa.Schema:
    """The columns of an index; ``codes`` is the type of the numbers of its codes of status."""
    return pa.schema(
        [
            ("key", KEY),
            ("shard", pa.int32()),  # position in the record's list; -1 for a row without values
            ("row", pa.int32()),
            ("digest", pa.binary(DIGEST_BYTES)),  # zeros for a row without values
            ("status", pa.dictionary(codes, pa.string())),
        ]
    )


# Keys are random bytes; shards and rows mostly count up, which delta encoding stores in a few bits.
_ENCODING = {"key": "PLAIN", "digest": "PLAIN"} | dict.fromkeys(
    ("shard", "row"), "DELTA_BINARY_PACKED"
)


def write_index(output: Output, rows: Rows, failed: Mapping[bytes, str]) -> FileRecord:
    """Write the index of ``rows``, which have digests, under a content-derived name.

    Args:
        failed: key → error code of rows without values.
    """
    with output.scratch() as scratch:  # in memory it would take twice its size
        path = scratch / "index"
        with os_file(path, "w") as file:
            pq.write_table(
                _table(rows, failed),
                file,
                compression="none",
                column_encoding=_ENCODING,
                use_dictionary=["status"],  # pyright: ignore[reportArgumentType]
                write_statistics=False,
            )
        with pa.memory_map(os.fsencode(path)) as opened:
            data = memoryview(opened.read_buffer())
        digest = blake3(data).hexdigest()
        name = f"index-{digest[:32]}.parquet"
        output.write(name, data)
    return FileRecord(name=name, blake3=digest, bytes=data.nbytes)


def _table(rows: Rows, failed: Mapping[bytes, str]) -> pa.Table:
    assert rows.digests is not None
    columns = [rows.keys, rows.shards, rows.numbers, rows.digests]
    bad = sorted(failed)
    codes = {code: i for i, code in enumerate(dict.fromkeys([OK, *(failed[k] for k in bad)]))}
    kind = _FEW_CODES if len(codes) <= 1 << 7 else _MANY_CODES
    status = np.zeros(len(rows), dtype=kind.to_pandas_dtype())
    if failed:
        none = np.full(len(bad), -1, dtype=np.int32)
        zeros = np.zeros((len(bad), DIGEST_BYTES), dtype=np.uint8)
        numbers = np.array([codes[failed[key]] for key in bad], dtype=status.dtype)
        failures = [as_keys(bad), none, none, zeros]
        columns = [np.concatenate(both) for both in zip(columns, failures, strict=True)]
        order = sort_order(columns[0])
        columns = [column[order] for column in columns]
        status = np.concatenate([status, numbers])[order]
    names = text_array([*codes], pa.string())
    coded = pa.DictionaryArray.from_arrays(number_array(status), names)
    keys, shards, numbers, digests = columns
    places = [number_array(shards), number_array(numbers)]
    return pa.table([key_array(keys), *places, key_array(digests), coded], schema=_schema(kind))


def read_index(
    folder: Path, record: SetRecord, *, digests: bool = False
) -> tuple[Rows, dict[bytes, str]]:
    """The rows of the set in ``folder``, and the code of every failed key.

    Args:
        digests: read the rows' digests too, half of the file.

    Raises:
        CacheError: the index is missing, truncated, unsorted, or points outside the shards.
    """
    path = check_file(folder, record.index)
    count, stored = record.rows + record.failed, count_rows(path)
    if stored != count:  # before memory is taken for so many
        raise CacheError(
            f"{path}: has {stored:,} rows, but {FILE_NAME} says {record.rows:,} and "
            f"{record.failed:,} failed ones; {_AGAIN}"
        )
    if not any(read_schema(path).equals(_schema(codes)) for codes in (_FEW_CODES, _MANY_CODES)):
        raise CacheError(f"{path}: not an index of this version; {_AGAIN}")
    keys = np.empty((count, KEY_BYTES), dtype=np.uint8)
    shards, rows = np.empty(count, dtype=np.int32), np.empty(count, dtype=np.int32)
    hashes = np.empty((count if digests else 0, DIGEST_BYTES), dtype=np.uint8)
    failed: dict[bytes, str] = {}
    end = 0
    columns = [name for name in _schema(_FEW_CODES).names if digests or name != "digest"]
    for batch in read_batches(path, columns, _ROWS):
        start, end = end, end + len(batch)
        keys[start:end] = key_column(batch.column("key"))
        # Arrow's own to_numpy() takes half a second to import pandas
        shards[start:end] = np.from_dlpack(batch.column("shard"))
        rows[start:end] = np.from_dlpack(batch.column("row"))
        if digests:
            hashes[start:end] = key_column(batch.column("digest"), DIGEST_BYTES)
        failed |= _failed(batch)
    if not increasing(keys):
        raise CacheError(f"{path}: keys are not sorted or appear twice; {_AGAIN}")
    live = shards >= 0
    keys, shards, rows = picked(keys, live), picked(shards, live), picked(rows, live)
    sizes = np.array([shard.rows for shard in record.shards], dtype=np.int32)
    inside = len(keys) == 0 or (
        shards.max() < len(sizes) and rows.min() >= 0 and bool((rows < sizes[shards]).all())
    )
    if len(keys) != record.rows or not inside:
        raise CacheError(f"{path}: points to rows that do not exist; {_AGAIN}")
    files = [Shard(folder, shard) for shard in record.shards]
    row_digests = picked(hashes, live) if digests else None
    return Rows(record.spec, files, keys, shards, rows, row_digests), failed


def content_digest(rows: Rows, failed: Mapping[bytes, str]) -> str:
    """The content digest of a set with these rows, which have digests, and failed keys (hex).

    It is the BLAKE3 of the fingerprint, every key with its row's digest, and every failed key with
    its code, both in the order of the keys. Two sets with one fingerprint have equal digests
    exactly when they hold the same rows, regardless of the history of additions, removals and
    kills behind their shards.
    """
    assert rows.digests is not None
    total = blake3(rows.spec.fingerprint.encode())
    for start in range(0, len(rows), _ROWS):
        part = slice(start, start + _ROWS)
        total.update(np.hstack([rows.keys[part], rows.digests[part]]).data)
    for key in sorted(failed):
        total.update(key + failed[key].encode())
    return total.hexdigest()


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
