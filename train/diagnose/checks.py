"""What one feature set holds: rows that are zero or not finite, and the mean cosine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sightline.cache import FeatureSet, FeatureSpec
from sightline.cache.keys import Keys
from train.diagnose.settings import Tell

Named = Callable[[Sequence[int]], list[str]]
"""Rows of a set → what they describe: paths of images, or texts."""

_CHUNK = 4096  # rows that are read at once
_NAMED = 4  # rows that a result names


@dataclass(frozen=True)
class Scan:
    """A feature set and what one pass over it found.

    Attributes:
        norms: float64 [n], not finite where a row is not.
        total: float64 [d], the sum of the rows scaled to length 1.
    """

    features: FeatureSet
    norms: NDArray[np.float64]
    total: NDArray[np.float64]

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Which rows have a direction: finite and not zero, [n]."""
        return np.isfinite(self.norms) & (self.norms > 0)

    def rows_of(self, keys: Keys) -> NDArray[np.int64]:
        """Row of each key; −1 where the set has none or the row has no direction: int64 [n]."""
        rows = self.features.find(keys)
        usable = np.append(self.usable, False)  # the last answers for −1
        return np.where(usable[rows], rows, -1)


def scan(features: FeatureSet, tell: Tell) -> Scan:
    """Read every row once."""
    count = len(features)
    norms, total = np.empty(count), np.zeros(features.dim)
    for start in range(0, count, _CHUNK):
        end = min(start + _CHUNK, count)
        rows = features.gather(np.arange(start, end)).astype(np.float64)
        norms[start:end] = np.linalg.norm(rows, axis=1)
        directed = np.isfinite(norms[start:end]) & (norms[start:end] > 0)
        total += (rows[directed] / norms[start:end][directed, None]).sum(axis=0)
        tell(f"read {features.path}", end, count, "rows")
    return Scan(features, norms, total)


@dataclass(frozen=True)
class NamedRows:
    """Some rows of a set: how many, and the first few by name."""

    count: int
    examples: list[str]

    def __str__(self) -> str:
        names = ", ".join(f"“{name}”" for name in self.examples)
        return f"{self.count:,} ({names}{', …' if self.count > len(self.examples) else ''})"


@dataclass(frozen=True)
class SetChecks:
    """What is known of one feature set.

    Attributes:
        spec: of its record.
        not_finite: rows that contain NaN or infinity.
        zero: rows of length 0; like those above, cosines leave them out.
        mean_cosine: mean over all pairs of different rows: 0 for directions spread evenly, 1 if
            all rows point one way; None for fewer than two rows with a direction.
    """

    path: str
    spec: FeatureSpec
    rows: int
    not_finite: NamedRows
    zero: NamedRows
    mean_cosine: float | None


def check_set(scanned: Scan, name_rows: Named) -> SetChecks:
    """Check a feature set, whose rows ``name_rows`` names."""
    features, count = scanned.features, int(scanned.usable.sum())

    def rows(chosen: NDArray[np.bool_]) -> NamedRows:
        numbers = np.flatnonzero(chosen)
        return NamedRows(len(numbers), name_rows(numbers[:_NAMED].tolist()))

    mean_cosine = None
    if count > 1:  # (‖Σu‖² − n) / n(n − 1), over all ordered pairs of different rows
        mean_cosine = float((scanned.total @ scanned.total - count) / (count * (count - 1)))
    return SetChecks(
        path=features.path.as_posix(),
        spec=features.record.spec,
        rows=len(features),
        not_finite=rows(~np.isfinite(scanned.norms)),
        zero=rows(scanned.norms == 0),
        mean_cosine=mean_cosine,
    )
