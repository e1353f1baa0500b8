"""Rows of a feature set as unit vectors, read in chunks; and what one pass over them finds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.cache import FeatureSet

CHUNK = 4096
"""Rows that are read, and scores per row that are held, at once."""

Tell = Callable[[str, int, int, str], None]
"""Takes what is being done, how many are done, how many there are, and their unit."""

PRODUCTS = 5e11
"""Multiplications that a comparison of rows with rows takes unless the user asks for more."""


@dataclass(frozen=True)
class Scan:
    """One pass over all rows of a set.

    Attributes:
        norms: float64 [n], not finite where a row is not.
        low, high: float32 [d], the range of each column over the finite rows; inf and −inf if
            there are none.
        total: float64 [d], the sum of the unit rows.
        twins: int64 [n], the number of the row's content: equal rows have equal numbers.
    """

    norms: NDArray[np.float64]
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    total: NDArray[np.float64]
    twins: NDArray[np.int64]

    @property
    def usable(self) -> NDArray[np.int64]:
        """Rows that have a direction: finite and not zero."""
        return np.flatnonzero(np.isfinite(self.norms) & (self.norms > 0))


def chunks(count: int, size: int = CHUNK) -> Iterator[slice]:
    """Slices that cover 0 … ``count`` − 1."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def read(features: FeatureSet, rows: NDArray[np.int64]) -> Tensor:
    """Rows as stored, in float32: [len(rows), d]."""
    return torch.from_numpy(features.gather(rows).astype(np.float32))


def read_units(features: FeatureSet, rows: NDArray[np.int64]) -> Tensor:
    """Rows scaled to length 1, in float32: [len(rows), d]. They must be `Scan.usable`."""
    found = torch.empty(len(rows), features.dim)
    for part in chunks(len(rows)):
        found[part] = units(read(features, rows[part]))
    return found


def units(rows: Tensor) -> Tensor:
    """Finite rows scaled to length 1; the lengths are computed in float64, so none overflows."""
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
    return (rows / norms.clamp_min(torch.finfo(torch.float64).tiny)).float()


def scan(features: FeatureSet, tell: Tell) -> Scan:
    """Read every row once."""
    count, dim = len(features), features.dim
    norms = np.empty(count)
    low, high = np.full(dim, np.inf, np.float32), np.full(dim, -np.inf, np.float32)
    total = torch.zeros(dim, dtype=torch.float64)
    contents = np.empty((count, 2), np.uint64)
    for part in chunks(count):
        rows = read(features, np.arange(part.start, part.stop))
        lengths = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        norms[part] = lengths.numpy()
        finite = rows[torch.isfinite(lengths)]
        if len(finite):
            low = np.minimum(low, finite.amin(dim=0).numpy())
            high = np.maximum(high, finite.amax(dim=0).numpy())
            total += units(finite).sum(dim=0, dtype=torch.float64)
        contents[part] = [
            np.frombuffer(hashlib.blake2b(row.tobytes(), digest_size=16).digest(), np.uint64)
            for row in rows.numpy()
        ]
        tell(f"read {features.path}", part.stop, count, "rows")
    _, twins = np.unique(contents, axis=0, return_inverse=True)
    return Scan(norms, low, high, total.numpy(), twins.ravel())


def sample_size(wanted: int | None, rows: int, others: int, dim: int) -> int:
    """How many of ``rows`` to compare with ``others`` rows: ``wanted``, or what `PRODUCTS` allows.

    At least 1,000, where there are that many.
    """
    allowed = max(1000, int(PRODUCTS / max(others * dim, 1))) if wanted is None else wanted
    return min(rows, allowed)


def drawn(count: int, size: int, seed: int, purpose: int) -> NDArray[np.int64]:
    """``size`` of 0 … ``count`` − 1 without replacement, sorted; all of them in order if equal."""
    if size >= count:
        return np.arange(count)
    generator = np.random.default_rng([seed, purpose])
    return np.sort(generator.choice(count, size, replace=False))
