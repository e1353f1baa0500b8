"""Content keys: the SHA-256 of what a row describes, independent of names and order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sightline.errors import MissingKeys

KEY_BYTES = 32
_FIND_ROWS = 1 << 18

_Number = TypeVar("_Number", bound=np.generic)

Keys = NDArray[np.uint8]
"""uint8 [n, 32]: one raw SHA-256 digest per row."""


def key_of_bytes(data: bytes) -> bytes:
    """Key of an image file's bytes: 32 raw bytes."""
    return hashlib.sha256(data).digest()


def key_of_text(text: str) -> bytes:
    """Key of a text: the SHA-256 of its UTF-8 encoding, 32 raw bytes."""
    return hashlib.sha256(text.encode("utf-8")).digest()


def key_of_file(path: Path | str) -> bytes:
    """Key of a file's bytes, read in chunks: 32 raw bytes."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def keys_of_texts(texts: Iterable[str]) -> Keys:
    """Keys of several texts: uint8 [n, 32], in the order given."""
    return as_keys([key_of_text(text) for text in texts])


def as_keys(keys: Keys | Sequence[bytes]) -> Keys:
    """``keys`` as uint8 [n, 32], from an array or a sequence of 32 raw bytes each.

    Raises:
        ValueError: a key is not 32 bytes long.
    """
    if isinstance(keys, np.ndarray):
        if keys.dtype != np.uint8 or keys.ndim != 2 or keys.shape[1] != KEY_BYTES:
            raise ValueError(f"keys: found {keys.dtype} {keys.shape}, expected uint8 [n, 32]")
        return keys
    if any(len(key) != KEY_BYTES for key in keys):
        raise ValueError("keys: every key must be 32 raw bytes (a SHA-256 digest)")
    return np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), KEY_BYTES)


def sort_order(keys: Keys) -> NDArray[np.int64]:
    """The order that sorts ``keys`` as byte strings, stable for equal keys: int64 [n]."""
    heads = prefixes(keys)
    order = np.argsort(heads, kind="stable")
    heads = heads[order]
    twins = heads[1:] == heads[:-1]
    if not twins.any():  # distinct digests differ in their first eight bytes
        return order
    tied = np.zeros(len(order), dtype=bool)
    tied[1:] |= twins
    tied[:-1] |= twins
    rows = order[tied]
    words = _words(keys[rows])
    order[tied] = rows[np.lexsort((words[:, 3], words[:, 2], words[:, 1], words[:, 0]))]
    return order


def unique_sorted(keys: Keys) -> NDArray[np.int64]:
    """Positions of the distinct keys in sorted order; the first of equal keys: int64 [m]."""
    order = sort_order(keys)
    if len(order) < 2:
        return order
    heads = prefixes(keys)[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = heads[1:] != heads[:-1]
    tied = np.flatnonzero(~first)
    first[tied] = (keys[order[tied]] != keys[order[tied - 1]]).any(axis=1)
    return order[first]


def increasing(keys: Keys) -> bool:
    """Whether ``keys`` are strictly increasing: sorted, without duplicates."""
    starts = range(0, len(keys), _FIND_ROWS)  # in chunks, to limit memory
    return all(_increasing(keys[start : start + _FIND_ROWS + 1]) for start in starts)


def _increasing(keys: Keys) -> bool:
    heads = prefixes(keys)
    if (heads[1:] < heads[:-1]).any():
        return False
    tied = np.flatnonzero(heads[1:] == heads[:-1])
    before, after = _words(keys[tied]), _words(keys[tied + 1])
    word = (before != after).argmax(axis=1)  # the first that differs, or 0 if none does
    row = np.arange(len(tied))
    return bool((before[row, word] < after[row, word]).all())


def prefixes(keys: Keys) -> NDArray[np.uint64]:
    """The first eight bytes of each key as a number with the same sort order: uint64 [n]."""
    return np.ascontiguousarray(keys[:, :8]).view(">u8").reshape(len(keys)).astype(np.uint64)


def picked(values: NDArray[_Number], mask: NDArray[np.bool_]) -> NDArray[_Number]:
    """``values[mask]``, or ``values`` itself if that is all: a copy may be gigabytes."""
    return values if mask.all() else values[mask]


def _words(keys: Keys) -> NDArray[np.uint64]:
    """Keys as big-endian numbers, which sort like the bytes: [n, 4]."""
    return np.ascontiguousarray(keys).view(">u8").reshape(len(keys), 4)


class KeyTable:
    """Finds keys in a sorted table, by binary search on their first eight bytes.

    Args:
        keys: uint8 [n, 32], strictly increasing as byte strings.
    """

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self._prefixes = prefixes(keys)

    def find(self, keys: Keys) -> NDArray[np.int64]:
        """Row of each key in the table, or -1: int64 [len(keys)]."""
        rows = np.full(len(keys), -1, dtype=np.int64)
        for start in range(0, len(keys), _FIND_ROWS):  # in chunks, to limit memory
            part = slice(start, start + _FIND_ROWS)
            self._find(keys[part], rows[part])
        return rows

    def _find(self, keys: Keys, rows: NDArray[np.int64]) -> None:
        """Write the row of each key into ``rows``, initially all -1."""
        wanted = prefixes(keys)
        found = np.searchsorted(self._prefixes, wanted).astype(np.int64)
        open_ = np.arange(len(keys))
        while len(open_):  # at most twice, unless digests were forged with equal prefixes
            inside = found[open_] < len(self.keys)
            open_ = open_[inside]
            open_ = open_[self._prefixes[found[open_]] == wanted[open_]]
            same = (self.keys[found[open_]] == keys[open_]).all(axis=1)
            rows[open_[same]] = found[open_[same]]
            open_ = open_[~same]
            found[open_] += 1


def raise_missing(path: Path, keys: Keys, rows: NDArray[np.int64], remedy: str) -> None:
    """Raise `MissingKeys` if any of ``rows`` is -1, with their number and the first few keys."""
    missing = np.flatnonzero(rows < 0)
    if not len(missing):
        return
    lost = list(dict.fromkeys(keys[i].tobytes() for i in missing))
    named = ", ".join(key.hex()[:16] for key in lost[:3])
    more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
    raise MissingKeys(
        f"{path}: {len(missing)} of {len(keys)} keys are missing: {named}{more}; {remedy}"
    )
