"""The content digest of a feature set, independent of its file layout and history."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from sightline.cache.index import Index
from sightline.cache.keys import Keys
from sightline.cache.mapped_rows import MappedRows
from sightline.cache.record import FeatureSpec, ShardRecord

_BLOCK = 1024


class Content:
    """The digest of a feature set while its rows are read, in the order of their keys."""

    def __init__(self, fingerprint: str) -> None:
        self._total = blake3(fingerprint.encode())

    def add(self, keys: Keys, rows: NDArray) -> None:
        """The next rows: uint8 [n, 32] and [n, dim], little-endian."""
        self._total.update(np.hstack([keys, rows.view(np.uint8)]).data)

    def digest(self, failed: Mapping[bytes, str]) -> str:
        """BLAKE3 (hex), as `content_digest`; ``failed``: key → code."""
        total = self._total.copy()
        for key in sorted(failed):
            total.update(key + failed[key].encode())
        return total.hexdigest()


def content_digest(
    folder: Path,
    spec: FeatureSpec,
    index: Index,
    shards: Sequence[ShardRecord],
    progress: Callable[[int], None] = lambda _: None,
) -> str:
    """BLAKE3 (hex) of the fingerprint, every live key and its row, by key, and every failed key.

    Two sets with one fingerprint have equal digests exactly when they hold the same rows,
    regardless of the history of additions, removals and kills behind their shards. ``progress``
    receives the bytes of rows read.
    """
    mapped = MappedRows(folder, spec, shards)
    content = Content(spec.fingerprint)
    for start in range(0, len(index.keys), _BLOCK):
        block = slice(start, start + _BLOCK)
        rows = mapped.read(index.shards[block], index.rows[block])
        content.add(index.keys[block], rows)
        progress(rows.nbytes)
    return content.digest(index.failed)
