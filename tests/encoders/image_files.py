"""Image files for the tests, made in memory."""

from __future__ import annotations

import io
import struct
import zlib

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


def chunk(name: bytes, data: bytes) -> bytes:
    """A chunk of a PNG, checksum included."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(
    width: int, height: int, depth: int, colour_type: int, rows: list[bytes], clear: bytes = b""
) -> bytes:
    """A PNG of raw rows: for the layouts that Pillow does not write, and for false headers.

    `clear` is the content of its tRNS chunk: the colour that is transparent.
    """
    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    transparency = chunk(b"tRNS", clear) if clear else b""
    parts = (chunk(b"IHDR", header), transparency, chunk(b"IDAT", pixels), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def sixteen_bit_png(values: np.ndarray, colour_type: int, clear: bytes = b"") -> bytes:
    """A 16-bit PNG of uint16 [H, W, C]."""
    height, width, _ = values.shape
    rows = [row.astype(">u2").tobytes() for row in values]
    return png(width, height, 16, colour_type, rows, clear)
