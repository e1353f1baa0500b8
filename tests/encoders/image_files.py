"""Image files for the tests, made in memory."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image


def photograph(width: int = 48, height: int = 32, seed: int = 0) -> Image.Image:
    """A smooth random RGB picture, asymmetric in both directions."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def saved(image: Image.Image, fmt: str, **options: object) -> bytes:
    """The bytes of `image` as a file of format `fmt`."""
    buffer = io.BytesIO()
    image.save(buffer, fmt, **options)
    return buffer.getvalue()
