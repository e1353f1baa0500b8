"""Photographs of noise, and a CLIP that needs no weights: in a few kilobytes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

CLIP = {
    "embed_dim": 8,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 16, "head_width": 8, "patch_size": 16},
    "text_cfg": {"context_length": 12, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}


def write_clip(folder: Path) -> Path:
    """Path of the config in ``folder``."""
    path = folder / "clip.json"
    path.write_text(json.dumps(CLIP))
    return path


def write_photos(folder: Path, count: int) -> Path:
    """``0.png``, ``1.png`` … of different sizes in the new ``folder``; returns it."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for i in range(count):
        pixels = rng.integers(0, 256, (40 + i, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return folder


def extracting(kind: str, out: str, *more: object, data: str = "") -> list[object]:
    """Words of `sightline extract` in a folder with ``photos``, ``texts.txt`` and ``clip.json``."""
    data = data or {"image": "photos"}.get(kind, "texts.txt")
    words = ["extract", kind, "--data", data]
    weights = [] if "--weights" in more else ["--weights", "random:0"]
    here = ["--workers", 0, "--threads", 1]
    return [*words, "--encoder", "clip.json", *weights, "--out", out, *here, *more]
