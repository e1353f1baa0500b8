"""Whether a set is sound down to each row, read and digested without its readers' shortcuts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sightline.cache import verify
from sightline.cache.index import read_index
from sightline.cache.record import read_record


def expect_sound(folder: Path) -> None:
    """`verify` finds nothing, and every row is the one that the index lists."""
    assert verify(folder) == []
    assert wrong_rows(folder) == {}


def wrong_rows(folder: Path) -> dict[str, list[int]]:
    """Shard → rows that are not the index's, by key or digest, or hold NaN or infinity."""
    record = read_record(folder)
    rows, _ = read_index(folder, record, digests=True)
    assert rows.digests is not None
    wrong: dict[str, list[int]] = {}
    for number, live in enumerate(rows.by_shard()):
        shard, numbers = rows.shard(number), rows.numbers[live]
        sound = (shard.keys[numbers] == rows.keys[live]).all(axis=1)
        sound &= (rows.format.digests(shard.rows)[numbers] == rows.digests[live]).all(axis=1)
        if isinstance(shard.rows, np.ndarray):
            sound &= np.isfinite(shard.rows[numbers]).all(axis=1)
        if not sound.all():
            wrong[record.shards[number].name] = sorted(numbers[~sound].tolist())
    return wrong
