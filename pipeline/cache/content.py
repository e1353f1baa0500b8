"""The content digest of a feature set, independent of its file layout and history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from blake3 import blake3

from pipeline.cache.index import Index
from pipeline.cache.mapped_rows import MappedRows
from pipeline.cache.record import FeatureSpec, ShardRecord

_BLOCK = 1024


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
    total = blake3(spec.fingerprint.encode())
    for start in range(0, len(index.keys), _BLOCK):
        block = slice(start, start + _BLOCK)
        rows, keys = mapped.read(index.shards[block], index.rows[block]), index.keys[block]
        total.update(np.hstack([keys, rows.view(np.uint8).reshape(len(rows), -1)]).data)
        progress(rows.nbytes)
    for key in sorted(index.failed):
        total.update(key + index.failed[key].encode())
    return total.hexdigest()
