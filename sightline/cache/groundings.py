"""What a grounding and cut-outs hold, flattened for readers."""

# pyarrow.compute makes its functions when it is imported:
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sightline.cache.manifest import PHRASES, read_manifest
from sightline.cache.sets import open_tables
from sightline.cache.tables import DROPS


def read_phrases(path: Path | str) -> pa.Table:
    """The phrases of a grounding folder or a phrases manifest: `PHRASES`.

    Raises:
        CacheError: missing or damaged.
    """
    path = Path(path)
    return phrases_of(read_grounding(path)[0]) if path.is_dir() else read_manifest(path, PHRASES)


def read_grounding(folder: Path) -> tuple[pa.Table, dict[bytes, str]]:
    """The images of a grounding, in key order, and the codes of those that failed.

    Columns are those of `sightline.cache.tables.GROUNDED`.

    Raises:
        CacheError: missing or damaged.
    """
    _, rows, failed = open_tables(folder, "grounding")
    return rows.gather(np.arange(len(rows))), failed


def phrases_of(images: pa.Table) -> pa.Table:
    """The phrases of the images of a grounding: `PHRASES`."""
    return _flattened(images, "phrases", PHRASES)


def drops_of(images: pa.Table) -> pa.Table:
    """What did not become a phrase in the images of a grounding: `DROPS`."""
    return _flattened(images, "drops", DROPS)


def grounding_counts(folder: Path) -> dict[str, Any]:
    """Images, captions and pairs of a grounding, failed images, and drops by reason.

    Raises:
        CacheError: missing or damaged.
    """
    images, failed = read_grounding(folder)
    return {
        "images": images.num_rows + len(failed),
        "captions": sum(images["captions"].to_pylist()),
        "pairs": phrases_of(images).num_rows,
        "failed": len(failed),
        "dropped": dict(sorted(Counter(drops_of(images)["reason"].to_pylist()).items())),
    }


def _flattened(images: pa.Table, name: str, schema: pa.Schema) -> pa.Table:
    """A row for each item of the lists in column ``name``, with the image's key."""
    lists = images.column(name)
    owners = images.column("image_key").take(pc.list_parent_indices(lists))
    items = pc.list_flatten(lists).combine_chunks()
    if isinstance(items, pa.ChunkedArray):
        items = items.chunk(0) if items.num_chunks else pa.array([], items.type)
    return pa.table([owners, *items.flatten()], schema.names).cast(schema)
