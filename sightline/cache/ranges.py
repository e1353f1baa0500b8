"""Rows of different lengths, stored back to back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def ranges(begin: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """begin[0] … begin[0] + counts[0] − 1, then those of 1, and so on: int64 [sum of counts]."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(begin - (ends - counts), counts)
