"""Compare two sets row by row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.cache.record import FeatureSpec, SetRecord, set_of_kind
from sightline.cache.rows import Rows
from sightline.cache.verify import require_all_sound, snapshot
from sightline.errors import CacheError

_BLOCK = 8192


@dataclass(frozen=True)
class Difference:
    """Rows that differ between sets A and B.

    Attributes:
        added, gone: rows only in B, or only in A.
        same, changed: rows in both, with equal or different values.
        largest_change: the largest 1 - cosine of a row that changed; 0 if none did.
        largest_difference: the largest relative difference, |b - a| / max(|a|, |b|), of one.
        changed_most: hex key of that row, or of a row that changed; empty if none did.
        added_failures, gone_failures: failed rows only in B, or only in A.
        why: differences in the description of the rows.
    """

    added: int
    gone: int
    same: int
    changed: int
    largest_change: float
    largest_difference: float
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
            lines.append(
                f"largest cosine change {self.largest_change:.3g}, largest relative difference "
                f"{self.largest_difference:.3g}, key {self.changed_most}"
            )
        if self.added_failures or self.gone_failures:
            gone = f"{self.gone_failures:,} removed"
            lines.append(f"failed rows: {self.added_failures:,} added, {gone}")
        return lines


def compare(a: Path, b: Path) -> Difference:
    """Compare the sets in folders ``a`` and ``b`` by the digests of their rows.

    Of features, the rows whose digests differ are read, a few thousand at a time.
    """
    return snapshot(a, lambda first: snapshot(b, lambda second: _difference(a, first, b, second)))


def _difference(a: Path, first: SetRecord, b: Path, second: SetRecord) -> Difference:
    _require_comparable(a, first, b, second)
    before, after = require_all_sound(a, first), require_all_sound(b, second)
    places = after.rows.find(before.rows.keys)
    mine = np.flatnonzero(places >= 0)
    theirs = places[mine]
    assert before.rows.digests is not None
    assert after.rows.digests is not None
    differs = (before.rows.digests[mine] != after.rows.digests[theirs]).any(axis=1)
    changed = int(differs.sum())
    turned, apart, most = _largest_changes(before.rows, after.rows, mine[differs], theirs[differs])
    return Difference(
        added=len(after.rows) - len(mine),
        gone=len(before.rows) - len(mine),
        same=len(mine) - changed,
        changed=changed,
        largest_change=turned,
        largest_difference=apart,
        changed_most=most,
        added_failures=len(after.failed.keys() - before.failed.keys()),
        gone_failures=len(before.failed.keys() - after.failed.keys()),
        why=tuple(second.spec.differences(first.spec)),
    )


def cosines(first: NDArray, second: NDArray) -> NDArray[np.float64]:
    """Cosine of each pair of rows, [n, dim] each: float64 [n]; 1 where both are zero."""
    a, b = first.astype(np.float64), second.astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    dots = (a * b).sum(axis=1)
    equal = (a == b).all(axis=1)
    return np.where(equal, 1.0, dots / np.where(norms > 0, norms, 1.0))


def relative_differences(first: NDArray, second: NDArray) -> NDArray[np.float64]:
    """|b - a| / max(|a|, |b|) of each pair of rows, [n, dim] each: float64 [n]; 0 where equal."""
    a, b = first.astype(np.float64), second.astype(np.float64)
    longer = np.maximum(np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1))
    return np.linalg.norm(b - a, axis=1) / np.where(longer > 0, longer, 1.0)


def _require_comparable(a: Path, first: SetRecord, b: Path, second: SetRecord) -> None:
    left, right = first.spec, second.spec
    if isinstance(left, FeatureSpec) and isinstance(right, FeatureSpec):
        if left.dim != right.dim:
            raise CacheError(
                f"{a} has rows of {left.dim} numbers, {b} of {right.dim}; they cannot be compared"
            )
    elif left.kind != right.kind:
        raise CacheError(f"{b}: holds {set_of_kind(right.kind)}, expected {set_of_kind(left.kind)}")


def _largest_changes(
    left: Rows, right: Rows, mine: NDArray[np.int64], theirs: NDArray[np.int64]
) -> tuple[float, float, str]:
    """Of rows that differ: the largest 1 - cosine and relative difference, and the latter's key."""
    turned, apart, row = 0.0, 0.0, mine[:1]
    for start in range(0, len(mine) if isinstance(left.spec, FeatureSpec) else 0, _BLOCK):
        part = slice(start, start + _BLOCK)
        old, new = left.gather(mine[part]), right.gather(theirs[part])
        turned = max(turned, float((1 - cosines(old, new)).max()))
        differences = relative_differences(old, new)
        worst = int(np.argmax(differences))
        if differences[worst] > apart:
            apart, row = float(differences[worst]), mine[part][worst : worst + 1]
    return turned, apart, left.keys[row].tobytes().hex()
