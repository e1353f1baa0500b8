"""Inputs that several benchmarks draw: photographs and feature sets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sightline.cache import EncoderRecord, FeatureSpec, SetWriter
from sightline.cache.keys import Keys


def photographs(
    folder: Path, count: int, first: int = 0, size: tuple[int, int] = (500, 375)
) -> list[Path]:
    """JPEGs of soft patches of colour under noise, about 80 kB each at 500 × 375."""
    folder.mkdir(parents=True, exist_ok=True)

    def draw(number: int) -> Path:
        rng = np.random.default_rng(number)
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        picture = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC), np.float32)
        picture = picture + 12 * rng.standard_normal(picture.shape, np.float32)
        path = folder / f"{number:06}.jpg"
        Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8)).save(path, quality=90)
        return path

    with ThreadPoolExecutor() as pool:
        return list(pool.map(draw, range(first, first + count)))


def feature_set(
    folder: Path, kind: Any, keys: Keys, dim: int, shard_rows: int | None = None
) -> None:
    """Write random rows of float16 under ``keys``."""
    encoder = EncoderRecord(name="bench/noise", source="random:0", weights_sha256="0" * 64)
    spec = FeatureSpec(
        kind=kind, encoder=encoder, preprocessing={}, precision="fp32", dim=dim, dtype="float16"
    )
    rng = np.random.default_rng(1)
    with SetWriter(folder, spec) as writer:
        for batch in writer.plan(keys, batch_size=4096, shard_rows=shard_rows):
            writer.add(batch, rng.standard_normal((len(batch.keys), dim), np.float32))
        writer.publish()
