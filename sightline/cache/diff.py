"""Compare two sets row by row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.cache.commit import read_record, read_tables_record
from sightline.cache.errors import CacheError
from sightline.cache.feature_set import FeatureSet
from sightline.cache.keys import Keys
from sightline.cache.record import TableSetRecord, differences
from sightline.cache.tables import rows_by_key

_BLOCK = 8192


@dataclass(frozen=True)
class Difference:
    """Rows that differ between sets A and B.

    Attributes:
        added, gone: rows only in B, or only in A.
        same, changed: rows in both, with equal or different bytes.
        largest_change: 1 - cosine of the row that changed most; 0 if none did.
        changed_most: hex key of that row, or empty.
        added_failures, gone_failures: failed rows only in B, or only in A.
        why: differences in the encoder, preprocessing, precision or dtype.
    """

    added: int
    gone: int
    same: int
    changed: int
    largest_change: float
    changed_most: str
    added_failures: int
    gone_failures: int
    why: tuple[str, ...]


def compare(a: Path, b: Path) -> Difference:
    """Compare the sets in folders ``a`` and ``b``.

    Feature sets are compared in memory for a few thousand rows at a time. For tables, a row is
    its first key, and counts as changed if anything under that key changed.

    Raises:
        CacheError: one of them is not a set, or their kinds or row lengths differ.
    """
    record = read_record(a)
    if isinstance(record, TableSetRecord):
        return _compare_tables(a, record, b, read_tables_record(b, record.spec.kind))
    return _compare_features(a, b)


def _compare_tables(a: Path, one: TableSetRecord, b: Path, two: TableSetRecord) -> Difference:
    mine, theirs = rows_by_key(a, one.spec, one.shards), rows_by_key(b, two.spec, two.shards)
    both = mine.keys() & theirs.keys()
    changed = sorted(key for key in both if mine[key] != theirs[key])
    return Difference(
        added=len(theirs.keys() - mine.keys()),
        gone=len(mine.keys() - theirs.keys()),
        same=len(both) - len(changed),
        changed=len(changed),
        largest_change=0.0,
        changed_most=changed[0].hex() if changed else "",
        added_failures=0,
        gone_failures=0,
        why=tuple(differences(two.spec, one.spec)),
    )


def _compare_features(a: Path, b: Path) -> Difference:
    one, two = FeatureSet.open(a), FeatureSet.open(b)
    if one.dim != two.dim:
        raise CacheError(
            f"{a} has rows of {one.dim} numbers, {b} of {two.dim}; they cannot be compared"
        )
    there = two.find(one.keys)
    mine = np.flatnonzero(there >= 0)
    changed, largest, most = 0, 0.0, ""
    for start in range(0, len(mine), _BLOCK):
        rows = mine[start : start + _BLOCK]
        first, second = one.gather(rows), two.gather(there[rows])
        other = np.flatnonzero(~_equal(first, second))
        if not len(other):
            continue
        changed += len(other)
        change = 1 - cosines(first[other], second[other])
        worst = int(np.argmax(change))
        if change[worst] > largest or not most:
            largest, most = float(change[worst]), _hex(one.keys, int(rows[other[worst]]))
    return Difference(
        added=len(two) - len(mine),
        gone=len(one) - len(mine),
        same=len(mine) - changed,
        changed=changed,
        largest_change=largest,
        changed_most=most,
        added_failures=len(two.failed.keys() - one.failed.keys()),
        gone_failures=len(one.failed.keys() - two.failed.keys()),
        why=tuple(two.record.spec.differences(one.record.spec)),
    )


def cosines(first: NDArray, second: NDArray) -> NDArray[np.float64]:
    """Cosine of each pair of rows, [n, dim] each: float64 [n]; 1 where both are zero."""
    one, two = first.astype(np.float64), second.astype(np.float64)
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
    dots = (one * two).sum(axis=1)
    equal = (one == two).all(axis=1)
    return np.where(equal, 1.0, dots / np.where(norms > 0, norms, 1.0))


def _equal(first: NDArray, second: NDArray) -> NDArray[np.bool_]:
    """Rows that are equal: bitwise if the dtypes match, else by value."""
    if first.dtype == second.dtype:
        first, second = first.view(np.uint8), second.view(np.uint8)
    return (first == second).all(axis=1)


def _hex(keys: Keys, row: int) -> str:
    return keys[row].tobytes().hex()
