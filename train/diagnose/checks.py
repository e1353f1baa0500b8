"""What one feature set holds: norms, rows that are zero or not finite, copies, the mean cosine."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.cache import FeatureSet, FeatureSpec
from sightline.cache.keys import Keys
from sightline.cache.record import Provenance
from train.diagnose.settings import Tell

CHUNK = 4096
"""Rows that are read, and scores per row that are held, at once."""

PRODUCTS = 5e11
"""Multiplications that a comparison of rows with rows takes unless the user asks for more."""

QUANTILES = (0, 1, 5, 25, 50, 75, 95, 99, 100)
"""In percent; 0 is the smallest value, 100 the largest."""

_BINS = 60

SHOWN = 10
"""Rows that a result names."""

Named = Callable[[Sequence[int]], list[str]]
"""Rows of a set → what they describe: paths of images, or texts."""


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
    def of(cls, values: NDArray) -> Distribution:
        """Of ``values``, of which there must be some; any shape."""
        flat = np.asarray(values, dtype=np.float64).ravel()
        values_at = np.quantile(flat, np.array(QUANTILES) / 100)
        low, high = float(values_at[0]), float(values_at[-1])
        if high - low <= 1e-9 * max(abs(low), abs(high)):  # too narrow to divide into bins
            margin = max(1e-6, 1e-3 * abs(low))
            low, high = low - margin, high + margin
        counts, edges = np.histogram(flat, bins=_BINS, range=(low, high))
        return cls(
            count=flat.size,
            mean=float(flat.mean()),
            sd=float(flat.std(ddof=1)) if flat.size > 1 else 0.0,
            quantiles=dict(zip(map(str, QUANTILES), values_at.tolist(), strict=True)),
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


@dataclass(frozen=True)
class Scan:
    """A feature set and what one pass over it found.

    Attributes:
        norms: float64 [n], not finite where a row is not.
        total: float64 [d], the sum of the unit rows.
        twins: int64 [n], the number of the row's content: equal rows have equal numbers.
    """

    features: FeatureSet
    norms: NDArray[np.float64]
    total: NDArray[np.float64]
    twins: NDArray[np.int64]

    @property
    def usable(self) -> NDArray[np.int64]:
        """Rows that have a direction: finite and not zero."""
        return np.flatnonzero(np.isfinite(self.norms) & (self.norms > 0))

    def rows_of(self, keys: Keys) -> NDArray[np.int64]:
        """Row of each key; −1 where the set has none or the row has no direction: int64 [n]."""
        rows = self.features.find(keys)
        usable = np.zeros(len(self.features) + 1, dtype=bool)  # the last answers for −1
        usable[self.usable] = True
        return np.where(usable[rows], rows, -1)


def chunks(count: int, size: int = CHUNK) -> Iterator[slice]:
    """Slices that cover 0 … ``count`` − 1."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def read(features: FeatureSet, rows: NDArray[np.int64]) -> Tensor:
    """Rows as stored, in float32: [len(rows), d]."""
    return torch.from_numpy(features.gather(rows).astype(np.float32))


def read_units(features: FeatureSet, rows: NDArray[np.int64]) -> Tensor:
    """Rows scaled to length 1, in float32: [len(rows), d]. They must be `Scan.usable`."""
    directions = torch.empty(len(rows), features.dim)
    for part in chunks(len(rows)):
        directions[part] = units(read(features, rows[part]))
    return directions


def units(rows: Tensor) -> Tensor:
    """Finite rows scaled to length 1; the lengths are computed in float64, so none overflows."""
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
    return (rows / norms.clamp_min(torch.finfo(torch.float64).tiny)).float()


def scan(features: FeatureSet, tell: Tell) -> Scan:
    """Read every row once."""
    count, dim = len(features), features.dim
    norms = np.empty(count)
    total = torch.zeros(dim, dtype=torch.float64)
    contents = np.empty((count, 2), np.uint64)
    for part in chunks(count):
        rows = read(features, np.arange(part.start, part.stop))
        lengths = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        norms[part] = lengths.numpy()
        finite = rows[torch.isfinite(lengths)]
        if len(finite):
            total += units(finite).sum(dim=0, dtype=torch.float64)
        contents[part] = [
            np.frombuffer(hashlib.blake2b(row.tobytes(), digest_size=16).digest(), np.uint64)
            for row in rows.numpy()
        ]
        tell(f"read {features.path}", part.stop, count, "rows")
    _, twins = np.unique(contents, axis=0, return_inverse=True)
    return Scan(features, norms, total.numpy(), twins.ravel())


def sample_size(wanted: int | None, rows: int, others: int, dim: int) -> int:
    """How many of ``rows`` to compare with ``others`` rows: ``wanted``, or what `PRODUCTS` allows.

    At least 1,000, where there are that many.
    """
    allowed = max(1000, int(PRODUCTS / max(others * dim, 1))) if wanted is None else wanted
    return min(rows, allowed)


def draw(count: int, size: int, seed: int, purpose: int) -> NDArray[np.int64]:
    """``size`` of 0 … ``count`` − 1 without replacement, sorted; all of them in order if equal."""
    if size >= count:
        return np.arange(count)
    generator = np.random.default_rng([seed, purpose])
    return np.sort(generator.choice(count, size, replace=False))


@dataclass(frozen=True)
class Rows:
    """Some rows of a set: how many, and the first few by name."""

    count: int
    examples: list[str]


@dataclass(frozen=True)
class SetChecks:
    """What is known of one feature set.

    Attributes:
        spec, provenance: of its record.
        failed: error code → inputs without a row.
        not_finite: rows that contain NaN or infinity; every other number leaves them out.
        zero: rows of length 0, which have no direction; cosines leave them out.
        norms: lengths of the finite rows as stored.
        copies: rows that equal another row, of different images or texts.
        mean_cosine: mean over all pairs of different rows: 0 for directions spread evenly, 1 if
            all rows point one way; None for fewer than two rows with a direction.
    """

    path: str
    spec: FeatureSpec
    provenance: Provenance
    fingerprint: str
    content_digest: str
    rows: int
    failed: dict[str, int]
    not_finite: Rows
    zero: Rows
    norms: Distribution | None
    copies: Rows
    mean_cosine: float | None


def check_set(scanned: Scan, named: Named) -> SetChecks:
    """Check a feature set, whose rows ``named`` names."""
    features, record = scanned.features, scanned.features.record
    finite = np.isfinite(scanned.norms)
    usable = scanned.usable

    def rows(chosen: NDArray[np.bool_]) -> Rows:
        some = np.flatnonzero(chosen)
        return Rows(len(some), named(some[:SHOWN].tolist()))

    lengths = scanned.norms[finite]
    return SetChecks(
        path=features.path.as_posix(),
        spec=record.spec,
        provenance=record.provenance,
        fingerprint=record.fingerprint,
        content_digest=record.content_digest,
        rows=len(features),
        failed=dict(Counter(features.failed.values()).most_common()),
        not_finite=rows(~finite),
        zero=rows(scanned.norms == 0),
        norms=Distribution.of(lengths) if len(lengths) else None,
        copies=_copies(scanned, named),
        mean_cosine=_mean_cosine(scanned, len(usable)) if len(usable) > 1 else None,
    )


def _copies(scanned: Scan, named: Named) -> Rows:
    usable = scanned.usable
    twins = scanned.twins[usable]
    copies = np.bincount(twins, minlength=1)[twins] > 1
    grouped = usable[copies][np.argsort(twins[copies], kind="stable")]  # copies side by side
    return Rows(len(grouped), named(grouped[:SHOWN].tolist()))


def _mean_cosine(scanned: Scan, count: int) -> float:
    """Over all ordered pairs of different rows: (‖Σu‖² − n) / n(n − 1)."""
    return float((scanned.total @ scanned.total - count) / (count * (count - 1)))
