"""Check one shard: its bytes, layout, values and keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from sightline.cache.errors import CacheError
from sightline.cache.index import Index
from sightline.cache.keys import increasing
from sightline.cache.record import FeatureSetRecord, FileRecord, ShardRecord
from sightline.cache.shard import check_file, map_features, map_keys

_READ_BYTES = 1 << 20  # small enough to stay in the CPU cache between two passes
_INFINITY = {2: (np.uint16, 0x7C00), 4: (np.uint32, 0x7F800000)}
"""Item size → integer type of a float's bits, and the bits of infinity; NaN is above it."""

Progress = Callable[[int], None]
"""Receives the number of bytes checked, from any thread."""


def shard_faults(
    folder: Path,
    record: FeatureSetRecord,
    shard: ShardRecord,
    here: tuple[Index, NDArray[np.int64]] | None,
    progress: Progress,
) -> list[str]:
    """Faults of one shard; ``here`` is the index and its entries for this shard."""
    path = folder / shard.name
    in_use = f", {len(here[1]):,} of them in use" if here is not None else ""
    rows_at_stake = f"rows 0-{shard.rows - 1:,} ({shard.rows:,}{in_use})"
    dtype = np.dtype(record.spec.dtype).newbyteorder("<")
    try:
        features = map_features(folder, shard, record.spec.dim, dtype)
        keys = map_keys(folder, shard)
    except CacheError as error:
        return [f"{file_fault(folder, shard, progress) or error}; {rows_at_stake} are lost"]
    finite = _Finite(features)
    fault = file_fault(folder, shard, progress, finite)
    faults: list[str] = []
    if fault is not None:
        faults.append(f"{fault}; {_what_changed(shard, keys, features)}; {rows_at_stake} in doubt")
    bad = finite.bad_rows()
    if len(bad):
        faults.append(f"{path}: {len(bad):,} rows hold NaN or infinity: {_some(bad)}")
    if here is not None:
        index, entries = here
        rows = index.rows[entries]
        wrong = np.sort(rows[(keys[rows] != index.keys[entries]).any(axis=1)])
        if len(wrong):
            faults.append(f"{path}: {len(wrong):,} keys are not the index's: {_some(wrong)}")
    if not faults and not increasing(keys):
        faults.append(f"{path}: its keys are not sorted, or one appears twice")
    return faults


def file_fault(
    folder: Path,
    file: FileRecord,
    progress: Progress = lambda _: None,
    look: Callable[[int, memoryview], None] = lambda start, block: None,
) -> str | None:
    """Check a file's size and BLAKE3; ``look`` receives each block and its offset."""
    try:
        path = check_file(folder, file)
    except CacheError as error:
        progress(file.bytes)
        return str(error)
    digest = blake3()
    try:
        with path.open("rb", buffering=0) as handle:
            buffer, start = memoryview(bytearray(_READ_BYTES)), 0
            while count := handle.readinto(buffer):
                block = buffer[:count]
                digest.update(block)
                look(start, block)
                start += count
                progress(count)
    except OSError as error:
        return f"{path}: cannot be read ({error.strerror})"
    if digest.hexdigest() != file.blake3:
        found = digest.hexdigest()[:16]
        return f"{path}: BLAKE3 {found}, expected {file.blake3[:16]}: damaged"
    return None


class _Finite:
    """Finds NaN and infinity in the blocks of a shard's file, so that it is read only once.

    Tests the bits, which is several times as fast as testing the values.
    """

    def __init__(self, features: np.memmap) -> None:
        self._start, self._stop = features.offset, features.offset + features.nbytes
        self._dim = features.shape[1]
        self._kind, self._infinity = _INFINITY[features.dtype.itemsize]
        self._magnitude = self._kind(np.iinfo(self._kind).max >> 1)
        self._bad: list[NDArray[np.int64]] = []

    def __call__(self, start: int, block: memoryview) -> None:
        size = np.dtype(self._kind).itemsize
        first = max(start, self._start)
        count = (min(start + len(block), self._stop) - first) // size
        if count <= 0:
            return
        bits = np.frombuffer(block, self._kind, count, first - start) & self._magnitude
        if bits.max() >= self._infinity:
            numbers = (first - self._start) // size + np.flatnonzero(bits >= self._infinity)
            self._bad.append(np.unique(numbers // self._dim))

    def bad_rows(self) -> NDArray[np.int64]:
        """Non-finite rows among the blocks seen so far."""
        return np.unique(np.concatenate(self._bad)) if self._bad else np.empty(0, dtype=np.int64)


def _what_changed(shard: ShardRecord, keys: NDArray[np.uint8], features: NDArray) -> str:
    """Locate the damage by a shard's name, which is a digest of its keys and rows."""
    content = blake3(np.ascontiguousarray(keys).data)
    content.update(np.ascontiguousarray(features).view(np.uint8).data)
    if shard.name == f"shard-{content.hexdigest()[:32]}.h5":
        return "its keys and rows are intact, the bytes around them changed"
    return "its keys or rows changed"


def _some(rows: NDArray) -> str:
    shown = ", ".join(str(row) for row in rows[:5])
    return f"row{'s' if len(rows) > 1 else ''} {shown}{', …' if len(rows) > 5 else ''}"
