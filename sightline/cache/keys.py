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
    digests = bytearray()  # a list of them would take three times as much
    for text in texts:
        digests += key_of_text(text)
    return np.frombuffer(digests, dtype=np.uint8).reshape(-1, KEY_BYTES)


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
    if increasing(keys):  # without the copies that sorting takes
        return np.arange(len(keys))
    return np.argsort(_strings(keys), kind="stable")


def unique_sorted(keys: Keys) -> NDArray[np.int64]:
    """Positions of the distinct keys in sorted order; the first of equal keys: int64 [m]."""
    if increasing(keys):
        return np.arange(len(keys))
    order = sort_order(keys)
    strings = _strings(keys)[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = strings[1:] != strings[:-1]
    return order[first]


def increasing(keys: Keys) -> bool:
    """Whether ``keys`` are strictly increasing: sorted, without duplicates."""
    strings = _strings(keys)
    return bool((strings[1:] > strings[:-1]).all())


def find_keys(table: Keys, keys: Keys) -> NDArray[np.int64]:
    """Row of each key in the table, or -1: int64 [len(keys)].

    Args:
        table: uint8 [n, 32], strictly increasing as byte strings.
    """
    places = np.full(len(keys), -1, dtype=np.int64)
    if not len(table):
        return places
    strings = _strings(table)
    for start in range(0, len(keys), _FIND_ROWS):  # in chunks, to limit memory
        looked_up = _strings(keys[start : start + _FIND_ROWS])
        order = np.argsort(looked_up)  # three times as fast: neighbours are looked up in turn
        rows = np.searchsorted(strings, looked_up[order])
        rows[rows == len(strings)] = 0
        rows[strings[rows] != looked_up[order]] = -1
        places[start + order] = rows
    return places


def selected(places: NDArray[np.int64], mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which of ``places`` (-1: there is none) ``mask`` has: bool [len(places)]."""
    chosen = places >= 0
    chosen[chosen] = mask[places[chosen]]
    return chosen


def at(values: NDArray[_Number], order: NDArray[np.int64]) -> NDArray[_Number]:
    """``values[order]``, or ``values`` itself if that is all of them in their order."""
    if len(order) == len(values) and (order[1:] > order[:-1]).all():
        return values
    return values[order]


def picked(values: NDArray[_Number], mask: NDArray[np.bool_]) -> NDArray[_Number]:
    """``values[mask]``, or ``values`` itself if that is all: a copy may be gigabytes."""
    return values if mask.all() else values[mask]


def _strings(keys: Keys) -> NDArray[np.bytes_]:
    """Keys as byte strings of NumPy, which compares them whole: [n]."""
    return np.ascontiguousarray(keys).view(f"S{KEY_BYTES}").reshape(len(keys))


def raise_missing(path: Path, keys: Keys, rows: NDArray[np.int64], remedy: str) -> None:
    """Raise `MissingKeys` if any of ``rows`` is -1, with their number and the first few keys."""
    missing = np.flatnonzero(rows < 0)
    if not len(missing):
        return
    lost = list(dict.fromkeys(keys[i].tobytes() for i in missing))
    examples = ", ".join(key.hex()[:16] for key in lost[:3])
    further = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
    raise MissingKeys(
        f"{path}: {len(missing)} of {len(keys)} keys are missing: {examples}{further}; {remedy}"
    )
