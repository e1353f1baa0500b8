"""The plan of a run: the missing rows, and the order and shape in which to compute them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.cache.keys import KEY_BYTES, Keys, sort_order
from sightline.files import write_bytes


@dataclass(frozen=True)
class Batch:
    """Rows that are computed together.

    Attributes:
        number: position of the batch in its plan.
        block: its block in the plan: the unit of durability and of work sharing.
        keys: uint8 [≤ batch_size, 32].
        length: length to which the rows are padded.
    """

    number: int
    block: int
    keys: Keys
    length: int


@dataclass(frozen=True)
class Shape:
    """How rows are computed, as far as it may affect their last bits or the files.

    Attributes:
        batch_size: rows per batch, including padding.
        block_rows: rows per block, which ends with the batch that fills it.
        shard_rows: rows per shard.
        threads: CPU threads of a worker; BERT rows differ between one and two threads.
        code: versions of Sightline and PyTorch, and how the model is run (`compiled`).
    """

    batch_size: int
    block_rows: int
    shard_rows: int
    threads: int = 1
    code: str = ""


@dataclass(frozen=True)
class Plan:
    """What a run computes.

    A row's value may depend on the shape of its batch, so the shape is part of the plan: every
    batch is padded to ``batch_size`` rows and holds rows of only one ``length``.

    Attributes:
        fingerprint: fingerprint of the rows to compute.
        keys: uint8 [n, 32], sorted by length, then by group if there are groups, then by key.
        lengths: int32 [n], padded length of each row (0 for images).
        shape: how they are computed.
        asked: the shape that was requested; a resumed run keeps that of the interrupted one.
    """

    fingerprint: str
    keys: Keys
    lengths: NDArray[np.int32]
    shape: Shape
    asked: Shape

    @classmethod
    def make(
        cls,
        fingerprint: str,
        keys: Keys,
        lengths: NDArray[np.int32] | None,
        shape: Shape,
        groups: Keys | None = None,
        asked: Shape | None = None,
    ) -> Plan:
        """Put distinct ``keys`` (uint8 [n, 32]) into the canonical order of computation.

        Args:
            groups: uint8 [n, 32]; rows of one group (the objects of one image) are consecutive.
            asked: the requested shape, if different.
        """
        by_key = sort_order(keys)
        if groups is not None:
            by_key = by_key[sort_order(groups[by_key])]
        if lengths is None:
            lengths = np.zeros(len(keys), dtype=np.int32)
        order = by_key[np.argsort(lengths[by_key], kind="stable")]
        if (order[1:] > order[:-1]).all():  # already in order: avoid a copy
            return cls(fingerprint, keys, lengths, shape, asked or shape)
        return cls(fingerprint, keys[order], lengths[order], shape, asked or shape)

    def batches(self) -> list[Batch]:
        """The batches of the plan, in order; each has rows of a single length."""
        size = self.shape.batch_size
        batches: list[Batch] = []
        block = rows = 0
        edges = np.flatnonzero(np.diff(self.lengths)) + 1
        for first, end in pairwise([0, *edges.tolist(), len(self.keys)]):
            for start in range(first, end, size):
                keys = self.keys[start : min(start + size, end)]
                batches.append(Batch(len(batches), block, keys, int(self.lengths[start])))
                rows += len(keys)
                if rows >= self.shape.block_rows:
                    block, rows = block + 1, 0
        return batches

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the plan."""
        digest = hashlib.sha256(json.dumps(self._head, sort_keys=True).encode())
        for column in self._columns():
            digest.update(column)
        return digest.hexdigest()

    def differences(self, other: Plan) -> list[str]:
        """The differing settings of two runs, one ``name: other → self`` line each."""
        mine, theirs = ({**plan._head, **asdict(plan.asked)} for plan in (self, other))
        lines = [
            f"{name}: {theirs[name]} → {mine[name]}" for name in mine if mine[name] != theirs[name]
        ]
        return lines or ["the same number of rows, but different ones"]

    def save(self, path: Path) -> None:
        """Write the plan: one line of JSON, then keys and lengths as raw little-endian numbers."""
        head = {**self._head, "asked": asdict(self.asked), "digest": self.digest}
        write_bytes(path, json.dumps(head).encode() + b"\n", *self._columns())

    @property
    def _head(self) -> dict[str, str | int]:
        return {"fingerprint": self.fingerprint, "rows": len(self.keys), **asdict(self.shape)}

    def _columns(self) -> tuple[memoryview, memoryview]:
        """Keys and lengths in stored form, not copied."""
        lengths = self.lengths.astype("<i4", copy=False)
        return np.ascontiguousarray(self.keys).data, np.ascontiguousarray(lengths).data

    @classmethod
    def load(cls, path: Path) -> Plan | None:
        """The plan in ``path``, or None if it is missing or damaged."""
        if not path.is_file():
            return None
        try:
            with path.open("rb") as file:
                head = json.loads(file.readline())
                if path.stat().st_size - file.tell() != head["rows"] * (KEY_BYTES + 4):
                    return None
                digest, fingerprint, rows = (head.pop(n) for n in ("digest", "fingerprint", "rows"))
                keys = np.fromfile(file, np.uint8, rows * KEY_BYTES).reshape(-1, KEY_BYTES)
                lengths = np.fromfile(file, "<i4").astype(np.int32, copy=False)
                asked = Shape(**head.pop("asked"))
                plan = cls(fingerprint, keys, lengths, Shape(**head), asked)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        return plan if plan.digest == digest else None


def planned_rows(path: Path) -> int | None:
    """How many rows the plan in ``path`` has; None if it is missing or damaged."""
    try:
        with path.open("rb") as file:
            return int(json.loads(file.readline())["rows"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
