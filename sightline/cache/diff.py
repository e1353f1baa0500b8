"""Compare two sets row by row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.cache.record import NAMES, FeatureSpec, SetRecord, read_record
from sightline.cache.rows import Rows
from sightline.cache.verify import all_sound
from sightline.errors import CacheError

_BLOCK = 8192


@dataclass(frozen=True)
class Difference:
    """Rows that differ between sets A and B.

    Attributes:
        added, gone: rows only in B, or only in A.
        same, changed: rows in both, with equal or different values.
        largest_change: 1 - cosine of the row that changed most; 0 if none did.
        changed_most: hex key of that row, or of a row that changed; empty if none did.
        added_failures, gone_failures: failed rows only in B, or only in A.
        why: differences in the description of the rows.
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

    def lines(self) -> list[str]:
        """The differences in words."""
        lines = [f"  {line}" for line in self.why]
        lines.append(
            f"{self.added:,} added, {self.gone:,} removed, {self.changed:,} changed, "
            f"{self.same:,} unchanged"
        )
        if self.changed:
            change = f"{self.largest_change:.3g}"
            lines.append(f"largest cosine change {change}, key {self.changed_most}")
        if self.added_failures or self.gone_failures:
            gone = f"{self.gone_failures:,} removed"
            lines.append(f"failed rows: {self.added_failures:,} added, {gone}")
        return lines


def compare(a: Path, b: Path) -> Difference:
    """Compare the sets in folders ``a`` and ``b`` by the digests of their rows.

    Of features, the rows whose digests differ are read, a few thousand at a time.

    Raises:
        CacheError: one of them is not a set or is damaged, or their kinds or row lengths differ.
    """
    first, second = read_record(a), read_record(b)
    _require_comparable(a, first, b, second)
    one, two = all_sound(a, first), all_sound(b, second)
    there = two.rows.find(one.rows.keys)
    mine = np.flatnonzero(there >= 0)
    theirs = there[mine]
    assert one.rows.digests is not None
    assert two.rows.digests is not None
    other = (one.rows.digests[mine] != two.rows.digests[theirs]).any(axis=1)
    changed = int(other.sum())
    largest, most = _largest_change(one.rows, two.rows, mine[other], theirs[other])
    return Difference(
        added=len(two.rows) - len(mine),
        gone=len(one.rows) - len(mine),
        same=len(mine) - changed,
        changed=changed,
        largest_change=largest,
        changed_most=most,
        added_failures=len(two.failed.keys() - one.failed.keys()),
        gone_failures=len(one.failed.keys() - two.failed.keys()),
        why=tuple(second.spec.differences(first.spec)),
    )


def cosines(first: NDArray, second: NDArray) -> NDArray[np.float64]:
    """Cosine of each pair of rows, [n, dim] each: float64 [n]; 1 where both are zero."""
    one, two = first.astype(np.float64), second.astype(np.float64)
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
    dots = (one * two).sum(axis=1)
    equal = (one == two).all(axis=1)
    return np.where(equal, 1.0, dots / np.where(norms > 0, norms, 1.0))


def _require_comparable(a: Path, first: SetRecord, b: Path, second: SetRecord) -> None:
    one, two = first.spec, second.spec
    if isinstance(one, FeatureSpec) and isinstance(two, FeatureSpec):
        if one.dim != two.dim:
            raise CacheError(
                f"{a} has rows of {one.dim} numbers, {b} of {two.dim}; they cannot be compared"
            )
    elif one.kind != two.kind:
        raise CacheError(f"{b}: holds {NAMES[two.kind]}, expected {NAMES[one.kind]}")


def _largest_change(
    one: Rows, two: Rows, mine: NDArray[np.int64], theirs: NDArray[np.int64]
) -> tuple[float, str]:
    """Of rows that differ: 1 - cosine of the one that changed most, and its key (hex)."""
    largest, row = 0.0, mine[:1]
    for start in range(0, len(mine) if isinstance(one.spec, FeatureSpec) else 0, _BLOCK):
        part = slice(start, start + _BLOCK)
        change = 1 - cosines(one.gather(mine[part]), two.gather(theirs[part]))
        worst = int(np.argmax(change))
        if change[worst] > largest:
            largest, row = float(change[worst]), mine[part][worst : worst + 1]
    return largest, one.keys[row].tobytes().hex()
