"""Alignment and uniformity of an embedding space (Wang and Isola 2020, as SimCSE reports them)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from sightline.errors import SightlineError
from train.evaluate.similarity import Encode, GradedPairs, encode_distinct

_CHUNK = 1024  # rows of the distance matrix held at once
_RELEASED_BATCH = 128
GEOMETRY = ("alignment", "uniformity", "alignment_released", "uniformity_released")
"""Figures of `Geometry`, as results name them."""


@dataclass(frozen=True)
class Geometry:
    """Lower is better for all. A value is None if undefined; `reasons` says why.

    Attributes:
        alignment, uniformity: as the papers define them: over all pairs with gold > 4, and over
            every two distinct sentences.
        alignment_released, uniformity_released: as the released evaluation computes them, see
            `released_geometry`; published figures are of this kind.
        positive_pairs: number of pairs with gold > 4.
        sentences: number of distinct sentences.
    """

    alignment: float | None
    uniformity: float | None
    positive_pairs: int
    sentences: int
    reasons: tuple[str, ...] = ()
    alignment_released: float | None = None
    uniformity_released: float | None = None

    def to_json(self) -> dict[str, object]:
        """As a JSON object; an undefined value is null."""
        return {**asdict(self), "reasons": list(self.reasons)}


def evaluate_geometry(encode: Encode, pairs: GradedPairs, gold_above: float = 4.0) -> Geometry:
    """Alignment over the pairs with gold > `gold_above`, uniformity over all distinct sentences.

    KDMCSE and DALR use STS-B's dev split; MCSE used all of STS-B.
    """
    embeddings, row_of = encode_distinct(encode, [pairs])
    positives = np.flatnonzero(pairs.gold > gold_above)
    reasons: list[str] = []
    norms = np.linalg.norm(embeddings.astype(np.float64), axis=1)
    broken = int((~(np.isfinite(norms) & (norms > 0))).sum())
    if broken:
        reasons.append(f"{broken} of {len(norms)} embeddings are zero or not finite")
        return Geometry(None, None, len(positives), len(norms), tuple(reasons))
    close = None
    if len(positives):
        first = [row_of[pairs.first[index]] for index in positives]
        second = [row_of[pairs.second[index]] for index in positives]
        close = alignment(embeddings[first], embeddings[second])
    else:
        reasons.append(f"no pair has a gold score above {gold_above:g}")
    spread = None
    if len(embeddings) > 1:
        spread = uniformity(embeddings)
    else:
        reasons.append(f"{len(embeddings)} distinct sentences; uniformity needs two")
    released = released_geometry(embeddings, row_of, pairs)
    return Geometry(close, spread, len(positives), len(embeddings), tuple(reasons), *released)


def released_geometry(
    embeddings: np.ndarray, row_of: Mapping[str, int], pairs: GradedPairs
) -> tuple[float, float]:
    """Alignment and uniformity as MCSE's evaluation computes them (its SentEval/senteval/sts.py).

    Pairs are sorted by the words of both sentences and by gold and cut into batches of 128. A
    batch's alignment is over its pairs with gold ≥ 4, 0 if it has none; its uniformity over both
    sides, repeated sentences included. The result is the mean over batches.

    Args:
        embeddings: float [n, d] of the distinct sentences.
        row_of: sentence → row.
    """
    words = [
        (len(pairs.first[i].split()), len(pairs.second[i].split()), float(pairs.gold[i]), i)
        for i in range(len(pairs))
    ]
    order = [i for *_, i in sorted(words)]
    close, spread = [], []
    for start in range(0, len(order), _RELEASED_BATCH):
        batch = np.array(order[start : start + _RELEASED_BATCH])
        first, second = (
            embeddings[[row_of[side[i]] for i in batch]] for side in (pairs.first, pairs.second)
        )
        positive = pairs.gold[batch] >= 4.0
        close.append(alignment(first[positive], second[positive]) if positive.any() else 0.0)
        spread.append(uniformity(np.concatenate([first, second])))
    return float(np.mean(close)), float(np.mean(spread))


def alignment(first: np.ndarray, second: np.ndarray) -> float:
    """Mean squared distance of matching rows, E‖f(x) − f(x⁺)‖², of normalised [n, d] and [n, d]."""
    difference = _normalised(first) - _normalised(second)
    return float(np.mean(np.sum(difference**2, axis=1)))


def uniformity(embeddings: np.ndarray, t: float = 2.0) -> float:
    """log E exp(−t ‖f(x) − f(y)‖²) over all pairs of different rows of [n, d], normalised.

    Exact over the whole set, in float64; at most 1024 rows of the n × n distances are in memory
    at a time.
    """
    points = _normalised(embeddings)
    n = len(points)
    if n < 2:
        raise ValueError(f"{n} rows; uniformity needs two")
    total = 0.0
    for start in range(0, n, _CHUNK):
        block = points[start : start + _CHUNK]
        # Each unordered pair once: this block with all rows from its own on.
        squared = 2.0 - 2.0 * (block @ points[start:].T)
        kernel = np.exp(-t * np.maximum(squared, 0.0))
        total += float(np.triu(kernel, k=1).sum())
    return float(np.log(total / (n * (n - 1) / 2)))


def _normalised(embeddings: np.ndarray) -> np.ndarray:
    embeddings = embeddings.astype(np.float64)
    norms = np.linalg.norm(embeddings, axis=1, keepdims=True)
    if not (np.isfinite(norms).all() and (norms > 0).all()):
        raise SightlineError(
            "an embedding is zero or not finite, so it has no direction; check the encoder"
        )
    return embeddings / norms
