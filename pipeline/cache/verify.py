"""Verify: read every byte of a feature set and name what is not as its record says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from pipeline.cache.content import content_digest
from pipeline.cache.errors import CacheError
from pipeline.cache.feature_set import FeatureSet
from pipeline.cache.keys import key_of_file
from pipeline.cache.record import FileRecord, ShardRecord, read_record
from pipeline.cache.shard import check_file, map_features, map_keys


def verify(folder: Path | str, progress: Callable[[int], None] = lambda _: None) -> list[str]:
    """Every fault of the feature set in ``folder``, one line each; empty when it is sound.

    Checks the commit file's own digest, sizes and SHA-256 of all files, layout and dtype of the
    shards, that index and shards agree on every key, that no value is NaN or infinite, and the
    content digest. ``progress`` is called with the bytes of each file once it was read.
    """
    folder = Path(folder)
    try:
        record = read_record(folder)
    except CacheError as error:
        return [str(error)]
    faults: list[str] = []
    for file in (record.index, *record.shards):
        fault = _file_fault(folder, file)
        if fault is None and isinstance(file, ShardRecord):
            fault = _values_fault(folder, file, record.spec.dim, np.dtype(record.spec.dtype))
        faults += [fault] if fault else []
        progress(file.bytes)
    if faults:
        return faults
    try:
        features = FeatureSet.open(folder)
    except CacheError as error:
        return [str(error)]
    for number, shard in enumerate(record.shards):
        mine = features.index.shards == number
        stored = map_keys(folder, shard)[features.index.rows[mine]]
        wrong = np.flatnonzero((stored != features.index.keys[mine]).any(axis=1))
        if len(wrong):
            rows = features.index.rows[mine][wrong][:5].tolist()
            where = folder / shard.name
            faults.append(f"{where}: {len(wrong)} keys are not the index's: rows {rows}")
    if not faults:
        found = content_digest(folder, record.spec, features.index, record.shards)
        if found != record.content_digest:
            faults.append(
                f"{folder}: content digest {found[:16]}, "
                f"the record says {record.content_digest[:16]}"
            )
    return faults


def _file_fault(folder: Path, file: FileRecord) -> str | None:
    try:
        path = check_file(folder, file)
    except CacheError as error:
        return str(error)
    found = key_of_file(path).hex()
    if found != file.sha256:
        return f"{path}: SHA-256 {found[:16]}, the record says {file.sha256[:16]}: damaged"
    return None


def _values_fault(folder: Path, shard: ShardRecord, dim: int, dtype: np.dtype) -> str | None:
    try:
        rows = map_features(folder, shard, dim, dtype)
    except CacheError as error:
        return str(error)
    bad = [
        start + int(i)
        for start in range(0, len(rows), 8192)
        for i in np.flatnonzero(~np.isfinite(rows[start : start + 8192]).all(axis=1))
    ]
    if bad:
        return f"{folder / shard.name}: {len(bad)} rows hold NaN or infinity: rows {bad[:5]}"
    return None
