"""Rows of many shards, read through memory maps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.cache.record import FeatureSpec, ShardRecord
from sightline.cache.shard import map_features


class MappedRows:
    """The shards of a set, memory-mapped after a layout check (`map_features`)."""

    def __init__(self, folder: Path, spec: FeatureSpec, shards: Sequence[ShardRecord]) -> None:
        self._dim, self._dtype = spec.dim, np.dtype(spec.dtype).newbyteorder("<")
        self._maps = [
            np.asarray(map_features(folder, shard, self._dim, self._dtype)) for shard in shards
        ]

    def read(self, shards: NDArray[np.int32], rows: NDArray[np.int32]) -> NDArray:
        """Row ``rows[i]`` of shard ``shards[i]``, for every i: [n, dim], a new array."""
        found = np.empty((len(rows), self._dim), self._dtype)
        for shard in np.unique(shards):
            mine = np.flatnonzero(shards == shard)
            found[mine] = self._maps[shard][rows[mine]]
        return found
