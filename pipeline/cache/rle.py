"""COCO's run-length code for masks: column by column, compressed as pycocotools does."""

from __future__ import annotations

import hashlib
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from pipeline.cache.errors import CacheError

CROP_RULE = "mask-transparent,tight-box/1"
"""Everything outside the mask is transparent, and the cut-out ends with the mask's box."""

_OFFSET = 48  # the compressed string uses the characters 48 to 111
_MORE = 0x20


class MaskCode(TypedDict):
    """A mask as COCO's annotations hold it."""

    size: list[int]  # height, width
    counts: str


def encode_mask(mask: NDArray[np.bool_]) -> MaskCode:
    """Run-length code of a mask.

    Args:
        mask: bool [height, width].

    Returns:
        ``{"size": [height, width], "counts": str}``, as in the COCO annotation format.
    """
    if mask.ndim != 2:
        raise ValueError(f"mask: found shape {mask.shape}, expected [height, width]")
    return {"size": list(mask.shape), "counts": compress_counts(run_lengths(mask))}


def decode_mask(size: tuple[int, int] | list[int], counts: str) -> NDArray[np.bool_]:
    """The mask behind a run-length code: bool [height, width].

    Raises:
        CacheError: the string is damaged, or its runs do not fill the mask exactly.
    """
    height, width = (int(edge) for edge in size)
    runs = expand_counts(counts)
    if min(height, width, *runs, 0) < 0 or sum(runs) != height * width:
        raise CacheError(
            f"mask: runs of {sum(runs)} pixels for {height} × {width}; expected "
            f"{height * width}; the mask is damaged, make the phrases again"
        )
    values = np.arange(len(runs)) % 2 == 1  # the first run is background
    return np.repeat(values, runs).reshape(width, height).T


def run_lengths(mask: NDArray[np.bool_]) -> list[int]:
    """Lengths of the runs in column-major order; the first is of background and may be 0."""
    flat = np.asarray(mask, dtype=bool).ravel(order="F")
    if not len(flat):
        return []
    edges = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    runs = np.diff(np.concatenate(([0], edges, [len(flat)]))).tolist()
    return [0, *runs] if flat[0] else runs


def compress_counts(runs: list[int]) -> str:
    """COCO's string for run lengths.

    From the fourth on a run is stored as its difference to the run two places before; every
    number takes groups of five bits, the lowest first, with a sixth bit that says "more follows"
    (``rleToString`` in COCO's maskApi.c).
    """
    out = bytearray()
    for i, run in enumerate(runs):
        value = run - runs[i - 2] if i > 2 else run
        more = True
        while more:
            group = value & 0x1F
            value >>= 5
            # stop when what is left is nothing but the sign of this group's highest bit
            more = value != (-1 if group & 0x10 else 0)
            out.append((group | _MORE if more else group) + _OFFSET)
    return out.decode("ascii")


def expand_counts(counts: str) -> list[int]:
    """Run lengths of COCO's string; the inverse of `compress_counts`.

    Raises:
        CacheError: a character is outside the code, or the string ends inside a number.
    """
    runs: list[int] = []
    value = shift = 0
    for character in counts:
        group = ord(character) - _OFFSET
        if not 0 <= group < 64:
            raise CacheError(f"mask: {character!r} does not belong to COCO's run-length code")
        value |= (group & 0x1F) << shift
        shift += 5
        if group & _MORE:
            continue
        if group & 0x10:
            value -= 1 << shift
        runs.append(value + runs[-2] if len(runs) > 2 else value)
        value = shift = 0
    if shift:
        raise CacheError("mask: the run-length code ends inside a number")
    return runs


def cutout_key(image_key: bytes, size: list[int], counts: str, crop_rule: str) -> bytes:
    """Key of the picture that a mask cuts out of an image: 32 raw bytes.

    Args:
        image_key: key of the image, 32 raw bytes.
        size: (height, width) of the mask.
        counts: the compressed runs; one mask has one such string.
        crop_rule: name and version of the way the cut-out is made.
    """
    mask = f"\n{size[0]} {size[1]} {counts}\n{crop_rule}"
    return hashlib.sha256(image_key + mask.encode("utf-8")).digest()
