"""Content keys: the SHA-256 of what a row describes, so that names and order never matter."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.cache.errors import MissingKeys

KEY_BYTES = 32

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
    """The order that sorts ``keys`` as byte strings: int64 [n]."""
    words = np.ascontiguousarray(keys).view(">u8")  # [n, 4], big-endian words sort as bytes do
    return np.lexsort((words[:, 3], words[:, 2], words[:, 1], words[:, 0]))


def unique_sorted(keys: Keys) -> NDArray[np.int64]:
    """Positions of the distinct keys, in sorted order; of equal keys the first: int64 [m]."""
    order = sort_order(keys)
    if len(order) < 2:
        return order
    in_order = keys[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = (in_order[1:] != in_order[:-1]).any(axis=1)
    return order[first]


def increasing(keys: Keys) -> bool:
    """Whether ``keys`` are in strictly increasing order: sorted, and none twice."""
    if len(keys) < 2:
        return True
    heads = prefixes(keys)
    if (heads[1:] > heads[:-1]).all():
        return True
    flat = [row.tobytes() for row in keys]  # equal prefixes: compare in full
    return all(a < b for a, b in pairwise(flat))


def prefixes(keys: Keys) -> NDArray[np.uint64]:
    """The first eight bytes of each key as one number that sorts as the bytes do: uint64 [n]."""
    return np.ascontiguousarray(keys[:, :8]).view(">u8").reshape(len(keys)).astype(np.uint64)


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
        wanted = prefixes(keys)
        found = np.searchsorted(self._prefixes, wanted).astype(np.int64)
        rows = np.full(len(keys), -1, dtype=np.int64)
        open_ = np.arange(len(keys))
        while len(open_):  # twice at most, unless somebody forged digests with equal prefixes
            inside = found[open_] < len(self.keys)
            open_ = open_[inside]
            open_ = open_[self._prefixes[found[open_]] == wanted[open_]]
            same = (self.keys[found[open_]] == keys[open_]).all(axis=1)
            rows[open_[same]] = found[open_[same]]
            open_ = open_[~same]
            found[open_] += 1
        return rows


def raise_missing(path: Path, keys: Keys, rows: NDArray[np.int64], remedy: str) -> None:
    """Raise `MissingKeys` when any of ``rows`` is -1, with their count and the first few keys."""
    missing = np.flatnonzero(rows < 0)
    if not len(missing):
        return
    named = ", ".join(keys[i].tobytes().hex()[:16] for i in missing[:3])
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    raise MissingKeys(
        f"{path}: {len(missing)} of {len(keys)} keys are missing: {named}{more}; {remedy}"
    )
