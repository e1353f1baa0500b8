"""The rows of a set that is not of features as flat tables, each row with its key."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from sightline.cache.groundings import drops_of, phrases_of, read_grounding
from sightline.cache.manifest import key_array
from sightline.cache.record import TableKind
from sightline.cache.table_sets import open_tables


def rows_with_keys(folder: Path, kind: TableKind) -> pa.Table:
    """Every row of a set, in key order, with its key as the first column."""
    _, rows, _ = open_tables(folder, kind)
    return rows.gather(np.arange(len(rows))).add_column(0, "key", key_array(rows.keys))


def flat(folder: Path, name: str) -> pa.Table:
    """``images``, ``phrases`` or ``drops`` of a grounding."""
    if name == "images":
        return rows_with_keys(folder, "grounding").select(["key", "image_key", "captions"])
    images = read_grounding(folder)[0]
    return phrases_of(images) if name == "phrases" else drops_of(images)
