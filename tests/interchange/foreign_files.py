"""A feature set with odd values, and features in files as other tools write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sightline.cache import EncoderRecord, FeatureSet, FeatureSpec, SetWriter, keys_of_texts

DIM, ROWS = 7, 90
NAMES = ["0.png", "1.png", "2.png", "3.png", "4.png", "more/copy.png"]
STEMS = [Path(name).stem for name in NAMES]
TEXTS = ["a dog", "a cat", "two dogs", "", " a tree\n", "a dog"]


def write_set(folder: Path, dtype: str, kind: str = "image", rows: int = ROWS) -> FeatureSet:
    """A set with odd values (-0.0, subnormal, the largest) and one failed row."""
    values = np.random.default_rng(0).standard_normal((rows, DIM)).astype(dtype)
    if rows:
        info = np.finfo(dtype)
        values[0] = [-0.0, info.smallest_subnormal, info.max, -info.max, 0.0, info.eps, 1.0]
        values[1] = 0
        values[2] = np.nan
    encoder = EncoderRecord(name="stub", source="pretrained:x", weights_sha256="0" * 64)
    about = {"encoder": encoder, "preprocessing": {}, "precision": "fp32"}
    with SetWriter(folder, FeatureSpec(kind=kind, dim=DIM, dtype=dtype, **about)) as writer:
        keys = keys_of_texts([f"text {i}" for i in range(rows)])
        writer.plan(keys, batch_size=16, shard_rows=30)
        writer.add(keys, values, computed={"device": "cpu", "batch_size": 16})
        writer.publish()
    return FeatureSet.open(folder)


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)


def unit_rows(count: int) -> np.ndarray:
    return unit(np.random.default_rng(1).standard_normal((count, DIM)))


def clip_retrieval(folder: Path, names: list[str] = NAMES) -> np.ndarray:
    """What `clip-retrieval inference` writes, in two partitions; the rows."""
    values = unit_rows(len(names))
    for name in ("img_emb", "text_emb", "metadata"):
        (folder / name).mkdir(parents=True)
    for part, here in enumerate((slice(0, 4), slice(4, 6))):
        for what in ("img", "text"):
            np.save(folder / f"{what}_emb/{what}_emb_{part}.npy", values[here])
        table = pa.table({"image_path": names[here], "caption": TEXTS[here]})
        pq.write_table(table, folder / f"metadata/metadata_{part}.parquet")
    return values


def datacomp(folder: Path, save=np.savez) -> np.ndarray:
    """A shard of DataComp's metadata; the rows of every array."""
    values = unit_rows(len(NAMES))
    folder.mkdir(parents=True)
    arrays = {f"{model}_{what}": values for model in ("b32", "l14") for what in ("img", "txt")}
    save(folder / "00ab.npz", **arrays, dedup=values[:, :2])
    pq.write_table(pa.table({"uid": STEMS, "text": TEXTS}), folder / "00ab.parquet")
    return values


def write_tables(folder: Path, layout: str, values: np.ndarray) -> Path:
    """Named rows as Parquet (``fixed``, ``list``, ``split``) or Arrow (``file``, ``stream``)."""
    folder.mkdir(parents=True)
    flat, dim = pa.array(values.ravel()), values.shape[1]
    lists = pa.FixedSizeListArray.from_arrays(flat, dim)
    if layout == "list":
        lists = pa.ListArray.from_arrays(pa.array(range(0, values.size + 1, dim), pa.int32()), flat)
    table = pa.table({"file_name": NAMES, "embedding": lists, "n": list(range(6))})
    if layout in ("file", "stream"):
        make = pa.ipc.new_file if layout == "file" else pa.ipc.new_stream
        with make(folder / "data-0.arrow", table.schema) as writer:
            for batch in table.to_batches(max_chunksize=4):
                writer.write_batch(batch)
    elif layout == "split":
        pq.write_table(table[:2], folder / "a.parquet")
        pq.write_table(table[2:], folder / "b.parquet")
    else:
        pq.write_table(table, folder / "a.parquet", store_schema=layout != "list")
    return folder
