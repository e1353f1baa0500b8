"""Rows of numbers that can be stored; every other one is an error of its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sightline.cache.keys import Keys
from sightline.cache.parts import Failure
from sightline.cache.record import FeatureSpec
from sightline.cache.shards import format_of

NOT_FINITE = "not_finite"
"""The code of a row that cannot be stored, as it or some of it is no finite number."""
UNDERFLOW = "underflow"
"""The code of a row whose numbers are too small to be stored."""
_MOST_LOST = 0.01
"""Of a row's length; float16 has about 0.0003 where its numbers are not too small."""


def storable(
    spec: FeatureSpec,
    keys: Keys,
    rows: NDArray,
    failed: dict[bytes, Failure],
    name_of: Callable[[bytes], str] = lambda key: "",
) -> tuple[Keys, NDArray]:
    """The rows that can be stored, in their stored type; the others are added to ``failed``.

    Args:
        rows: float32 [n, dim].
        name_of: what a key stands for, such as a file.
    """
    with np.errstate(over="ignore", under="ignore"):
        stored = rows.astype(format_of(spec).dtype)
    finite = np.asarray(np.isfinite(stored).all(axis=1))
    kept = finite & ~_underflows(rows, stored)
    if kept.all():
        return keys, stored
    for key, row, is_finite in zip(keys[~kept], rows[~kept], finite[~kept], strict=True):
        code, reason = UNDERFLOW if is_finite else NOT_FINITE, _why_not(spec, row)
        failed[key.tobytes()] = {
            "code": code,
            "path": name_of(key.tobytes()),
            "reason": reason,
        }
    return keys[kept], stored[kept]


def _why_not(spec: FeatureSpec, row: NDArray) -> str:
    """Why a row cannot be stored, and what to do if that is known."""
    if np.isfinite(row).all():
        largest = float(np.abs(row).max())
        verb = "exceeds" if largest > 1 else "is too small for"
        return f"{verb} {spec.dtype} (largest {largest:.2g}): store with --dtype float32"
    fault = "the encoder's row holds NaN or infinity"
    if spec.precision.startswith("fp16"):
        return f"{fault} in fp16: compute with --precision bf16 or fp32"
    return f"{fault}: look at its weights"


def _underflows(rows: NDArray, stored: NDArray) -> NDArray[np.bool_]:
    """Which rows [n, dim] lose more than rounding when numbers as small as theirs are stored."""
    low = np.abs(rows).max(axis=1, initial=0.0) < np.finfo(stored.dtype).smallest_normal
    if not low.any():
        return low
    exact = rows[low].astype(np.float64)
    lost = np.linalg.norm(exact - stored[low].astype(np.float64), axis=1)
    low[low] = lost > _MOST_LOST * np.linalg.norm(exact, axis=1)
    return low
