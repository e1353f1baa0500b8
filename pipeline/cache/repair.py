"""Repair: take exactly the damaged shards out of a set; the next run computes their rows again."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.cache.assemble import Placed, publish
from pipeline.cache.commit import read_record, set_output
from pipeline.cache.errors import CacheError
from pipeline.cache.index import Index, read_index
from pipeline.cache.keys import unique_sorted
from pipeline.cache.record import FeatureSetRecord, SetRecord, TableSetRecord
from pipeline.cache.shard import check_file, map_features, map_keys
from pipeline.cache.tables import publish_tables
from pipeline.cache.verify import (
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
    """A shard that was taken out: its name, its rows that were in use, and what was wrong."""

    name: str
    rows: int
    reason: str


@dataclass(frozen=True)
class RepairReport:
    """What `repair` did.

    Attributes:
        dropped: the damaged shards.
        index_fault: what was wrong with the index, which was then made again from the shards' own
            keys; empty where it was sound.
        record: the set as it is now.
    """

    dropped: tuple[Dropped, ...]
    index_fault: str
    record: SetRecord

    def lines(self) -> list[str]:
        """What was done, one sentence a fault."""
        lines = [
            f"{each.reason}; taken out, its {each.rows:,} rows are to be computed again"
            for each in self.dropped
        ]
        if self.index_fault:
            lines.append(f"{self.index_fault}; made again from the keys in the shards")
        return lines


def repair(folder: Path, progress: Progress = lambda _: None) -> RepairReport:
    """Read every byte of the set in ``folder`` and take out the shards that are damaged.

    Of a grounding that is the damaged blocks of images.

    Their files are deleted and their rows leave the index; everything else stays as it is. A
    damaged index is made again, and rows in error, which only it knew, will be tried again.

    Raises:
        BusyError: a run is writing there.
        CacheError: ``set.json`` itself is damaged and nothing can be told without it, or a
            file may not be read.
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
        damaged = [shard.name for shard, found in zip(record.shards, faults, strict=True) if found]
        output.remove(damaged)
        return _take_out(output, folder, record, index, "; ".join(index_faults), faults)


def _repair_tables(
    output: Output, folder: Path, record: TableSetRecord, progress: Progress
) -> RepairReport:
    faults = check_tables(folder, record, progress)
    sound = [shard for shard, found in zip(record.shards, faults, strict=True) if not found]
    if len(sound) == len(record.shards) and not verify(folder):
        return RepairReport((), "", record)
    stay = {file.name for shard in sound for file in shard.tables.values()}
    dropped = []
    for shard, found in zip(record.shards, faults, strict=True):
        if found:
            output.remove({file.name for file in shard.tables.values()} - stay)
            first = next(iter(shard.tables.values()))
            dropped.append(Dropped(first.name, first.rows, "; ".join(found)))
    counts = {} if dropped else record.counts  # those of the whole set, which a run makes again
    now = publish_tables(output, record.spec, sound, counts, record.provenance)
    return RepairReport(tuple(dropped), "", now)


def _require_readable(folder: Path, record: SetRecord) -> None:
    """A file that may not be read says nothing about its rows, so it is no damage."""
    for file in record.files:
        path = folder / file.name
        if path.exists() and not os.access(path, os.R_OK):
            raise CacheError(f"{path}: may not be read (no permission); nothing was repaired")


def drop_unreadable(output: Output, folder: Path, record: FeatureSetRecord) -> RepairReport:
    """`repair` by the cheap checks of opening alone, in an output that the caller has entered.

    No file is deleted: what cannot be read now may be readable again.

    Raises:
        CacheError: a file is a link, which says nothing about the rows behind it.
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
    """Every row of the sound shards, by the keys that stand in them."""
    sound = [shard for shard, fine in zip(record.shards, good, strict=True) if fine]
    if not sound:
        return Placed.nothing()
    keys = np.concatenate([np.array(map_keys(folder, shard)) for shard in sound])
    counts = [shard.rows for shard in sound]
    shards = np.repeat(np.arange(len(sound), dtype=np.int32), counts)
    rows = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
    first = unique_sorted(keys)
    return Placed(keys[first], shards[first], rows[first], tuple(sound))
