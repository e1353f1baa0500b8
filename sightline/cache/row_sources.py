"""Sources of rows that need no encoding: own blocks, a published set, other sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.cache.assemble import Computed, Placed
from sightline.cache.blocks import Block
from sightline.cache.commit import FILE_NAME, read_features
from sightline.cache.errors import CacheError
from sightline.cache.feature_set import FeatureSet
from sightline.cache.keys import KEY_BYTES, Keys, KeyTable, unique_sorted
from sightline.cache.mapped_rows import MappedRows
from sightline.cache.record import FeatureSpec
from sightline.cache.shard import map_keys
from sightline.cache.shard_check import file_fault


class PlacedRows:
    """Rows in the shards of a folder, as a source for new shards.

    Attributes:
        folder: that of the shards.
    """

    def __init__(self, folder: Path, spec: FeatureSpec, placed: Placed) -> None:
        self.folder = folder
        order = unique_sorted(placed.keys)
        self._table = KeyTable(placed.keys[order])
        self._records = placed.records
        self._shards, self._rows = placed.shards[order], placed.rows[order]
        self._mapped = MappedRows(folder, spec, placed.records)

    def find(self, keys: Keys) -> NDArray[np.int64]:
        return self._table.find(keys)

    def gather(self, rows: NDArray[np.int64]) -> NDArray:
        return self._mapped.read(self._shards[rows], self._rows[rows])

    def computed(self, rows: NDArray[np.int64]) -> list[Computed]:
        return [self._records[i].computed for i in np.unique(self._shards[rows])]


class BlockRows:
    """The rows of finished blocks, as a source for new shards.

    Args:
        blocks: each with a tensor ``features`` [n, dim].
        dim: length of a row.
        dtype: storage dtype.
    """

    def __init__(self, blocks: Sequence[Block], dim: int, dtype: np.dtype) -> None:
        parts = [block.keys for block in blocks]
        keys = np.concatenate([np.empty((0, KEY_BYTES), dtype=np.uint8), *parts])
        counts = [len(part) for part in parts]
        order = unique_sorted(keys)
        self._table = KeyTable(keys[order])
        self._numbers = np.repeat(np.arange(len(parts)), counts)[order]
        self._rows = np.concatenate([np.empty(0, np.int64), *map(np.arange, counts)])[order]
        self._blocks = blocks
        self._dim, self._dtype = dim, dtype

    def find(self, keys: Keys) -> NDArray[np.int64]:
        return self._table.find(keys)

    def gather(self, rows: NDArray[np.int64]) -> NDArray:
        found = np.empty((len(rows), self._dim), dtype=self._dtype)
        numbers = self._numbers[rows]
        order = np.argsort(numbers, kind="stable")
        edges = np.flatnonzero(np.diff(numbers[order])) + 1
        for here in np.split(order, edges) if len(order) else []:
            block = self._blocks[int(numbers[here[0]])]
            found[here] = block.tensor("features")[self._rows[rows[here]]]
        return found

    def computed(self, rows: NDArray[np.int64]) -> list[Computed]:
        return [self._blocks[int(i)].computed for i in np.unique(self._numbers[rows])]


def live_rows(features: FeatureSet) -> Placed:
    """Every live row of a set."""
    index = features.index
    return Placed(index.keys, index.shards, index.rows, features.record.shards)


def dropped_rows(features: FeatureSet) -> Placed:
    """Rows in the shards of a set but not in its index: no manifest wanted them."""
    live = live_rows(features).live_rows()
    parts: list[tuple[Keys, NDArray[np.int32], NDArray[np.int32]]] = []
    for number, shard in enumerate(features.record.shards):
        if live[number] == shard.rows:
            continue
        dead = np.ones(shard.rows, dtype=bool)
        dead[features.index.rows[features.index.shards == number]] = False
        rows = np.flatnonzero(dead).astype(np.int32)
        keys = np.array(map_keys(features.path, shard)[rows])
        parts.append((keys, np.full(len(rows), number, dtype=np.int32), rows))
    if not parts:
        return Placed.nothing()
    keys, shards, rows = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Placed(keys, shards, rows, features.record.shards)


def only_sound(folder: Path, placed: Placed) -> Placed:
    """``placed`` without the rows of shards whose bytes do not match the record.

    A new shard gets a new digest: copying damaged rows into it would give them a valid one.
    """
    faults = [file_fault(folder, record) for record in placed.records]
    sound = np.array([fault is None for fault in faults], dtype=bool)
    return placed.only(sound[placed.shards]) if len(placed.keys) else Placed.nothing()


def neighbours(root: Path, spec: FeatureSpec, own: Path) -> Iterator[FeatureSet]:
    """Other feature sets with the same fingerprint at or below ``root``, by path.

    Skips sets that cannot be read, which do not concern this run, and imported ones: their rows
    would lose their provenance.
    """
    for file in sorted(root.rglob(FILE_NAME)):
        folder = file.parent
        if folder.resolve() == own.resolve():
            continue
        try:
            record = read_features(folder)
            if record.fingerprint == spec.fingerprint and not record.provenance.imported:
                yield FeatureSet.open(folder)
        except CacheError:
            continue


def copied_rows(features: FeatureSet, keys: Keys) -> Placed:
    """The ``keys`` (uint8 [n, 32]) that a set holds in intact shards."""
    found = features.find(keys)
    mask = np.zeros(len(features), dtype=bool)
    mask[found[found >= 0]] = True
    return only_sound(features.path, live_rows(features).only(mask))


def rows_on_disk(
    own: Path, spec: FeatureSpec, published: FeatureSet | None, keys: Keys, root: Path | None
) -> list[PlacedRows]:
    """Sources for those of ``keys`` (uint8 [n, 32]) that need no encoding.

    Args:
        own: folder of the set that lacks them.
        published: that set; its dropped rows come first.
        root: folder of other sets, or None.
    """
    found: list[PlacedRows] = []

    def take(folder: Path, placed: Placed) -> None:
        nonlocal keys
        if len(placed.keys):
            found.append(PlacedRows(folder, spec, placed))
            keys = keys[found[-1].find(keys) < 0]

    if len(keys) and published is not None:
        dropped = dropped_rows(published)
        wanted = KeyTable(keys).find(dropped.keys) >= 0
        take(own, only_sound(own, dropped.only(wanted)))
    for other in neighbours(root, spec, own) if root is not None and len(keys) else ():
        take(other.path, copied_rows(other, keys))
        if not len(keys):
            break
    return found
