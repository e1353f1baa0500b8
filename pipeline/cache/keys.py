"""Content keys: the SHA-256 of what a row describes, so that names and order never matter."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.cache.errors import MissingKeys

KEY_BYTES = 32
_FIND_ROWS = 1 << 18

_Number = TypeVar("_Number", bound=np.generic)

Keys = NDArray[np.uint8]
"""uint8 [n, 32]: one raw SHA-256 digest a row."""


def key_of_bytes(data: bytes) -> bytes:
    """Key of an image file's bytes: 32 raw bytes."""
    return hashlib.sha256(data).digest()


def key_of_text(text: str) -> bytes:
    """Key of a text: the SHA-256 of its UTF-8 form, 32 raw bytes."""
    return hashlib.sha256(text.encode("utf-8")).digest()


def key_of_file(path: Path | str) -> bytes:
    """Key of a file's bytes, read in pieces: 32 raw bytes."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def keys_of_texts(texts: Iterable[str]) -> Keys:
    """Keys of several texts: uint8 [n, 32], in the order given."""
    return as_keys([key_of_text(text) for text in texts])


def as_keys(keys: Keys | Sequence[bytes]) -> Keys:
    """``keys`` as uint8 [n, 32], whether they come as an array or as a sequence of 32 raw bytes.

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
    """The order that sorts ``keys`` as byte strings, equal ones as they come: int64 [n]."""
    heads = prefixes(keys)
    order = np.argsort(heads, kind="stable")
    heads = heads[order]
    twins = heads[1:] == heads[:-1]
    if not twins.any():  # digests differ in eight bytes, unless one stands there twice
        return order
    tied = np.zeros(len(order), dtype=bool)
    tied[1:] |= twins
    tied[:-1] |= twins
    rows = order[tied]
    words = _words(keys[rows])
    order[tied] = rows[np.lexsort((words[:, 3], words[:, 2], words[:, 1], words[:, 0]))]
    return order


def unique_sorted(keys: Keys) -> NDArray[np.int64]:
    """Positions of the distinct keys, in sorted order; of equal keys the first: int64 [m]."""
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
    """Whether ``keys`` are in strictly increasing order: sorted, and none twice."""
    heads = prefixes(keys)
    if (heads[1:] < heads[:-1]).any():
        return False
    tied = np.flatnonzero(heads[1:] == heads[:-1])
    before, after = _words(keys[tied]), _words(keys[tied + 1])
    word = (before != after).argmax(axis=1)  # the first that differs, or 0 where none does
    row = np.arange(len(tied))
    return bool((before[row, word] < after[row, word]).all())


def prefixes(keys: Keys) -> NDArray[np.uint64]:
    """The first eight bytes of each key as one number that sorts as the bytes do: uint64 [n]."""
    return np.ascontiguousarray(keys[:, :8]).view(">u8").reshape(len(keys)).astype(np.uint64)


def picked(values: NDArray[_Number], mask: NDArray[np.bool_]) -> NDArray[_Number]:
    """``values[mask]``, or ``values`` themselves where that is all: a copy may be gigabytes."""
    return values if mask.all() else values[mask]


def _words(keys: Keys) -> NDArray[np.uint64]:
    """Keys as big-endian numbers, which sort as the bytes do: [n, 4]."""
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
        for start in range(0, len(keys), _FIND_ROWS):  # in parts, for the sake of the memory
            part = slice(start, start + _FIND_ROWS)
            self._find(keys[part], rows[part])
        return rows

    def _find(self, keys: Keys, rows: NDArray[np.int64]) -> None:
        """Put the row of each key into ``rows``, which are all -1."""
        wanted = prefixes(keys)
        found = np.searchsorted(self._prefixes, wanted).astype(np.int64)
        open_ = np.arange(len(keys))
        while len(open_):  # twice at most, unless somebody forged digests with equal prefixes
            inside = found[open_] < len(self.keys)
            open_ = open_[inside]
            open_ = open_[self._prefixes[found[open_]] == wanted[open_]]
            same = (self.keys[found[open_]] == keys[open_]).all(axis=1)
            rows[open_[same]] = found[open_[same]]
            open_ = open_[~same]
            found[open_] += 1


def raise_missing(path: Path, keys: Keys, rows: NDArray[np.int64], remedy: str) -> None:
    """Raise `MissingKeys` when any of ``rows`` is -1, with their count and the first few keys."""
    missing = np.flatnonzero(rows < 0)
    if not len(missing):
        return
    lost = list(dict.fromkeys(keys[i].tobytes() for i in missing))
    named = ", ".join(key.hex()[:16] for key in lost[:3])
    more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
    raise MissingKeys(
        f"{path}: {len(missing)} of {len(keys)} keys are missing: {named}{more}; {remedy}"
    )
