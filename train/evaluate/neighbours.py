"""Nearest neighbours by cosine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sightline.errors import SightlineError

DECIMALS = 9
"""Of a cosine: equal float32 embeddings tie, whatever the order in which they were multiplied."""
_HELD = 1 << 23  # cosines held at once, 64 MiB
_CHUNK = 4096  # candidates converted to float64 at once


class NoDirectionError(SightlineError):
    """An embedding is zero or not finite, so that it has no cosine with others."""


@dataclass(frozen=True)
class Neighbours:
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
) -> Neighbours:
    """The ``k`` candidates with the largest cosine; equal cosines in the order of the candidates.

    Args:
        queries: float [q, d]; any norm.
        candidates: float [n, d]; any norm.
        k: at least 1; more than there are candidates gives all of them.
        left_out: query → the candidate that it must not find, such as itself.

    Raises:
        SightlineError: no candidate, or different widths.
        NoDirectionError: an embedding is zero or not finite.
    """
    left_out = left_out or {}
    rows: list[np.ndarray] = []
    found: list[np.ndarray] = []
    constant = len(candidates) > 1
    for query, row in enumerate(cosines(queries, candidates)):
        constant = constant and bool(np.ptp(row) == 0)
        order = _largest(row, k + 1)
        order = order[order != left_out.get(query, -1)][:k]
        rows.append(order)
        found.append(row[order])
    return Neighbours(tuple(rows), tuple(found), constant)


def cosines(queries: np.ndarray, candidates: np.ndarray) -> Iterator[np.ndarray]:
    """Of each query, its cosine with every candidate: float64 [n], rounded to `DECIMALS`.

    Args:
        queries: float [q, d]; any norm.
        candidates: float [n, d]; any norm.

    Raises:
        SightlineError: no candidate, or different widths.
        NoDirectionError: an embedding is zero or not finite.
    """
    if queries.ndim != 2 or candidates.ndim != 2 or queries.shape[1] != candidates.shape[1]:
        raise SightlineError(
            f"neighbours need queries [q, d] and candidates [n, d] in one space; found "
            f"{queries.shape} and {candidates.shape}"
        )
    if not len(candidates):
        raise SightlineError("there is nothing to find neighbours among; give some candidates")
    norms = {name: _norms(x, name) for name, x in (("query", queries), ("candidate", candidates))}
    points = queries.astype(np.float64) / norms["query"]
    step = max(1, _HELD // len(candidates))
    for start in range(0, len(points), step):
        found = np.empty((len(points[start : start + step]), len(candidates)))
        for low in range(0, len(candidates), _CHUNK):
            some = slice(low, low + _CHUNK)
            block = candidates[some].astype(np.float64) / norms["candidate"][some]
            found[:, some] = points[start : start + step] @ block.T
        yield from np.round(found, DECIMALS)


def _largest(row: np.ndarray, k: int) -> np.ndarray:
    """Positions of the ``k`` largest values, the earlier of two equal ones first."""
    if k < len(row):
        kept = np.flatnonzero(row >= np.partition(row, -k)[-k])
        return kept[np.argsort(-row[kept], kind="stable")][:k]
    return np.argsort(-row, kind="stable")


def _norms(rows: np.ndarray, what: str) -> np.ndarray:
    """Norms float64 [n, 1]; refuses what has no direction."""
    norms = np.empty((len(rows), 1))
    for low in range(0, len(rows), _CHUNK):
        block = rows[low : low + _CHUNK].astype(np.float64)
        norms[low : low + _CHUNK] = np.linalg.norm(block, axis=1, keepdims=True)
    broken = np.flatnonzero(~(np.isfinite(norms) & (norms > 0)))
    if len(broken):
        raise NoDirectionError(
            f"the embedding of {what} {broken[0]} is zero or not finite, so it has no direction; "
            "check the encoder"
        )
    return norms
