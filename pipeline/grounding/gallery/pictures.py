"""Images in the page: small JPEG photographs and transparent cut-outs, as data URIs."""

from __future__ import annotations

import base64
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]

_LOSSLESS_SIDE = 128


def fitted(width: int, height: int, side: int) -> tuple[int, int]:
    """Width and height scaled so that the longer is at most ``side``; never enlarged, never 0."""
    scale = min(1.0, side / max(width, height))
    return max(1, round(width * scale)), max(1, round(height * scale))


def photograph(pixels: Pixels, side: int) -> str:
    """A data URI with the image as JPEG, or as PNG if it is an icon that JPEG would blur.

    Args:
        pixels: uint8 [height, width, 3].
        side: maximum length of the longer side, in pixels.
    """
    height, width = pixels.shape[:2]
    image = Image.fromarray(pixels).resize(fitted(width, height, side), Image.Resampling.LANCZOS)
    if max(width, height) <= _LOSSLESS_SIDE:
        return _data_uri(image, "png")
    return _data_uri(image, "jpeg", quality=75, optimize=True)


def cut_out(pixels: Pixels, mask: NDArray[np.bool_], side: int) -> str:
    """A data URI with the masked object as WebP, cropped, with a transparent background.

    For an icon, as defined in `photograph`, every pixel keeps its colour.

    Args:
        pixels: uint8 [height, width, 3].
        mask: bool [height, width], not empty.
        side: maximum length of the longer side, in pixels.
    """
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    box = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    alpha = mask[box].astype(np.uint8)[..., None] * 255
    image = Image.fromarray(np.concatenate([pixels[box], alpha], axis=2))
    size = fitted(image.width, image.height, side)
    # "RGBa" is premultiplied: the background's colour must not bleed into the edge
    image = image.convert("RGBa").resize(size, Image.Resampling.LANCZOS).convert("RGBA")
    if max(pixels.shape[:2]) <= _LOSSLESS_SIDE:
        return _data_uri(image, "webp", lossless=True, method=2)
    return _data_uri(image, "webp", quality=72, method=2)


def _data_uri(image: Image.Image, kind: str, **options: object) -> str:
    data = io.BytesIO()
    image.save(data, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(data.getvalue()).decode('ascii')}"
