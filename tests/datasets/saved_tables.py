"""Hugging Face data sets as their library and others write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packed import picture

datasets = pytest.importorskip("datasets")

README = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: "{}"
---
"""

STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def table(numbers: range, captions: list[Any] | None = None, **more: list) -> pa.Table:
    images = [{"bytes": picture(n), "path": f"{n}.png"} for n in numbers]
    said = captions or [f"caption {n}" for n in numbers]
    columns = {"image": pa.array(images, STRUCT), "caption": said, **more}
    return pa.table(columns)


def save(folder: Path, **splits: pa.Table) -> Path:
    """What `save_to_disk` writes."""
    parts = {
        name: datasets.Dataset(rows).cast_column("image", datasets.Image(decode=False))
        for name, rows in splits.items()
    }
    shards = {name: 2 if len(rows) > 4 else 1 for name, rows in splits.items()}
    datasets.DatasetDict(parts).save_to_disk(str(folder), num_shards=shards)
    return folder


def write_arrow(path: Path, rows: pa.Table, new=pa.ipc.new_stream, **options) -> Path:
    """An Arrow stream or file of batches of 3 rows."""
    made = pa.ipc.IpcWriteOptions(**options)
    with pa.OSFile(str(path), "wb") as sink, new(sink, rows.schema, options=made) as writer:
        for batch in rows.to_batches(max_chunksize=3):
            writer.write_batch(batch)
    return path


def write(path: Path, rows: pa.Table) -> Path:
    if path.suffix == ".arrow":
        return write_arrow(path, rows)
    pq.write_table(rows, path, compression="none", use_dictionary=False)
    return path
