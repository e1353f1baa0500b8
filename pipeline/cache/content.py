"""The content digest: one number for what a feature set says, however its files came about."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipeline.cache.index import Index
from pipeline.cache.record import FeatureSpec, ShardRecord
from pipeline.cache.rows import RowView

_LEAF_ROWS = 4096


def content_digest(
    folder: Path,
    spec: FeatureSpec,
    index: Index,
    shards: Sequence[ShardRecord],
    progress: Callable[[int], None] = lambda _: None,
) -> str:
    """One SHA-256 (hex) over every live key and its row, sorted by key, and every failed key.

    A tree of two levels, so that every core can hash: a leaf is the SHA-256 of 4,096 sorted keys
    and then their rows; the root is that of the fingerprint, all leaves, and each failed key with
    its code.

    Equal for two sets of one fingerprint exactly when they hold the same rows, whatever the
    history of adding, removing and killing that led to their shards. ``progress`` is told the
    bytes of the rows that were read, from any thread.
    """
    view = RowView.open(folder, spec, shards)
    positions = view.positions(index.shards, index.rows)

    def leaf(start: int) -> bytes:
        block = slice(start, start + _LEAF_ROWS)
        digest = hashlib.sha256(index.keys[block].tobytes())
        rows = view.read(positions[block])
        digest.update(rows.data)
        progress(rows.nbytes)
        return digest.digest()

    root = hashlib.sha256(spec.fingerprint.encode())
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        for digest in pool.map(leaf, range(0, len(positions), _LEAF_ROWS)):
            root.update(digest)
    for key in sorted(index.failed):
        root.update(key + index.failed[key].encode())
    return root.hexdigest()
