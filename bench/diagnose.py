"""Time and memory of `sightline cache diagnose` on sets of a given size.

    python bench/diagnose.py --images 30000 --captions 5
    python bench/diagnose.py --images 600000 --captions 1

Writes an image set and a text set of random rows, of which those of one image share a direction,
with their manifests, and diagnoses them. Printed beside the time: that of the matrix products which
the comparisons of rows need, alone and in memory.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from sightline.cache import (
    CAPTIONS,
    IMAGES,
    EncoderRecord,
    FeatureSpec,
    SetWriter,
    keys_of_texts,
    write_manifest,
)
from sightline.cache.keys import KeyTable, unique_sorted
from sightline.cache.manifest import key_array, whole_files
from train.diagnose.checks import CHUNK, sample_size
from train.diagnose.diagnosis import Settings, diagnose


def write_set(folder: Path, kind: str, keys: np.ndarray, shared: np.ndarray) -> None:
    """Rows of ``keys``: half the row of ``shared`` at the same position, half noise."""
    rng = np.random.default_rng(1)
    encoder = EncoderRecord(name="noise", source="random:0", weights_sha256="0" * 64)
    dim = shared.shape[1]
    spec = FeatureSpec(
        kind=kind, encoder=encoder, preprocessing={}, precision="fp32", dim=dim, dtype="float16"
    )
    table, order = KeyTable(keys[unique_sorted(keys)]), unique_sorted(keys)
    with SetWriter(folder, spec) as writer:
        for batch in writer.plan(keys, batch_size=8192):
            rows = shared[order[table.find(batch.keys)]]
            writer.add(batch.keys, rows + rng.standard_normal(rows.shape, dtype=np.float32))
        writer.publish()


def write_world(root: Path, images: int, captions: int, dim: int) -> None:
    rng = np.random.default_rng(0)
    names = [f"{number:07}" for number in range(images)]
    image_keys = keys_of_texts(names)
    shared = rng.standard_normal((images, dim), dtype=np.float32)
    write_set(root / "image", "image", image_keys, shared)
    texts = [f"caption {k} of {name}" for name in names for k in range(captions)]
    write_set(root / "text", "text", keys_of_texts(texts), np.repeat(shared, captions, axis=0))
    columns = {
        "image_id": names,
        "path": names,
        **whole_files(images),
        "key": key_array(image_keys),
        "width": [224] * images,
        "height": [224] * images,
        "split": ["train"] * images,
    }
    write_manifest(root / "images.parquet", pa.table(columns, schema=IMAGES), IMAGES)
    columns = {
        "caption_id": [f"{name}#{k}" for name in names for k in range(captions)],
        "image_id": [name for name in names for _ in range(captions)],
        "text": texts,
        "split": ["train"] * len(texts),
    }
    write_manifest(root / "captions.parquet", pa.table(columns, schema=CAPTIONS), CAPTIONS)


def products(rows: int, others: int, dim: int) -> float:
    """Seconds for the products of one comparison: ``rows`` with ``others``, in chunks."""
    queries, pool = torch.randn(CHUNK, dim), torch.randn(CHUNK, dim)
    queries @ pool.T
    start = time.perf_counter()
    for _ in range(3):
        queries @ pool.T
    return (time.perf_counter() - start) / 3 * rows * others / CHUNK**2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=30_000)
    parser.add_argument("--captions", type=int, default=5)
    parser.add_argument("--dim", type=int, default=512)
    options = parser.parse_args()
    images, dim = options.images, options.dim
    texts = images * options.captions
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        arguments = root, images, options.captions, dim
        writer = get_context("spawn").Process(target=write_world, args=arguments)
        writer.start()  # a process of its own: its memory is not the diagnosis's
        writer.join()
        assert writer.exitcode == 0
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        wall, cpu = time.perf_counter(), time.process_time()
        manifests = root / "captions.parquet", root / "images.parquet"
        found = diagnose([root / "image", root / "text"], *manifests, Settings())
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pairs = [(images, images), (texts, texts), (images, texts), (texts, images)]
    alone = sum(
        products(sample_size(None, rows, others, dim), others, dim) for rows, others in pairs
    )
    print(
        f"{images:,} images, {texts:,} captions, width {dim}, {torch.get_num_threads()} threads: "
        f"{wall:.0f} s ({cpu:.0f} s of CPU), {wall / alone:.1f} times its products alone "
        f"({alone:.0f} s)"
    )
    print(f"peak memory {peak / 1e6:.2f} GB, of which before {before / 1e6:.2f} GB")
    for checks in found.sets:
        assert checks.neighbours is not None
        print(
            f"{checks.spec.kind}: {checks.neighbours.compared:,} of {checks.rows:,} rows compared"
        )
    assert found.cross is not None
    best, image = found.cross.best_caption, found.cross.image
    print(f"ranks: of {best.queries:,} images and {image.queries:,} captions")


if __name__ == "__main__":
    main()
