"""Repair: remove exactly the damaged shards of a set; the next run recomputes their rows."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sightline.cache.assemble import Placed, publish
from sightline.cache.commit import read_record, set_output
from sightline.cache.errors import CacheError
from sightline.cache.index import Index, read_index
from sightline.cache.keys import unique_sorted
from sightline.cache.record import FeatureSetRecord, SetRecord, TableSetRecord
from sightline.cache.shard import check_file, map_features, map_keys
from sightline.cache.tables import publish_tables
from sightline.cache.verify import (
    Progress,
    check_index,
    check_shards,
    check_tables,
    is_true,
    verify,
)
from sightline.output import Output


@dataclass(frozen=True)
class Dropped:
    """A removed shard: its name, its rows that were in use, and what was wrong."""

    name: str
    rows: int
    reason: str


@dataclass(frozen=True)
class RepairReport:
    """The result of `repair`.

    Attributes:
        dropped: the damaged shards.
        index_fault: what was wrong with the index, which was then rebuilt from the keys in the
            shards; empty if it was intact.
        record: the current record of the set.
    """

    dropped: tuple[Dropped, ...]
    index_fault: str
    record: SetRecord

    def lines(self) -> list[str]:
        """What was done, one sentence per fault."""
        lines = [
            f"{each.reason}; removed, its {each.rows:,} rows will be recomputed"
            for each in self.dropped
        ]
        if self.index_fault:
            lines.append(f"{self.index_fault}; rebuilt from the keys in the shards")
        return lines


def repair(folder: Path, progress: Progress = lambda _: None) -> RepairReport:
    """Read every byte of the set in ``folder`` and remove damaged shards.

    For a grounding, these are damaged blocks of images.

    Drops their rows from the index, then deletes their files; everything else is unchanged. A
    damaged index is rebuilt; it was the only list of failed rows, so these will be retried.

    Raises:
        BusyError: a run is writing there.
        CacheError: ``set.json`` itself is damaged, without which nothing can be checked, or a
            file is not readable.
    """
    with set_output(folder) as output:
        record = read_record(folder)
        _require_readable(folder, record)
        if isinstance(record, TableSetRecord):
            return _repair_tables(output, folder, record, progress)
        assert isinstance(record, FeatureSetRecord)
        index, index_faults = check_index(folder, record, progress)
        faults = check_shards(folder, record, index, progress)
        if index is not None and not any(faults) and is_true(folder, record, index):
            return RepairReport((), "", record)
        done = _take_out(output, folder, record, index, "; ".join(index_faults), faults)
        output.remove(dropped.name for dropped in done.dropped)
        output.settle(file.name for file in done.record.files)
        return done


def _repair_tables(
    output: Output, folder: Path, record: TableSetRecord, progress: Progress
) -> RepairReport:
    faults = check_tables(folder, record, progress)
    sound = [shard for shard, found in zip(record.shards, faults, strict=True) if not found]
    if len(sound) == len(record.shards) and not verify(folder):
        return RepairReport((), "", record)
    stay = {file.name for shard in sound for file in shard.tables.values()}
    dropped, gone = list[Dropped](), set[str]()
    for shard, found in zip(record.shards, faults, strict=True):
        if found:
            gone |= {file.name for file in shard.tables.values()} - stay
            first = next(iter(shard.tables.values()))
            dropped.append(Dropped(first.name, first.rows, "; ".join(found)))
    counts = {} if dropped else record.counts  # the next run recounts
    now = publish_tables(output, record.spec, sound, counts, record.provenance)
    output.remove(gone)
    output.settle(file.name for file in now.files)
    return RepairReport(tuple(dropped), "", now)


def _require_readable(folder: Path, record: SetRecord) -> None:
    """Raise for an unreadable file: missing permission does not mean damage."""
    for file in record.files:
        path = folder / file.name
        if path.exists() and not os.access(path, os.R_OK):
            raise CacheError(f"{path}: no permission to read; nothing was repaired")


def drop_unreadable(output: Output, folder: Path, record: FeatureSetRecord) -> RepairReport:
    """`repair` with only the cheap checks of opening, in an output the caller has entered.

    Deletes no file: one that cannot be read now may be readable later.

    Raises:
        CacheError: a file is a link, so its rows cannot be checked.
    """
    for file in (record.index, *record.shards):
        if (folder / file.name).is_symlink():
            check_file(folder, file)
    try:
        index, index_fault = read_index(folder, record), ""
    except CacheError as error:
        index, index_fault = None, str(error)
    dtype = np.dtype(record.spec.dtype).newbyteorder("<")
    faults: list[list[str]] = []
    for shard in record.shards:
        try:
            map_features(folder, shard, record.spec.dim, dtype)
            map_keys(folder, shard)
            faults.append([])
        except CacheError as error:
            faults.append([str(error)])
    return _take_out(output, folder, record, index, index_fault, faults)


def _take_out(
    output: Output,
    folder: Path,
    record: FeatureSetRecord,
    index: Index | None,
    index_fault: str,
    faults: list[list[str]],
) -> RepairReport:
    good = np.array([not found for found in faults], dtype=bool)
    if index is None:
        placed, failed = _from_shards(folder, record, good), {}
        in_use = np.array([shard.rows for shard in record.shards])
    else:
        every = Placed(index.keys, index.shards, index.rows, record.shards)
        in_use, failed = every.live_rows(), index.failed
        placed = every.only(good[every.shards]) if len(every.keys) else every
    dropped = tuple(
        Dropped(shard.name, int(in_use[i]), "; ".join(faults[i]))
        for i, shard in enumerate(record.shards)
        if faults[i]
    )
    now = publish(output, record.spec, [placed], failed, record.provenance)
    return RepairReport(dropped, index_fault, now)


def _from_shards(folder: Path, record: FeatureSetRecord, good: np.ndarray) -> Placed:
    """Every row of the intact shards, by the keys they contain."""
    sound = [shard for shard, fine in zip(record.shards, good, strict=True) if fine]
    if not sound:
        return Placed.nothing()
    keys = np.concatenate([np.array(map_keys(folder, shard)) for shard in sound])
    counts = [shard.rows for shard in sound]
    shards = np.repeat(np.arange(len(sound), dtype=np.int32), counts)
    rows = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
    first = unique_sorted(keys)
    return Placed(keys[first], shards[first], rows[first], tuple(sound))
