"""COCO's run-length encoding of masks: column-major, compressed as in pycocotools."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from sightline.errors import CacheError

_OFFSET = 48  # the compressed string uses the characters 48 to 111
_MORE = 0x20
_MOST_GROUPS = 7
"""Five-bit groups per number: runs and their differences stay below 2 ** 34."""


class MaskCode(TypedDict):
    """A mask in COCO's annotation format."""

    size: list[int]  # height, width
    counts: str


def encode_mask(mask: NDArray[np.bool_]) -> MaskCode:
    """Run-length encoding of a mask.

    Args:
        mask: bool [height, width].

    Returns:
        ``{"size": [height, width], "counts": str}``, as in the COCO annotation format.
    """
    if mask.ndim != 2:
        raise ValueError(f"mask: found shape {mask.shape}, expected [height, width]")
    return {"size": list(mask.shape), "counts": compress_counts(run_lengths(mask))}


def decode_mask(size: tuple[int, int] | list[int], counts: str) -> NDArray[np.bool_]:
    """Decode a run-length encoded mask: bool [height, width].

    Raises:
        CacheError: the string is damaged, or its runs do not fill the mask exactly.
    """
    height, width = (int(edge) for edge in size)
    runs = expand_counts(counts)
    if min(height, width, *runs, 0) < 0 or sum(runs) != height * width:
        raise CacheError(
            f"mask: runs of {sum(runs)} pixels for {height} × {width}; expected "
            f"{height * width}; the mask is damaged, recreate the phrases"
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

    From the fourth on, a run is stored as its difference from the run two places earlier; each
    number is stored in groups of five bits, lowest first, with a sixth bit for "more follows"
    (``rleToString`` in COCO's maskApi.c). Runs must be smaller than 2 ** 34.
    """
    values = np.array(runs, dtype=np.int64)
    values[3:] -= values[1:-2].copy()
    characters = np.empty((len(values), _MOST_GROUPS), dtype=np.uint8)
    used = np.zeros(characters.shape, dtype=bool)
    active = np.ones(len(values), dtype=bool)
    for place in range(_MOST_GROUPS):
        group = values & 0x1F
        values >>= 5
        # stop once only sign extension of this group's highest bit remains
        goes_on = values != -(group >> 4)
        characters[:, place] = group + goes_on * _MORE + _OFFSET
        used[:, place] = active
        active &= goes_on
        if not active.any():
            break
    return characters[used].tobytes().decode("ascii")


def expand_counts(counts: str) -> list[int]:
    """Run lengths of COCO's string; the inverse of `compress_counts`."""
    groups = np.frombuffer(counts.encode("utf-32-le"), dtype="<u4").astype(np.int64) - _OFFSET
    strange = np.flatnonzero((groups < 0) | (groups >= 2 * _MORE))
    if len(strange):
        character = counts[strange[0]]
        raise CacheError(f"mask: {character!r} is not valid in COCO's run-length encoding")
    if not len(groups):
        return []
    ends = np.flatnonzero(groups & _MORE == 0)
    if not len(ends) or ends[-1] != len(groups) - 1:
        raise CacheError("mask: the run-length encoding ends inside a number")
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if lengths.max() > _MOST_GROUPS:
        raise CacheError(f"mask: a number of {lengths.max()} groups is too large for a run")
    places = np.arange(len(groups)) - np.repeat(starts, lengths)
    values = np.add.reduceat((groups & 0x1F) << 5 * places, starts)
    values -= (groups[ends] >> 4 & 1) << 5 * lengths  # the sign
    for first in (1, 2):
        values[first::2] = np.cumsum(values[first::2])
    return values.tolist()
