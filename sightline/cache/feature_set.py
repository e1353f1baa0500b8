"""FeatureSet: cached rows looked up by content key, read zero-copy through memory maps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.cache.commit import read_features
from sightline.cache.errors import CacheError
from sightline.cache.index import Index, read_index
from sightline.cache.keys import Keys, KeyTable, as_keys, raise_missing
from sightline.cache.mapped_rows import MappedRows
from sightline.cache.record import FeatureSetRecord


class FeatureSet:
    """A published feature set, open for reading.

    Rows are numbered 0 … ``len(self) - 1`` in the order of their keys. Reading is safe from several
    threads, after ``fork``, and after pickling (the other process opens the folder itself).
    """

    def __init__(self, path: Path, record: FeatureSetRecord, index: Index) -> None:
        self.path = path
        self.record = record
        self.index = index
        self._table = KeyTable(index.keys)
        self.dtype = np.dtype(record.spec.dtype).newbyteorder("<")
        self._mapped = MappedRows(path, record.spec, record.shards)

    @classmethod
    def open(
        cls, path: Path | str, fingerprint: str | None = None, *, verified: bool = False
    ) -> FeatureSet:
        """Open the feature set in folder ``path``.

        Args:
            path: folder that holds ``set.json``.
            fingerprint: reject a set with a different fingerprint.
            verified: read every byte first and reject any damage (`verify`), instead of checking
                only digest, sizes and layout.

        Raises:
            CacheError: no such set, a different schema version, a damaged or missing file, an
                invalid layout, or a fingerprint other than the one requested.
        """
        path = Path(path)
        record = read_features(path)
        if fingerprint is not None and record.fingerprint != fingerprint:
            raise CacheError(
                f"{path}: fingerprint {record.fingerprint[:16]}, expected {fingerprint[:16]}: its "
                f"rows come from {record.spec.encoder.name} ({record.spec.encoder.source}) with "
                "different weights, preprocessing or precision; rerun its stage"
            )
        if verified:
            from sightline.cache.verify import verify

            faults = verify(path)
            if faults:
                more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
                raise CacheError(f"{faults[0]}{more}; rerun its stage, or pull it again")
        return cls(path, record, read_index(path, record))

    @property
    def dim(self) -> int:
        """Length of a row."""
        return self.record.spec.dim

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over everything that decides the value of a row."""
        return self.record.fingerprint

    @property
    def failed(self) -> dict[bytes, str]:
        """Key → error code of failed rows."""
        return self.index.failed

    @property
    def keys(self) -> Keys:
        """Keys of all rows, sorted: uint8 [len(self), 32]."""
        return self._table.keys

    def __len__(self) -> int:
        return len(self._table.keys)

    def find(self, keys: Keys | Sequence[bytes]) -> NDArray[np.int64]:
        """Row of each key, or -1 if the set lacks it: int64 [n]."""
        return self._table.find(as_keys(keys))

    def rows(self, keys: Keys | Sequence[bytes]) -> NDArray[np.int64]:
        """Row of each key: int64 [n].

        Raises:
            MissingKeys: the set lacks some of them; reports how many, examples, and how many of
                them failed during extraction.
        """
        keys = as_keys(keys)
        rows = self._table.find(keys)
        if (rows < 0).any():
            missing = {keys[i].tobytes() for i in np.flatnonzero(rows < 0)}
            failed = missing & self.failed.keys()
            reason = "rerun its stage over this data set"
            if failed:
                code = self.failed[min(failed)]
                reason += f" ({len(failed)} of them failed before, such as {code})"
            raise_missing(self.path, keys, rows, reason)
        return rows

    def gather(self, rows: NDArray[np.int64]) -> NDArray:
        """Feature rows in the order requested: float16 or float32 [len(rows), dim], a new array.

        Values are the raw encoder output, not normalised.

        Raises:
            IndexError: a row number that the set does not have.
        """
        return self._mapped.read(self.index.shards[rows], self.index.rows[rows])

    def take(self, keys: Keys | Sequence[bytes]) -> NDArray:
        """`rows` and `gather` in one call: [len(keys), dim]."""
        return self.gather(self.rows(keys))

    def __reduce__(self) -> tuple:
        return FeatureSet.open, (self.path, self.fingerprint)

    def __repr__(self) -> str:
        return f"FeatureSet({str(self.path)!r}, {len(self)} × {self.dim} {self.dtype.name})"
