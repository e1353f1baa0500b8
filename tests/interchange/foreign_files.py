"""A feature set with odd values, and features in files as other tools write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sightline.cache import EncoderRecord, FeatureSet, FeatureSpec, SetWriter, keys_of_texts
from sightline.cache.keys import Keys

DIM, ROWS = 7, 90
NAMES = ["0.png", "1.png", "2.png", "3.png", "4.png", "more/copy.png"]
STEMS = [Path(name).stem for name in NAMES]
TEXTS = ["a dog", "a cat", "two dogs", "", " a tree\n", "a dog"]


def write_set(
    folder: Path, dtype: str, kind: str = "image", rows: int = ROWS, keys: Keys | None = None
) -> FeatureSet:
    """A set with odd values (-0.0, subnormal, the largest) and one failed row.

    Args:
        keys: of its rows; None: those of the texts ``text 0``, ``text 1``, …
    """
    keys = keys_of_texts([f"text {i}" for i in range(rows)]) if keys is None else keys
    rows = len(keys)
    values = np.random.default_rng(0).standard_normal((rows, DIM)).astype(dtype)
    if rows:
        info = np.finfo(dtype)
        values[0] = [-0.0, info.smallest_subnormal, info.max, -info.max, 0.0, info.eps, 1.0]
        values[1:2] = 0
        values[2:3] = np.nan
    encoder = EncoderRecord(name="stub", source="pretrained:x", weights_sha256="0" * 64)
    about = {"encoder": encoder, "preprocessing": {}, "precision": "fp32"}
    with SetWriter(folder, FeatureSpec(kind=kind, dim=DIM, dtype=dtype, **about)) as writer:
        row_of = {key.tobytes(): row for key, row in zip(keys, values, strict=True)}
        for batch in writer.plan(keys, batch_size=16, shard_rows=30):
            made = np.array([row_of[key.tobytes()] for key in batch.keys])
            writer.add(batch, made, computed={"device": "cpu", "batch_size": 16})
        writer.publish()
    return FeatureSet.open(folder)


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)


def unit_rows() -> np.ndarray:
    return unit(np.random.default_rng(1).standard_normal((len(NAMES), DIM)))


def clip_retrieval(
    folder: Path, names: list[str] = NAMES, values: np.ndarray | None = None
) -> np.ndarray:
    """What `clip-retrieval inference` writes of six images, in two partitions; the rows."""
    values = unit_rows() if values is None else values
    for name in ("img_emb", "text_emb", "metadata"):
        (folder / name).mkdir(parents=True)
    for part, here in enumerate((slice(0, 4), slice(4, 6))):
        for what in ("img", "text"):
            np.save(folder / f"{what}_emb/{what}_emb_{part}.npy", values[here])
        table = pa.table({"image_path": names[here], "caption": TEXTS[here]})
        pq.write_table(table, folder / f"metadata/metadata_{part}.parquet")
    return values
