"""Verify: read every byte of a feature set and name what is not as its record says."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.cache.content import content_digest
from pipeline.cache.errors import CacheError
from pipeline.cache.index import Index, read_index
from pipeline.cache.keys import increasing
from pipeline.cache.record import (
    FILE_NAME,
    FeatureSetRecord,
    FileRecord,
    ShardRecord,
    read_record,
    to_bytes,
)
from pipeline.cache.shard import check_file, map_features, map_keys

_READ_BYTES = 8 << 20
_ROWS = 8192
_INFINITY = {2: (np.uint16, 0x7C00), 4: (np.uint32, 0x7F800000)}
"""Item size → the bits of a float as a number, and those of infinity; NaN is above it."""

Progress = Callable[[int], None]


def verify(folder: Path | str, progress: Progress = lambda _: None) -> list[str]:
    """Every fault of the feature set in ``folder``, one line each; empty when it is sound.

    Checks the commit file's own digest and exact bytes, sizes and SHA-256 of all files, layout and
    dtype of the shards, the order of keys, that index and shards agree on every key, that no value
    is NaN or infinite, and the content digest.

    Args:
        progress: is told the bytes that were checked; their sum is `bytes_to_verify`.
    """
    folder = Path(folder)
    try:
        record = read_record(folder)
    except CacheError as error:
        return [str(error)]
    faults: list[str] = []
    if (folder / FILE_NAME).read_bytes() != to_bytes(record):
        faults.append(f"{folder / FILE_NAME}: says the right things in other bytes: changed")
    index, index_faults = check_index(folder, record, progress)
    faults += index_faults
    with ThreadPoolExecutor(max_workers=1) as pool:  # hashing is the slow part: two at a time
        content = pool.submit(_content, folder, record, index, progress)
        for found in check_shards(folder, record, index, progress):
            faults += found
    found = content.result()
    if not faults and found != record.content_digest:
        faults.append(
            f"{folder}: content digest {found[:16]}, the record says {record.content_digest[:16]}"
        )
    return faults


def bytes_to_verify(record: FeatureSetRecord) -> int:
    """What `verify` tells its progress in all: every file, then every live row once more."""
    row_bytes = record.spec.dim * np.dtype(record.spec.dtype).itemsize
    return record.size + record.rows * row_bytes


def check_index(
    folder: Path, record: FeatureSetRecord, progress: Progress = lambda _: None
) -> tuple[Index | None, list[str]]:
    """The index, or None where it is damaged, and what is wrong with it."""
    fault = _file_fault(folder, record.index, progress)
    if fault is not None:
        return None, [fault]
    try:
        return read_index(folder, record), []
    except CacheError as error:
        return None, [str(error)]


def check_shards(
    folder: Path,
    record: FeatureSetRecord,
    index: Index | None,
    progress: Progress = lambda _: None,
) -> list[list[str]]:
    """The faults of each shard, in the record's order; several are read at a time."""
    places = index.by_shard(len(record.shards)) if index is not None else None

    def check(number: int) -> list[str]:
        here = None if index is None or places is None else (index, places[number])
        return _shard_faults(folder, record, record.shards[number], here, progress)

    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        return list(pool.map(check, range(len(record.shards))))


def _content(
    folder: Path, record: FeatureSetRecord, index: Index | None, progress: Progress
) -> str:
    """The content digest, or nothing where a shard or the index cannot be read."""
    if index is None:
        return ""
    try:
        return content_digest(folder, record.spec, index, record.shards, progress)
    except CacheError:
        return ""  # `check_shards` says why


def _shard_faults(
    folder: Path,
    record: FeatureSetRecord,
    shard: ShardRecord,
    here: tuple[Index, NDArray[np.int64]] | None,
    progress: Progress,
) -> list[str]:
    """Faults of one shard; ``here`` is the index and its entries that point into it."""
    path = folder / shard.name
    in_use = f", {len(here[1]):,} of them in use" if here is not None else ""
    rows_at_stake = f"rows 0-{shard.rows - 1:,} ({shard.rows:,}{in_use})"
    dtype = np.dtype(record.spec.dtype).newbyteorder("<")
    fault = _file_fault(folder, shard, progress)
    try:
        features = map_features(folder, shard, record.spec.dim, dtype)
        keys = map_keys(folder, shard)
    except CacheError as error:
        return [f"{fault or error}; {rows_at_stake} are lost"]
    faults: list[str] = []
    if fault is not None:
        faults.append(f"{fault}; {_what_changed(shard, keys, features)}; {rows_at_stake} in doubt")
    bad = _not_finite(features)
    if len(bad):
        faults.append(f"{path}: {len(bad):,} rows hold NaN or infinity: {_some(bad)}")
    if here is not None:
        index, entries = here
        rows = index.rows[entries]
        wrong = np.sort(rows[(keys[rows] != index.keys[entries]).any(axis=1)])
        if len(wrong):
            faults.append(f"{path}: {len(wrong):,} keys are not the index's: {_some(wrong)}")
    if not faults and not increasing(keys):
        faults.append(f"{path}: its keys are not sorted, or one stands there twice")
    return faults


def _file_fault(folder: Path, file: FileRecord, progress: Progress) -> str | None:
    try:
        path = check_file(folder, file)
    except CacheError as error:
        progress(file.bytes)
        return str(error)
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as handle:
            block = bytearray(_READ_BYTES)
            while count := handle.readinto(block):
                digest.update(memoryview(block)[:count])
                progress(count)
    except OSError as error:
        return f"{path}: cannot be read ({error.strerror})"
    if digest.hexdigest() != file.sha256:
        found = digest.hexdigest()[:16]
        return f"{path}: SHA-256 {found}, the record says {file.sha256[:16]}: damaged"
    return None


def _what_changed(shard: ShardRecord, keys: NDArray[np.uint8], features: NDArray) -> str:
    """A shard's name is a digest of its keys and rows, which tells where the damage is."""
    content = hashlib.sha256(np.ascontiguousarray(keys).data)
    content.update(np.ascontiguousarray(features).data)
    if shard.name == f"shard-{content.hexdigest()[:32]}.h5":
        return "its keys and rows are as they were, the bytes around them changed"
    return "its keys or rows changed"


def _not_finite(features: NDArray) -> NDArray[np.int64]:
    """Rows that hold NaN or infinity, by their bits: several times as fast as the floats."""
    kind, infinity = _INFINITY[features.dtype.itemsize]
    bits = features.view(kind)
    magnitude = kind(np.iinfo(kind).max >> 1)
    bad: list[NDArray[np.int64]] = []
    for start in range(0, len(bits), _ROWS):
        block = bits[start : start + _ROWS] & magnitude
        if block.max() >= infinity:
            bad.append(start + np.flatnonzero((block >= infinity).any(axis=1)))
    return np.concatenate(bad) if bad else np.empty(0, dtype=np.int64)


def _some(rows: NDArray) -> str:
    shown = ", ".join(str(row) for row in rows[:5])
    return f"row{'s' if len(rows) > 1 else ''} {shown}{', …' if len(rows) > 5 else ''}"
