"""The plan of a run: which rows are missing, in which order and shape they are computed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.cache.keys import KEY_BYTES, Keys, sort_order
from sightline.files import write_bytes


@dataclass(frozen=True)
class Batch:
    """Rows that are computed together: keys uint8 [≤ batch_size, 32], and their padded length."""

    number: int
    keys: Keys
    length: int


@dataclass(frozen=True)
class Plan:
    """What a run will compute.

    A row's value may depend on the shape of the batch it is computed in, so the shape is part of
    the plan: every batch is padded to ``batch_size`` rows, and holds rows of one ``length`` only.

    Attributes:
        fingerprint: of the rows to compute.
        keys: uint8 [n, 32], sorted by length, then by group where there are groups, then by key.
        lengths: int32 [n], padded length of each row (0 for images).
        batch_size: rows of every batch, padding included.
        shard_rows: rows of a shard.
    """

    fingerprint: str
    keys: Keys
    lengths: NDArray[np.int32]
    batch_size: int
    shard_rows: int

    @classmethod
    def make(
        cls,
        fingerprint: str,
        keys: Keys,
        lengths: NDArray[np.int32] | None,
        batch_size: int,
        shard_rows: int,
        groups: Keys | None = None,
    ) -> Plan:
        """Put distinct ``keys`` (uint8 [n, 32]) into the canonical order of computation.

        Args:
            groups: uint8 [n, 32]; rows of one group (the objects of one image) follow each other.
        """
        by_key = sort_order(keys)
        if groups is not None:
            by_key = by_key[sort_order(groups[by_key])]
        if lengths is None:
            lengths = np.zeros(len(keys), dtype=np.int32)
        order = by_key[np.argsort(lengths[by_key], kind="stable")]
        if (order[1:] > order[:-1]).all():  # the order they came in: no second copy of them
            return cls(fingerprint, keys, lengths, batch_size, shard_rows)
        return cls(fingerprint, keys[order], lengths[order], batch_size, shard_rows)

    def batches(self) -> list[Batch]:
        """The batches of the plan, in order; none mixes two lengths."""
        batches: list[Batch] = []
        edges = np.flatnonzero(np.diff(self.lengths)) + 1
        for first, end in pairwise([0, *edges.tolist(), len(self.keys)]):
            for start in range(first, end, self.batch_size):
                keys = self.keys[start : min(start + self.batch_size, end)]
                batches.append(Batch(len(batches), keys, int(self.lengths[start])))
        return batches

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the plan."""
        head = f"{self.fingerprint} {self.batch_size} {self.shard_rows} {len(self.keys)}\n"
        digest = hashlib.sha256(head.encode())
        for column in self._columns():
            digest.update(column)
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Write the plan: one line of JSON, then keys and lengths as raw little-endian numbers."""
        head = {
            "fingerprint": self.fingerprint,
            "rows": len(self.keys),
            "batch_size": self.batch_size,
            "shard_rows": self.shard_rows,
            "digest": self.digest,
        }
        write_bytes(path, json.dumps(head).encode() + b"\n", *self._columns())

    def _columns(self) -> tuple[memoryview, memoryview]:
        """Keys and lengths as they are stored, not copied."""
        lengths = self.lengths.astype("<i4", copy=False)
        return np.ascontiguousarray(self.keys).data, np.ascontiguousarray(lengths).data

    @classmethod
    def load(cls, path: Path) -> Plan | None:
        """The plan in ``path``, or None when there is none or it is damaged."""
        if not path.is_file():
            return None
        try:
            with path.open("rb") as file:
                head = json.loads(file.readline())
                if path.stat().st_size - file.tell() != head["rows"] * (KEY_BYTES + 4):
                    return None
                plan = cls(
                    head["fingerprint"],
                    np.fromfile(file, np.uint8, head["rows"] * KEY_BYTES).reshape(-1, KEY_BYTES),
                    np.fromfile(file, "<i4").astype(np.int32, copy=False),
                    head["batch_size"],
                    head["shard_rows"],
                )
        except (ValueError, KeyError, TypeError):
            return None
        return plan if plan.digest == head["digest"] else None
