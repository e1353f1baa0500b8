"""Rows: what is read from shards, by key."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sightline.cache.keys import KEY_BYTES, Keys, at, find_keys, picked, unique_sorted
from sightline.cache.record import ShardRecord, Spec
from sightline.cache.shards import (
    Computed,
    Digests,
    Numbers,
    OpenShard,
    format_of,
    keys_in,
    open_shard,
)

_OPEN_TABLES = 4
"""Decoded Parquet shards that are kept; memory maps cost nothing and are all kept."""


class Shard(NamedTuple):
    """A shard and the folder that it is in."""

    folder: Path
    record: ShardRecord


class Rows:
    """Rows of some shards. Nothing is opened before a row is read.

    Args:
        spec: description of the rows.
        files: the shards.
        keys: uint8 [n, 32], strictly increasing.
        shards, numbers: int32 [n], position in ``files``, and of the row in that shard.
        digests: uint8 [n, 16], of the rows; None: not known.
    """

    def __init__(
        self,
        spec: Spec,
        files: Sequence[Shard] = (),
        keys: Keys | None = None,
        shards: NDArray[np.int32] | None = None,
        numbers: NDArray[np.int32] | None = None,
        digests: Digests | None = None,
    ) -> None:
        none = np.empty(0, dtype=np.int32)
        self.spec, self.files = spec, tuple(files)
        self.keys = np.empty((0, KEY_BYTES), dtype=np.uint8) if keys is None else keys
        self.shards = none if shards is None else shards
        self.numbers = none if numbers is None else numbers
        self.digests = digests
        self.format = format_of(spec)
        self._opened: OrderedDict[int, OpenShard] = OrderedDict()

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, keys: Keys) -> NDArray[np.int64]:
        """Position of each key, or -1: int64 [len(keys)]."""
        return find_keys(self.keys, keys)

    def gather(self, rows: NDArray) -> Any:
        """The rows at these positions, in this order.

        Raises:
            CacheError: a shard is missing, of another size, or not one.
        """
        shards, numbers = self.shards[rows], self.numbers[rows]
        order = np.argsort(shards, kind="stable")
        bounds = np.flatnonzero(np.diff(shards[order], prepend=-1, append=-1)).tolist()
        places = [order[start:stop] for start, stop in pairwise(bounds)]
        parts = (self.shard(int(shards[of[0]])).take(numbers[of]) for of in places)
        return self.format.gathered(parts, places)

    def shard(self, number: int) -> OpenShard:
        """A whole shard; raises as `gather`."""
        if number not in self._opened:
            opened = open_shard(*self.files[number], self.spec)
            self._opened[number] = opened
            if not opened.is_mapped and len(self._opened) > _OPEN_TABLES:
                self._opened.popitem(last=False)
        return self._opened[number]

    def computed(self, rows: NDArray) -> list[Computed]:
        """The distinct ways in which these rows were computed; none of rows in no file."""
        shards = np.unique(self.shards[rows]) if self.files else ()
        return [self.files[i].record.computed for i in shards]

    def live(self) -> NDArray[np.int64]:
        """How many of the rows are in each shard: int64 [len(files)]."""
        return np.bincount(self.shards, minlength=len(self.files))

    def by_shard(self) -> list[NDArray[np.int64]]:
        """For each shard, the positions of its rows."""
        order = np.argsort(self.shards, kind="stable")
        return np.split(order, np.cumsum(self.live())[:-1]) if self.files else []

    def only(self, mask: NDArray[np.bool_]) -> Rows:
        """The rows selected by ``mask`` (bool [n]), and the shards that hold any of them."""
        shards = self.shards[mask]
        used = np.flatnonzero(np.bincount(shards, minlength=len(self.files)))
        return Rows(
            self.spec,
            [self.files[i] for i in used],
            picked(self.keys, mask),
            np.searchsorted(used, shards).astype(np.int32),
            self.numbers[mask],
            None if self.digests is None else self.digests[mask],
        )


def rows_of_no_file(spec: Spec, keys: Keys, values: Any) -> Rows:
    """Rows that are yet to be written.

    Args:
        keys: uint8 [n, 32], strictly increasing.
        values: n rows, as the set's format has them.
    """
    rows = Rows(spec, (), keys, np.zeros(len(keys), np.int32), np.arange(len(keys), dtype=np.int32))
    rows._opened[0] = OpenShard(keys, values)
    return rows


def rows_in(
    spec: Spec,
    files: Sequence[Shard],
    rows: Sequence[NDArray] | None = None,
) -> Rows:
    """The rows of these shards by the keys they contain; of equal keys the first shard's.

    Args:
        rows: the rows of each shard to take; None: all.
    """
    every = Rows(spec, files)
    key_parts, shards, numbers = [every.keys], [every.shards], [every.numbers]
    for number, file in enumerate(files):
        if isinstance(every.format, Numbers):
            keys_of = every.shard(number).keys
        else:
            keys_of = keys_in(*file, spec)  # without decoding its rows
        if rows is None:
            chosen = np.arange(file.record.rows, dtype=np.int32)
        else:
            chosen, keys_of = rows[number].astype(np.int32), keys_of[rows[number]]
        key_parts.append(keys_of)
        shards.append(np.full(len(chosen), number, dtype=np.int32))
        numbers.append(chosen)
    selection = _sorted(spec, files, key_parts, shards, numbers, None)
    selection._opened = every._opened
    return selection


def union(spec: Spec, sources: Sequence[Rows]) -> Rows:
    """The rows of all sources; of equal keys the first source's."""
    sources = [rows for rows in sources if len(rows)]
    if len(sources) == 1:
        return sources[0]
    sources = [Rows(spec), *sources]
    starts = np.cumsum([0, *(len(rows.files) for rows in sources)]).astype(np.int32)
    digests = [rows.digests for rows in sources[1:] if rows.digests is not None]
    return _sorted(
        spec,
        [file for rows in sources for file in rows.files],
        [rows.keys for rows in sources],
        [rows.shards + start for rows, start in zip(sources, starts, strict=False)],
        [rows.numbers for rows in sources],
        digests if digests and len(digests) == len(sources) - 1 else None,
    )


def _sorted(
    spec: Spec,
    files: Sequence[Shard],
    keys: list[Keys],
    shards: list[NDArray[np.int32]],
    numbers: list[NDArray[np.int32]],
    digests: list[Digests] | None,
) -> Rows:
    """Rows from their columns in parts; the first of equal keys counts."""
    every = np.concatenate(keys)
    order = unique_sorted(every)
    in_order = None if digests is None else np.concatenate(digests)[order]
    places = at(np.concatenate(shards), order), at(np.concatenate(numbers), order)
    return Rows(spec, files, at(every, order), *places, in_order)


def require_rows(path: Path, rows: NDArray) -> None:
    """Raise IndexError for -1, which NumPy would take for the last row."""
    if len(rows) and rows.min() < 0:
        raise IndexError(f"{path}: row {rows.min()}: there is no such row; -1 is a missing key")
