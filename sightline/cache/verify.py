"""Verify: what does not match a set's record is named, and what of it can be used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from sightline.cache.file_checks import Progress, file_faults, require_sound
from sightline.cache.index import content_digest, read_index
from sightline.cache.record import (
    DAMAGED,
    FILE_NAME,
    FeatureSpec,
    SetRecord,
    ShardRecord,
    Spec,
    TableKind,
    read_record,
    to_bytes,
)
from sightline.cache.rows import Rows, Shard, rows_in
from sightline.cache.shards import DIGEST_BYTES, open_shard
from sightline.errors import CacheError

T = TypeVar("T")


def snapshot(
    folder: Path, read: Callable[[Any], T], kind: Literal["features", ""] | TableKind = ""
) -> T:
    """What ``read`` makes of the record in ``folder`` and of the files that it lists.

    All is of one moment: where another run has published by then, whose `gc` may even have removed
    files of this record, it is read again.

    Args:
        read: gets the record.
        kind: as of `read_record`.
    """
    while True:
        record = read_record(folder, kind)  # pyright: ignore[reportArgumentType, reportCallIssue]
        try:
            content = read(record)
        except (CacheError, OSError):
            if _is_current(folder, record):
                raise
        else:
            if _is_current(folder, record):
                return content


def sound_rows(folder: Path, record: SetRecord) -> tuple[Rows, dict[bytes, str]]:
    """The rows of a set whose files are sound, and the codes of failed keys."""
    require_sound(folder, record)
    return read_index(folder, record)


def _is_current(folder: Path, record: SetRecord) -> bool:
    """Whether no other set was published in ``folder`` since this record was read there."""
    try:
        return read_record(folder) == record
    except (CacheError, OSError):
        return True  # there is no other one


def verify(folder: Path | str, progress: Progress = lambda _: None) -> list[str]:
    """Every fault of the set in ``folder``, one line each; empty if it is intact.

    Checks the commit file's own digest and exact bytes, the sizes and BLAKE3 of all files, and the
    content digest; of a damaged shard it says how many rows are lost.

    Args:
        progress: receives the bytes checked; their sum is the record's ``size``.
    """
    folder = Path(folder)
    try:
        snapshot(folder, lambda record: require_whole(folder, record, progress))
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


def require_whole(folder: Path, record: SetRecord, progress: Progress = lambda _: None) -> None:
    """Raise `Damaged` unless the files of a set are whole; arguments as of `verify`."""
    faults: list[str] = []
    if (folder / FILE_NAME).read_bytes() != to_bytes(record):
        faults.append(f"{folder / FILE_NAME}: its content is valid, but the file was rewritten")
    damaged = file_faults(folder, record.files, progress)
    every, failed, fault = _index(folder, record, damaged)
    faults += [fault] if fault else []
    live = every.live() if every is not None else None
    for number, shard in enumerate(record.shards):
        if shard.name in damaged:
            in_use = "" if live is None else f" ({live[number]:,} in use)"
            faults.append(f"{damaged[shard.name]}; its {shard.rows:,} rows{in_use} are lost")
        elif layout_fault := _layout_fault(folder, shard, record.spec):
            faults.append(layout_fault)
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


@dataclass(frozen=True)
class Soundness:
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


def soundness(folder: Path, record: SetRecord, damaged: dict[str, str]) -> Soundness:
    """What can be used of a set in which the files ``damaged`` (name → fault) are."""
    rows, failed, fault = _index(folder, record, damaged)
    damaged = damaged | {
        shard.name: layout_fault
        for shard in record.shards
        if shard.name not in damaged and (layout_fault := _layout_fault(folder, shard, record.spec))
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
    return Soundness(rows, failed, dropped, fault)


def require_all_sound(folder: Path, record: SetRecord) -> Soundness:
    """The rows of a set without damage."""
    usable = soundness(folder, record, file_faults(folder, record.files))
    if usable.lines():
        raise CacheError(f"{usable.lines()[0]}; run `sightline cache repair {folder}` first")
    return usable


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


def _layout_fault(folder: Path, shard: ShardRecord, spec: Spec) -> str | None:
    """Why a shard of numbers cannot be mapped; its values are not read."""
    if isinstance(spec, FeatureSpec):
        try:
            open_shard(folder, shard, spec)
        except CacheError as error:
            return str(error)
    return None
