"""Rows: what is read from the shards of a folder, by key."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.cache.keys import KEY_BYTES, Keys, KeyTable, picked, unique_sorted
from sightline.cache.record import FeatureSpec, ShardRecord, TableSpec
from sightline.cache.shards import Computed, Digests, format_of

_OPEN_TABLES = 4
"""Decoded Parquet shards that are kept; memory maps cost nothing and are all kept."""


class Rows:
    """Rows of the shards in one folder. Nothing is opened before a row is read.

    Args:
        folder: folder of the shards.
        spec: description of the rows.
        records: the shards.
        keys: uint8 [n, 32], strictly increasing.
        shards, numbers: int32 [n], position in ``records``, and of the row in that shard.
        digests: uint8 [n, 16], of the rows; None: not known.
    """

    def __init__(
        self,
        folder: Path,
        spec: FeatureSpec | TableSpec,
        records: Sequence[ShardRecord] = (),
        keys: Keys | None = None,
        shards: NDArray[np.int32] | None = None,
        numbers: NDArray[np.int32] | None = None,
        digests: Digests | None = None,
    ) -> None:
        none = np.empty(0, dtype=np.int32)
        self.folder, self.spec, self.records = folder, spec, tuple(records)
        self.keys = np.empty((0, KEY_BYTES), dtype=np.uint8) if keys is None else keys
        self.shards = none if shards is None else shards
        self.numbers = none if numbers is None else numbers
        self.digests = digests
        self.format = format_of(spec)
        self._opened: OrderedDict[int, tuple[Keys, Any]] = OrderedDict()

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def table(self) -> KeyTable:
        """Finds keys among the rows."""
        return KeyTable(self.keys)

    def find(self, keys: Keys) -> NDArray[np.int64]:
        """Position of each key, or -1: int64 [len(keys)]."""
        return self.table.find(keys)

    def gather(self, rows: NDArray) -> Any:
        """The rows at these positions, in this order.

        Raises:
            CacheError: a shard is missing, of another size, or not one.
        """
        return self.format.gather(lambda n: self.shard(n)[1], self.shards[rows], self.numbers[rows])

    def shard(self, number: int) -> tuple[Keys, Any]:
        """Keys and rows of a whole shard; raises as `gather`."""
        if number not in self._opened:
            self._opened[number] = self.format.open(self.folder, self.records[number])
            if self.format.suffix == "parquet" and len(self._opened) > _OPEN_TABLES:
                self._opened.popitem(last=False)
        return self._opened[number]

    def computed(self, rows: NDArray) -> list[Computed]:
        """The distinct ways in which these rows were computed."""
        return [self.records[i].computed for i in np.unique(self.shards[rows])]

    def live(self) -> NDArray[np.int64]:
        """How many of the rows are in each shard: int64 [len(records)]."""
        return np.bincount(self.shards, minlength=len(self.records))

    def by_shard(self) -> list[NDArray[np.int64]]:
        """For each shard, the positions of its rows."""
        order = np.argsort(self.shards, kind="stable")
        return np.split(order, np.cumsum(self.live())[:-1]) if self.records else []

    def only(self, mask: NDArray[np.bool_]) -> Rows:
        """The rows selected by ``mask`` (bool [n]), and the shards that hold any of them."""
        shards = self.shards[mask]
        used = np.flatnonzero(np.bincount(shards, minlength=len(self.records)))
        return Rows(
            self.folder,
            self.spec,
            [self.records[i] for i in used],
            picked(self.keys, mask),
            np.searchsorted(used, shards).astype(np.int32),
            self.numbers[mask],
            None if self.digests is None else self.digests[mask],
        )

    def whole_shards(self) -> Iterator[tuple[ShardRecord, Keys, Any]]:
        """Every shard: its record, keys and rows; raises as `gather`."""
        for number, record in enumerate(self.records):
            yield record, *self.shard(number)


def rows_in(
    folder: Path,
    spec: FeatureSpec | TableSpec,
    records: Sequence[ShardRecord],
    wanted: Sequence[NDArray] | None = None,
) -> Rows:
    """The rows of these shards by the keys they contain; of equal keys the first shard's.

    Args:
        wanted: the rows of each shard to take; None: all.
    """
    rows = Rows(folder, spec, records)
    keys, shards, numbers = [rows.keys], [rows.shards], [rows.numbers]
    for number, record in enumerate(records):
        here = np.arange(record.rows) if wanted is None else wanted[number]
        keys.append(np.array(rows.shard(number)[0][here]))
        shards.append(np.full(len(here), number, dtype=np.int32))
        numbers.append(here.astype(np.int32))
    every = np.concatenate(keys)
    order = unique_sorted(every)
    rows.keys = every[order]
    rows.shards, rows.numbers = np.concatenate(shards)[order], np.concatenate(numbers)[order]
    return rows
