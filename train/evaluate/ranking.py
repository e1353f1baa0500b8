"""Ranking by cosine: nearest rows, ranks of matches, and the directions behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sightline.errors import SightlineError

DECIMALS = 9
"""Of a cosine: equal float32 embeddings tie, whatever the order in which they were multiplied."""
_HELD = 1 << 23  # cosines held at once, 64 MiB
_CHUNK = 4096  # candidates converted to float64 at once
_NAMES = ("query", "candidate")


class NotDefinedError(SightlineError):
    """There is no score or order, as for an embedding without a direction; the message says why."""


@dataclass(frozen=True)
class NearestRows:
    """The k nearest candidates of each query, nearest first.

    Attributes:
        rows: per query, int64 [≤ k], rows of the candidates.
        cosines: per query, float64 [≤ k], rounded to `DECIMALS`.
        constant: all candidates have the same cosine with every query, so that the order says
            nothing.
    """

    rows: tuple[np.ndarray, ...]
    cosines: tuple[np.ndarray, ...]
    constant: bool


def nearest(
    queries: np.ndarray,
    candidates: np.ndarray,
    k: int,
    left_out: Mapping[int, int] | None = None,
) -> NearestRows:
    """The ``k`` candidates with the largest cosine; equal cosines in the order of the candidates.

    Args:
        queries: float [q, d]; any norm.
        candidates: float [n, d]; any norm.
        k: at least 1; more than there are candidates gives all of them.
        left_out: query → the candidate that it must not find, such as itself.

    Raises:
        SightlineError: no candidate, or different widths.
        NotDefinedError: an embedding is zero or not finite.
    """
    left_out = left_out or {}
    rows: list[np.ndarray] = []
    best: list[np.ndarray] = []
    constant = len(candidates) > 1
    for query, row in enumerate(cosines(queries, candidates)):
        constant = constant and bool(np.ptp(row) == 0)
        order = _largest(row, k + 1)
        order = order[order != left_out.get(query, -1)][:k]
        rows.append(order)
        best.append(row[order])
    return NearestRows(tuple(rows), tuple(best), constant)


def cosines(
    queries: np.ndarray, candidates: np.ndarray, names: tuple[str, str] = _NAMES
) -> Iterator[np.ndarray]:
    """Of each query, its cosine with every candidate: float64 [n], rounded to `DECIMALS`.

    Args:
        queries: float [q, d]; any norm.
        candidates: float [n, d]; any norm.
        names: what one of either is called in errors.

    Raises:
        SightlineError: no candidate, or different widths.
        NotDefinedError: an embedding is zero or not finite.
    """
    if queries.ndim != 2 or candidates.ndim != 2 or queries.shape[1] != candidates.shape[1]:
        raise SightlineError(
            "cosines need rows [q, d] and rows [n, d] in one space; found "
            f"{queries.shape} and {candidates.shape}"
        )
    if not len(candidates):
        raise SightlineError("there is nothing to find neighbours among; give some candidates")
    points, norms = unit_rows(queries, names[0]), norms_of(candidates, names[1])
    step = max(1, _HELD // len(candidates))
    for start in range(0, len(points), step):
        block_of = np.empty((len(points[start : start + step]), len(candidates)))
        for low in range(0, len(candidates), _CHUNK):
            part = slice(low, low + _CHUNK)
            block = candidates[part].astype(np.float64) / norms[part]
            block_of[:, part] = points[start : start + step] @ block.T
        yield from _rounded(block_of)


def cosine(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Cosine of each row of [n, d] with the same row of [n, d]: float64 [n], NaN for a zero row.

    Rounded to `DECIMALS`, so that pairs of equal embeddings tie wherever cosines are ranked.
    """
    first, second = first.astype(np.float64), second.astype(np.float64)
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return _rounded(np.sum(first * second, axis=1) / norms)


def _rounded(cosines: np.ndarray) -> np.ndarray:
    """Cosines as they are ranked and compared, everywhere."""
    return np.round(cosines, DECIMALS)


def _largest(row: np.ndarray, k: int) -> np.ndarray:
    """Positions of the ``k`` largest values, the earlier of two equal ones first."""
    if k < len(row):
        kept = np.flatnonzero(row >= np.partition(row, -k)[-k])
        return kept[np.argsort(-row[kept], kind="stable")][:k]
    return np.argsort(-row, kind="stable")


def norms_of(rows: np.ndarray, name: str = "embedding") -> np.ndarray:
    """Norms of [n, d]: float64 [n, 1].

    Raises:
        NotDefinedError: a row has no direction (names the first).
    """
    norms = np.empty((len(rows), 1))
    for low in range(0, len(rows), _CHUNK):
        block = rows[low : low + _CHUNK].astype(np.float64)
        norms[low : low + _CHUNK] = np.linalg.norm(block, axis=1, keepdims=True)
    broken = np.flatnonzero(~(np.isfinite(norms) & (norms > 0)))
    if len(broken):
        raise NotDefinedError(
            f"{len(broken)} of {len(rows)} embeddings are zero or not finite ({name} {broken[0]} "
            "is the first), so they have no direction; check the encoder"
        )
    return norms


def unit_rows(rows: np.ndarray, name: str = "embedding") -> np.ndarray:
    """The directions of [n, d]: float64 [n, d] with norm 1; raises as `norms_of`."""
    return rows.astype(np.float64) / norms_of(rows, name)


def ranks_of_matches(
    queries: np.ndarray,
    candidates: np.ndarray,
    matches: Sequence[Sequence[int]],
    names: tuple[str, str] = _NAMES,
    left_out: Mapping[int, int] | None = None,
) -> np.ndarray:
    """Rank of the best match of each query among all candidates, by cosine: int64 [q], from 1.

    A tie is a miss: others that score as high as the match are ranked before it, so that constant
    embeddings find nothing.

    Args:
        queries, candidates, names: as for `cosines`.
        matches: of each query, rows of candidates; without any, its rank is 0.
        left_out: query → a candidate that does not count, such as itself.

    Raises:
        As `cosines`.
    """
    ranks = np.zeros(len(queries), dtype=np.int64)
    for query, row in enumerate(cosines(queries, candidates, names)):
        if right := list(matches[query]):
            best = row[right].max()
            row[right] = -np.inf
            if left_out is not None:
                row[left_out[query]] = -np.inf
            ranks[query] = 1 + np.count_nonzero(row >= best)
    return ranks
