"""In which order and shape a run computes rows, and what of it is on the disk."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError, model_validator

from sightline.atomic_files import write_bytes
from sightline.cache.keys import Keys, at, sort_order

FILE = "plan.json"


@dataclass(frozen=True)
class Batch:
    """Rows that are computed together.

    Attributes:
        block: its block in the plan: the unit of durability and of work sharing.
        keys: uint8 [≤ batch_size, 32].
        length: length to which the rows are padded.
    """

    block: int
    keys: Keys
    length: int


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Shape(_Strict):
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


class StoredPlan(_Strict):
    """The file of a plan, by which runs that resume or join know that theirs is the same.

    Attributes:
        fingerprint: fingerprint of the rows to compute.
        rows: how many there are.
        shape: how they are computed.
        asked: the shape that was requested; a resumed run keeps that of the interrupted one.
        parts: names of parts of other plans that it takes rows from, so that it omits these.
        blocks: rows of a block, and how many such blocks follow each other, in order.
        digest: SHA-256 (hex) of the rows in their order, and of the shape.
    """

    fingerprint: str
    rows: int
    shape: Shape
    asked: Shape
    parts: tuple[str, ...]
    blocks: tuple[tuple[PositiveInt, PositiveInt], ...]
    digest: str

    @model_validator(mode="after")
    def _blocks_have_its_rows(self) -> Self:
        if sum(rows * count for rows, count in self.blocks) != self.rows:
            raise ValueError(f"its blocks have other than {self.rows} rows")
        return self

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each block, in order."""
        return tuple(rows for rows, count in self.blocks for _ in range(count))

    @property
    def name(self) -> str:
        """How its parts are named."""
        return self.digest[:16]

    def save(self, run_folder: Path, unfinished: Path | None = None) -> None:
        """Write the plan's file, made in the folder ``unfinished``."""
        text = self.model_dump_json(indent=1) + "\n"
        write_bytes(run_folder / FILE, text.encode(), via=unfinished)

    @classmethod
    def load(cls, run_folder: Path) -> StoredPlan | None:
        """The plan of the run in this folder, or None if there is none or its file is damaged."""
        try:
            return cls.model_validate_json((run_folder / FILE).read_bytes())
        except (OSError, ValidationError):
            return None

    def differences(self, resumed: StoredPlan) -> list[str]:
        """The differing settings of two runs, one ``name: other → self`` line each."""
        mine, theirs = (
            {"fingerprint": plan.fingerprint, "rows": plan.rows, **plan.asked.model_dump()}
            for plan in (self, resumed)
        )
        lines = [
            f"{name}: {theirs[name]} → {mine[name]}" for name in mine if mine[name] != theirs[name]
        ]
        return lines or ["the same number of rows, but different ones"]


def ordered(
    fingerprint: str,
    keys: Keys,
    lengths: NDArray[np.int32] | None,
    shape: Shape,
    groups: Keys | None = None,
) -> tuple[list[Batch], str]:
    """The batches of distinct ``keys`` (uint8 [n, 32]) in the order in which they are computed.

    That is by length, then by group if there are groups, then by key. A row's value may depend on
    the shape of its batch, so the shape is part of the plan: every batch is padded to
    ``batch_size`` rows and holds rows of only one ``length``.

    Args:
        lengths: int32 [n], padded length of each row; None: all are of one shape.
        groups: uint8 [n, 32]; rows of one group (the objects of one image) are consecutive.

    Returns:
        the batches, and the SHA-256 (hex) of rows, lengths, fingerprint and shape.
    """
    by_key = sort_order(keys)
    if groups is not None:
        by_key = by_key[sort_order(groups[by_key])]
    if lengths is None:
        lengths = np.zeros(len(keys), dtype=np.int32)
    order = by_key[np.argsort(lengths[by_key], kind="stable")]
    keys, lengths = at(keys, order), at(lengths, order)
    head = {"fingerprint": fingerprint, "rows": len(keys), **shape.model_dump()}
    digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    digest.update(np.ascontiguousarray(keys).data)
    digest.update(lengths.astype("<i4", copy=False).data)
    return _batches(keys, lengths, shape), digest.hexdigest()


def _batches(keys: Keys, lengths: NDArray[np.int32], shape: Shape) -> list[Batch]:
    batches: list[Batch] = []
    block = rows = 0
    edges = np.flatnonzero(np.diff(lengths)) + 1
    for first, end in pairwise([0, *edges.tolist(), len(keys)]):
        for start in range(first, end, shape.batch_size):
            part = keys[start : min(start + shape.batch_size, end)]
            batches.append(Batch(block, part, int(lengths[start])))
            rows += len(part)
            if rows >= shape.block_rows:
                block, rows = block + 1, 0
    return batches
