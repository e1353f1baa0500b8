"""What a grounding and cut-outs hold, flattened for readers."""

# pyarrow.compute makes its functions when it is imported:
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sightline.cache.manifest import PHRASES, read_manifest
from sightline.cache.table_sets import open_tables, read_rows
from sightline.cache.tables import DROPS


def read_phrases(path: Path | str) -> pa.Table:
    """The phrases of a grounding folder or a phrases manifest: `PHRASES`."""
    path = Path(path)
    return phrases_of(read_grounding(path)[0]) if path.is_dir() else read_manifest(path, PHRASES)


def read_grounding(folder: Path) -> tuple[pa.Table, dict[bytes, str]]:
    """The images of a grounding, in key order, and the codes of those that failed.

    Columns are those of `sightline.cache.tables.GROUNDED`.
    """
    return read_rows(folder, "grounding")


def groundings(folder: Path) -> tuple[Iterator[pa.Table], dict[bytes, str]]:
    """As `read_grounding`, a shard at a time, in any order: for what need not be held at once."""
    _, rows, failed = open_tables(folder, "grounding")
    return map(rows.gather, rows.by_shard()), failed


def phrases_of(images: pa.Table) -> pa.Table:
    """The phrases of the images of a grounding: `PHRASES`."""
    return _flattened(images, "phrases", PHRASES)


def drops_of(images: pa.Table) -> pa.Table:
    """What did not become a phrase in the images of a grounding: `DROPS`."""
    return _flattened(images, "drops", DROPS)


def grounding_counts(folder: Path) -> dict[str, Any]:
    """Images, captions and pairs of a grounding, failed images, and drops by reason."""
    images, captions, pairs = 0, 0, 0
    dropped: Counter[str] = Counter()
    tables, failed = groundings(folder)
    for table in tables:
        images += table.num_rows
        captions += pc.sum(table["captions"]).as_py() or 0
        pairs += sum(pc.list_value_length(table["phrases"]).to_pylist())
        dropped.update(drops_of(table)["reason"].to_pylist())
    return {
        "images": images + len(failed),
        "captions": captions,
        "pairs": pairs,
        "failed": len(failed),
        "dropped": dict(sorted(dropped.items())),
    }


def _flattened(images: pa.Table, name: str, schema: pa.Schema) -> pa.Table:
    """A row for each item of the lists in column ``name``, with the image's key."""
    tables = [schema.empty_table()]
    for batch in images.to_batches():
        lists = batch.column(name)
        owners = batch.column("image_key").take(pc.list_parent_indices(lists))
        items = pc.list_flatten(lists).flatten()
        tables.append(pa.table([owners, *items], schema.names).cast(schema))
    return pa.concat_tables(tables)
