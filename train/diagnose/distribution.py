"""A distribution in a few numbers: mean, spread, quantiles and a histogram."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

QUANTILES = (0, 1, 5, 25, 50, 75, 95, 99, 100)
"""In percent; 0 is the smallest value, 100 the largest."""

_BINS = 60


@dataclass(frozen=True)
class Distribution:
    """Of finite values.

    Attributes:
        count: number of values.
        sd: sample standard deviation; 0 for one value.
        quantiles: percent, as text, → value.
        edges: of the histogram, one more than `counts`; equal widths from least to greatest.
        counts: values in each bin.
    """

    count: int
    mean: float
    sd: float
    quantiles: dict[str, float]
    edges: list[float]
    counts: list[int]

    @property
    def median(self) -> float:
        """The middle value."""
        return self.quantiles["50"]

    @property
    def least(self) -> float:
        """The smallest value."""
        return self.quantiles["0"]

    @property
    def greatest(self) -> float:
        """The largest value."""
        return self.quantiles["100"]

    @classmethod
    def of(cls, values: NDArray) -> Distribution | None:
        """Of ``values``, any shape; None if there are none."""
        flat = np.asarray(values, dtype=np.float64).ravel()
        if not flat.size:
            return None
        found = np.quantile(flat, np.array(QUANTILES) / 100)
        low, high = float(found[0]), float(found[-1])
        if high - low <= 1e-9 * max(abs(low), abs(high)):  # too narrow to divide into bins
            margin = max(1e-6, 1e-3 * abs(low))
            low, high = low - margin, high + margin
        counts, edges = np.histogram(flat, bins=_BINS, range=(low, high))
        return cls(
            count=flat.size,
            mean=float(flat.mean()),
            sd=float(flat.std(ddof=1)) if flat.size > 1 else 0.0,
            quantiles={str(at): float(value) for at, value in zip(QUANTILES, found, strict=True)},
            edges=edges.tolist(),
            counts=counts.tolist(),
        )


def separation(matched: NDArray, mismatched: NDArray) -> float:
    """The probability that a value of ``matched`` exceeds one of ``mismatched``; ties count half.

    Also called the area under the ROC curve: 0.5 says nothing, 1 separates them.
    """
    others = np.sort(mismatched)
    below = np.searchsorted(others, matched, side="left")
    upto = np.searchsorted(others, matched, side="right")
    return float((below + upto).mean() / (2 * len(others)))
