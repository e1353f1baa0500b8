"""Verify: read every byte of a set and report what does not match its record."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from sightline.cache.commit import FILE_NAME, read_record, to_bytes
from sightline.cache.content import content_digest
from sightline.cache.errors import CacheError
from sightline.cache.index import Index, read_index
from sightline.cache.record import FeatureSetRecord, SetRecord, TableRecord, TableSetRecord
from sightline.cache.shard_check import Progress, file_fault, shard_faults
from sightline.cache.tables import read_table, table_content

_CORES = os.cpu_count() or 1


def verify(folder: Path | str, progress: Progress = lambda _: None) -> list[str]:
    """Every fault of the set in ``folder``, one line each; empty if it is intact.

    Checks the commit file's own digest and exact bytes, the sizes and BLAKE3 of all files, and the
    content digest. For features, also checks the layout and dtype of the shards, the order of
    keys, that index and shards agree on every key, and that no value is NaN or infinite; for
    tables, also their columns and row counts.

    Args:
        progress: receives the bytes checked; their sum is `bytes_to_verify`.
    """
    folder = Path(folder)
    try:
        record = read_record(folder)
    except CacheError as error:
        return [str(error)]
    faults: list[str] = []
    if (folder / FILE_NAME).read_bytes() != to_bytes(record):
        faults.append(f"{folder / FILE_NAME}: its content is valid, but the file was rewritten")
    if isinstance(record, FeatureSetRecord):
        found = _feature_faults(folder, record, faults, progress)
    else:
        assert isinstance(record, TableSetRecord)
        faults += [line for lines in check_tables(folder, record, progress) for line in lines]
        try:
            found = ""
            if not faults:
                shards = record.shards
                found = table_content(folder, record.spec, shards, progress, hashed=True)
        except CacheError as error:  # the files match the record, but not each other
            found = ""
            faults.append(str(error))
    if not faults and found != record.content_digest:
        faults.append(
            f"{folder}: content digest {found[:16]}, expected {record.content_digest[:16]}"
        )
    return faults


def _feature_faults(
    folder: Path, record: FeatureSetRecord, faults: list[str], progress: Progress
) -> str:
    """Add the faults of a feature set's files; returns its content digest, or an empty string."""
    index, index_faults = check_index(folder, record, progress)
    faults += index_faults
    with ThreadPoolExecutor(max_workers=1) as pool:  # one core for the content, the rest for files
        content = pool.submit(_content, folder, record, index, progress)
        for found in check_shards(folder, record, index, progress, threads=_CORES - 1):
            faults += found
    return content.result()


def check_tables(
    folder: Path, record: TableSetRecord, progress: Progress = lambda _: None
) -> list[list[str]]:
    """The faults of each shard of tables, in the record's order."""
    return [
        [
            fault
            for name, file in shard.tables.items()
            if (fault := _table_fault(folder, name, file, progress))
        ]
        for shard in record.shards
    ]


def _table_fault(folder: Path, name: str, file: TableRecord, progress: Progress) -> str | None:
    try:
        fault = file_fault(folder, file, progress)
        if fault is None:
            read_table(folder, name, file, hashed=True)
    except CacheError as error:
        return str(error)
    return None if fault is None else f"{fault}; its {file.rows:,} rows are in doubt"


def is_true(folder: Path, record: FeatureSetRecord, index: Index) -> bool:
    """Check the commit file, byte for byte, of a set whose files are intact."""
    written = (folder / FILE_NAME).read_bytes()
    return written == to_bytes(record) and record.content_digest == content_digest(
        folder, record.spec, index, record.shards
    )


def bytes_to_verify(record: SetRecord) -> int:
    """Total bytes that `verify` reports as progress: every file, then every row once more."""
    if not isinstance(record, FeatureSetRecord):
        return 2 * record.size
    row_bytes = record.spec.dim * np.dtype(record.spec.dtype).itemsize
    return record.size + record.rows * row_bytes


def check_index(
    folder: Path, record: FeatureSetRecord, progress: Progress = lambda _: None
) -> tuple[Index | None, list[str]]:
    """The index, or None if it is damaged, and what is wrong with it."""
    fault = file_fault(folder, record.index, progress)
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
    threads: int = _CORES,
) -> list[list[str]]:
    """The faults of each shard, in the record's order; reads several in parallel."""
    count = len(record.shards)
    places = index.by_shard(count) if index is not None else None

    def check(number: int) -> list[str]:
        here = None if index is None or places is None else (index, places[number])
        return shard_faults(folder, record, record.shards[number], here, progress)

    order = list(range(count))
    if places is not None:  # the content digest's order, so that both read a shard at the same time
        order.sort(key=lambda number: places[number][0] if len(places[number]) else -1)
    with ThreadPoolExecutor(max_workers=max(1, min(4, threads))) as pool:
        found = dict(zip(order, pool.map(check, order), strict=True))
    return [found[number] for number in range(count)]


def _content(
    folder: Path, record: FeatureSetRecord, index: Index | None, progress: Progress
) -> str:
    """The content digest, or an empty string if a shard or the index cannot be read."""
    if index is None:
        return ""
    try:
        return content_digest(folder, record.spec, index, record.shards, progress)
    except CacheError:
        return ""  # `check_shards` reports why
