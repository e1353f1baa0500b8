"""Alignment and uniformity of an embedding space (Wang and Isola 2020, as SimCSE reports them)."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from sightline.errors import SightlineError
from train.evaluate.similarity import Encode, GradedPairs, encode_distinct

_CHUNK = 1024  # rows of the distance matrix held at once


@dataclass(frozen=True)
class Geometry:
    """Both are better when lower. A value is None where `reasons` says why it is not defined."""

    alignment: float | None
    uniformity: float | None
    positive_pairs: int
    sentences: int
    reasons: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """As a JSON object; an undefined value is null."""
        return {**asdict(self), "reasons": list(self.reasons)}


def evaluate_geometry(encode: Encode, pairs: GradedPairs, gold_above: float = 4.0) -> Geometry:
    """Alignment over the pairs with gold > `gold_above`, uniformity over all distinct sentences.

    KDMCSE and DALR use STS-B's dev split; MCSE used all of STS-B. Uniformity is taken over every
    pair of two different sentences of the whole set at once. (A mean of per-batch
    values, which released evaluation code takes, moves with the batch size.)
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
    return Geometry(close, spread, len(positives), len(embeddings), tuple(reasons))


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
        # Each unordered pair once: this block with all rows after its own.
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
