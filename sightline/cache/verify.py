"""Verify and repair: what does not match a set's record is named, and exactly that is taken out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.cache.commit import commit
from sightline.cache.file_checks import UNREADABLE, Progress, file_faults
from sightline.cache.index import content_digest, read_index
from sightline.cache.record import (
    DAMAGED,
    FILE_NAME,
    FeatureSpec,
    FileRecord,
    SetRecord,
    ShardRecord,
    Spec,
    TableSpec,
    read_record,
    set_output,
    snapshot,
    to_bytes,
)
from sightline.cache.rows import Rows, Shard, rows_in
from sightline.cache.shards import DIGEST_BYTES, open_shard
from sightline.errors import CacheError


def verify(
    folder: Path | str, progress: Progress = lambda _: None, *, rows: bool = False
) -> list[str]:
    """Every fault of the set in ``folder``, one line each; empty if it is intact.

    Checks the commit file's own digest and exact bytes, the sizes and BLAKE3 of all files, and the
    content digest; of a damaged shard also its rows, to name those that changed.

    Args:
        progress: receives the bytes checked; their sum is `bytes_to_verify`.
        rows: check the rows of every shard too: that they are those that the index lists, in the
            order of their keys, and finite.
    """
    folder = Path(folder)
    try:
        snapshot(folder, lambda record: require_whole(folder, record, progress, rows=rows))
    except Damaged as error:
        return error.faults
    except CacheError as error:
        return [str(error)]
    return []


class Damaged(CacheError):
    """A set is damaged.

    Attributes:
        faults: one line each.
    """

    def __init__(self, faults: list[str]) -> None:
        super().__init__(faults[0])
        self.faults = faults


def require_whole(
    folder: Path, record: SetRecord, progress: Progress = lambda _: None, *, rows: bool = False
) -> None:
    """Raise `Damaged` unless the files of a set are whole; arguments as of `verify`."""
    faults: list[str] = []
    if (folder / FILE_NAME).read_bytes() != to_bytes(record):
        faults.append(f"{folder / FILE_NAME}: its content is valid, but the file was rewritten")
    damaged = file_faults(folder, record.files, progress)
    every, failed, fault = _index(folder, record, damaged)
    faults += [fault] if fault else []
    live = every.by_shard() if every is not None else []
    for number, shard in enumerate(record.shards):
        if shard.name in damaged:
            live_rows = live[number] if live else None
            changed = _what_changed(damaged[shard.name], shard, number, every, live_rows)
            faults.append(f"{damaged[shard.name]}; {changed}")
        elif every is not None:
            faults += _row_faults(every, number, live[number], look=rows)
        progress(shard.bytes if rows else 0)
    if not faults and every is not None:
        digest = content_digest(every, failed)
        if digest != record.content_digest:
            faults.append(
                f"{folder}: content digest {digest[:16]}, expected {record.content_digest[:16]}"
            )
    if faults:
        raise Damaged(faults)


def rows_to_compute(folder: Path) -> int:
    """How many rows `repair` took out of a sound set and no run has computed since."""
    _, failed = snapshot(folder, lambda record: read_index(folder, record))
    return sum(code == DAMAGED for code in failed.values())


def bytes_to_verify(record: SetRecord, *, rows: bool = False) -> int:
    """Total bytes that `verify` reports as progress."""
    return record.size + sum(shard.bytes for shard in record.shards if rows)


@dataclass(frozen=True)
class UsableRows:
    """What can be used of a set.

    Attributes:
        rows: rows in sound shards, with their digests.
        failed: key → code; `DAMAGED` for rows in damaged shards.
        dropped: the damaged shards: name → what is wrong with it, and what comes of it.
        index_fault: what was wrong with the index, which was then rebuilt from the keys in the
            shards; empty if it is intact.
    """

    rows: Rows
    failed: dict[bytes, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    index_fault: str = ""

    def lines(self) -> list[str]:
        """What is wrong, one sentence per fault."""
        lines = [*self.dropped.values()]
        if self.index_fault:
            lines.append(f"{self.index_fault}; rebuilt from the keys in the shards")
        return lines


def sound_part(folder: Path, record: SetRecord, damaged: dict[str, str]) -> UsableRows:
    """What can be used of a set in which the files ``damaged`` (name → fault) are."""
    rows, failed, fault = _index(folder, record, damaged)
    damaged = damaged | {
        shard.name: found
        for shard in record.shards
        if shard.name not in damaged and (found := _layout_fault(folder, shard, record.spec))
    }
    good = np.array([shard.name not in damaged for shard in record.shards], dtype=bool)
    if rows is None:
        rows = _from_shards(folder, record, good)
        in_use = np.array([shard.rows for shard in record.shards], dtype=np.int64)
    else:
        in_use = rows.live()
        if not good.all():
            stays = good[rows.shards]
            failed |= dict.fromkeys((key.tobytes() for key in rows.keys[~stays]), DAMAGED)
            rows = rows.only(stays)
    dropped = {
        name: f"{damaged[name]}; removed, its {rows:,} rows will be recomputed"
        for name, rows in zip((shard.name for shard in record.shards), in_use, strict=True)
        if name in damaged
    }
    return UsableRows(rows, failed, dropped, fault)


def all_sound(folder: Path, record: SetRecord) -> UsableRows:
    """The rows of a set without damage."""
    usable = sound_part(folder, record, file_faults(folder, record.files))
    if usable.lines():
        raise CacheError(f"{usable.lines()[0]}; run `sightline cache repair {folder}` first")
    return usable


def repair(folder: Path, progress: Progress = lambda _: None) -> UsableRows:
    """Read every byte of the set in ``folder`` and take out damaged shards.

    Their rows leave the index, to be computed by the next run, then their files are removed;
    everything else is unchanged. A damaged index is rebuilt; it was the only list of failed rows,
    so these will be retried.
    """
    with set_output(folder) as output:
        record = read_record(folder)
        _require_readable(folder, record.files)
        damaged = file_faults(folder, record.files, progress)
        usable = sound_part(folder, record, damaged)
        if not usable.lines() and not verify(folder):
            return usable
        commit(output, [usable.rows], usable.failed, record.provenance, record.cut)
        output.remove(usable.dropped)
        return usable


def _require_readable(folder: Path, files: Sequence[FileRecord]) -> None:
    """Raise for an unreadable file: missing permission does not mean damage."""
    for file in files:
        path = folder / file.name
        if path.exists() and not os.access(path, os.R_OK):
            raise CacheError(f"{path}: no permission to read; nothing was repaired")


def _index(
    folder: Path, record: SetRecord, damaged: dict[str, str]
) -> tuple[Rows | None, dict[bytes, str], str]:
    """The rows that the index lists, with digests, and failed keys; or what is wrong with it."""
    fault = damaged.get(record.index.name, "")
    if not fault:
        try:
            return *read_index(folder, record, digests=True), ""
        except CacheError as error:
            fault = str(error)
    return None, {}, fault


def _from_shards(folder: Path, record: SetRecord, good: NDArray[np.bool_]) -> Rows:
    """Every row of the intact shards, by the keys they contain."""
    sound = [Shard(folder, s) for s, fine in zip(record.shards, good, strict=True) if fine]
    rows = rows_in(record.spec, sound)
    parts = [rows.format.digests(rows.shard(number).rows) for number in range(len(sound))]
    starts = np.cumsum([0, *(len(part) for part in parts)])
    every = np.concatenate(parts) if parts else np.empty((0, DIGEST_BYTES), dtype=np.uint8)
    rows.digests = every[starts[rows.shards] + rows.numbers]
    return rows


def _what_changed(
    fault: str, shard: ShardRecord, number: int, every: Rows | None, live: NDArray | None
) -> str:
    """Which rows of a damaged shard are not those that the index lists."""
    in_use = "" if live is None else f" ({len(live):,} in use)"
    lost = f"its {shard.rows:,} rows{in_use} are lost"
    if every is None or live is None or UNREADABLE in fault:  # mapping it would end the process
        return lost
    try:
        wrong = _differing(every, number, live)
    except CacheError:
        return lost
    if not len(wrong):
        return "its keys and rows are intact, the bytes around them changed"
    return f"{len(wrong):,} of its {shard.rows:,} rows{in_use} changed: {_some(wrong)}"


def _row_faults(every: Rows, number: int, live: NDArray, *, look: bool) -> list[str]:
    """What is wrong with a shard whose bytes are those of the record; ``look`` at its rows too."""
    if not look and isinstance(every.spec, TableSpec):
        return []
    faults: list[str] = []
    path = every.files[number].folder / every.files[number].record.name
    try:
        rows = every.shard(number).rows
        if not look:
            return []
        wrong = _differing(every, number, live)
    except CacheError as error:
        return [str(error)]
    if len(wrong):
        faults.append(f"{path}: {len(wrong):,} rows are not the index's: {_some(wrong)}")
    if isinstance(rows, np.ndarray):
        bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if len(bad):
            faults.append(f"{path}: {len(bad):,} rows hold NaN or infinity: {_some(bad)}")
    return faults


def _layout_fault(folder: Path, shard: ShardRecord, spec: Spec) -> str | None:
    """Why a shard of numbers cannot be mapped; its values are not read."""
    if isinstance(spec, FeatureSpec):
        try:
            open_shard(folder, shard, spec)
        except CacheError as error:
            return str(error)
    return None


def _differing(every: Rows, number: int, live: NDArray) -> NDArray[np.int32]:
    """Numbers of the rows of a shard that differ from the index in key or digest, sorted."""
    assert every.digests is not None
    shard, numbers = every.shard(number), every.numbers[live]
    same = (shard.keys[numbers] == every.keys[live]).all(axis=1)
    same &= (every.format.digests(shard.rows)[numbers] == every.digests[live]).all(axis=1)
    return np.sort(numbers[~same])


def _some(rows: NDArray) -> str:
    shown = ", ".join(str(row) for row in rows[:5])
    return f"row{'s' if len(rows) > 1 else ''} {shown}{', …' if len(rows) > 5 else ''}"
