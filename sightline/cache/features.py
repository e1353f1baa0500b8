"""The reader of feature sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.cache.keys import Keys, as_keys, raise_missing
from sightline.cache.record import FeatureSpec, SetRecord
from sightline.cache.remote_sets import local_set
from sightline.cache.rows import Rows, require_rows
from sightline.cache.verify import snapshot, sound_rows
from sightline.errors import CacheError


class FeatureSet:
    """A published feature set, open for reading.

    Rows are numbered 0 … ``len(self) - 1`` in the order of their keys. Reading is safe from several
    threads, after ``fork``, and after pickling: the other process opens the folder itself, and
    refuses other rows, which a run may have published there meanwhile.
    """

    def __init__(
        self, path: Path, record: SetRecord[FeatureSpec], rows: Rows, failed: dict[bytes, str]
    ) -> None:
        self.path = path
        self.record = record
        self.failed = failed
        """Key → error code of failed rows."""
        self._rows = rows
        self.dtype = np.dtype(record.spec.dtype).newbyteorder("<")

    @classmethod
    def open(
        cls, path: Path | str, fingerprint: str | None = None, content_digest: str | None = None
    ) -> FeatureSet:
        """Open the feature set in folder ``path``.

        The first time, every byte is read and checked; what was sound is remembered in the run
        folder until a file changes.

        Args:
            path: folder that holds ``set.json``, or its URL: ``s3://``, ``gs://``, ``https://`` or
                ``hf://datasets/OWNER/NAME@REVISION/…``; see `sightline.cache.remote_sets`.
            fingerprint: reject a set with a different fingerprint.
            content_digest: reject a set with other rows, so that row numbers stay those of a set
                that was opened before.

        Raises:
            CacheError: no such set, a different schema version, a damaged or missing file, an
                invalid layout, or another fingerprint or content than requested.
        """
        path = local_set(path)

        def read(record: SetRecord[FeatureSpec]) -> FeatureSet:
            if fingerprint is not None and record.fingerprint != fingerprint:
                raise CacheError(
                    f"{path}: fingerprint {record.fingerprint[:16]}, expected {fingerprint[:16]}: "
                    f"its rows come from {record.spec.encoder.name} "
                    f"({record.spec.encoder.source}) with different weights, preprocessing or "
                    "precision; rerun its stage"
                )
            if content_digest is not None and record.content_digest != content_digest:
                raise CacheError(
                    f"{path}: holds other rows (content {record.content_digest[:16]}) than when it "
                    f"was opened ({content_digest[:16]}): a run has published since; open it again"
                )
            rows, failed = sound_rows(path, record)
            for number in range(len(record.shards)):
                rows.shard(number)  # one clear error now, not in the middle of a training
            return cls(path, record, rows, failed)

        return snapshot(path, read, "features")

    @property
    def dim(self) -> int:
        """Length of a row."""
        return self.record.spec.dim

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over everything that decides the value of a row."""
        return self.record.fingerprint

    @property
    def keys(self) -> Keys:
        """Keys of all rows, sorted: uint8 [len(self), 32]."""
        return self._rows.keys

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, keys: Keys | Sequence[bytes]) -> NDArray[np.int64]:
        """Row of each key, or -1 if the set lacks it: int64 [n]."""
        return self._rows.find(as_keys(keys))

    def rows(self, keys: Keys | Sequence[bytes]) -> NDArray[np.int64]:
        """Row of each key: int64 [n].

        Raises:
            MissingKeys: the set lacks some of them; reports how many, examples, and how many of
                them failed during extraction.
        """
        keys = as_keys(keys)
        rows = self._rows.find(keys)
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
            IndexError: a row number that the set does not have; -1 says that `find` found none.
        """
        require_rows(self.path, rows)
        return self._rows.gather(rows)

    def take(self, keys: Keys | Sequence[bytes]) -> NDArray:
        """`rows` and `gather` in one call: [len(keys), dim]."""
        return self.gather(self.rows(keys))

    def __reduce__(self) -> tuple:
        return FeatureSet.open, (self.path, self.fingerprint, self.record.content_digest)

    def __repr__(self) -> str:
        return f"FeatureSet({str(self.path)!r}, {len(self)} × {self.dim} {self.dtype.name})"
