"""Rows of length 1, as other tools store them; ours are stored as the encoder returned them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_TOLERANCE = 0.01  # float16 rounds lengths by less than 0.002


def unit_rows(rows: NDArray) -> NDArray[np.float32]:
    """Each row of [n, dim] divided by its length, in float32; rows of zeros stay."""
    values = rows.astype(np.float64)  # squares of large numbers overflow float32
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return (values / np.where(lengths > 0, lengths, 1)).astype(np.float32, copy=False)


def are_unit(rows: NDArray) -> bool:
    """Whether every row of [n, dim] has length 1, except for zeros and rows that are not finite."""
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    lengths = lengths[np.isfinite(lengths) & (lengths > 0)]
    return bool((np.abs(lengths - 1) <= _TOLERANCE).all())
