"""Rows of many shards as one array."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from pipeline.cache.record import FeatureSpec, ShardRecord
from pipeline.cache.shard import map_features


class RowView:
    """One array over the memory maps of all shards, so that one gather serves all of them.

    The shards are mapped at unrelated addresses. A strided view that starts at the lowest map and
    steps by one number has an item for every place at which a row may begin; only the places of
    rows that lie inside a validated map are ever read. This makes a gather over many shards as
    fast as over one; going through the shards in turn takes three times as long.
    """

    def __init__(self, maps: Sequence[NDArray], dim: int, dtype: np.dtype) -> None:
        self._maps = list(maps)  # keeps the mappings alive
        self._dim = dim
        self._itemsize = dtype.itemsize
        addresses = [int(each.ctypes.data) for each in maps]
        self._base = min(addresses, default=0)
        self._starts = np.array(
            [(address - self._base) // self._itemsize for address in addresses], dtype=np.int64
        )
        if not maps:
            self._view = np.empty((0, dim), dtype)
            return
        lowest = np.asarray(maps[int(np.argmin(addresses))]).reshape(-1)
        last = max(int(start) + each.size for start, each in zip(self._starts, maps, strict=True))
        self._view = as_strided(
            lowest, (last - dim + 1, dim), (self._itemsize, self._itemsize), writeable=False
        )

    @classmethod
    def open(cls, folder: Path, spec: FeatureSpec, shards: Sequence[ShardRecord]) -> RowView:
        """Map every shard of a set, after checking its layout (`map_features`)."""
        dtype = np.dtype(spec.dtype).newbyteorder("<")
        return cls(
            [map_features(folder, shard, spec.dim, dtype) for shard in shards], spec.dim, dtype
        )

    def positions(self, shards: NDArray[np.int32], rows: NDArray[np.int32]) -> NDArray[np.int64]:
        """Place of each (shard, row) in the view: int64 [n]. Both must have been validated."""
        if not len(self._starts):
            return np.empty(0, dtype=np.int64)
        return self._starts[shards] + rows.astype(np.int64) * self._dim

    def read(self, positions: NDArray[np.int64]) -> NDArray:
        """The rows at ``positions``: [n, dim], a fresh array."""
        return self._view[positions]
