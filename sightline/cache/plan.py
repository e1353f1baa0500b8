"""What a run computes: its rows, in which order and shape, and what of it is on the disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError, model_validator

from sightline.cache.index import INDEX_BYTES
from sightline.cache.keys import KEY_BYTES, Keys, at, sort_order
from sightline.cache.parts import Failure, PartName, part_names
from sightline.cache.record import SetRecord, Spec
from sightline.cache.rows import Rows
from sightline.cache.shards import Numbers, format_of
from sightline.cache.verify import Soundness
from sightline.files.atomic_files import write_bytes
from sightline.files.output import PLAN, run_folder_of
from sightline.files.storage import require_of_file


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
        write_bytes(run_folder / PLAN, text.encode(), via=unfinished)

    @classmethod
    def load(cls, run_folder: Path) -> StoredPlan | None:
        """The plan of the run in this folder, or None if there is none or its file is damaged."""
        try:
            return cls.model_validate_json((run_folder / PLAN).read_bytes())
        except (OSError, ValidationError) as error:
            require_of_file(error, run_folder / PLAN)
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


class FoundSet(NamedTuple):
    """The set in a folder, as far as a run can use it.

    Attributes:
        sound: what can be used of it.
        record: that of the set; None if there is none that can be used.
        replaces: why a set that is there cannot be used; empty if it can.
    """

    sound: Soundness
    record: SetRecord | None = None
    replaces: tuple[str, ...] = ()


class Counts(NamedTuple):
    """Rows of a set that is being filled, failed ones included.

    Attributes:
        total: of the whole set.
        planned: that were missing and must be computed, done ones included.
        resumed: of these, those that an interrupted run or another worker had done at first.
        durable: of these, those that survive a kill now.
        copied: that were missing and need no model.
    """

    total: int = 0
    planned: int = 0
    resumed: int = 0
    durable: int = 0
    copied: int = 0


class Role(Enum):
    """Who plans, among those that may fill a set together."""

    ALONE = "alone"
    FIRST = "the first worker, whose plan the others join"
    JOINER = "a worker that joins others, so only their plan will do"
    LAST = "the last worker, which computes what is left and publishes"

    @property
    def reads_files(self) -> bool:
        """Whether it reads the files that rows are taken from, and uses no damaged one."""
        return self in (Role.ALONE, Role.LAST)


@dataclass(frozen=True, eq=False)
class Plan:
    """What a set needs to hold exactly its wanted rows.

    Attributes:
        folder: folder of the set.
        spec: what determines the content.
        found_set: the set that is there.
        keys: keys of the whole set, sorted: uint8 [n, 32].
        missing: which of them that set does not have: bool [n].
        reused: rows of these that are on the disk elsewhere, so that they need no model.
        resumed: how many of them are in parts of other plans.
        failed: rows of these parts that failed, with code, path and reason.
        batches: the rows that it computes, in their order.
        stored: what the plan's file says of it.
        damaged: parts of other plans that cannot be read.
    """

    folder: Path
    spec: Spec
    found_set: FoundSet
    keys: Keys
    missing: NDArray[np.bool_]
    reused: Rows
    resumed: int
    failed: dict[bytes, Failure]
    batches: Sequence[Batch] = field(repr=False)
    stored: StoredPlan
    damaged: tuple[PartName, ...] = ()

    @property
    def shape(self) -> Shape:
        """How rows are computed."""
        return self.stored.shape

    @property
    def takes_own(self) -> bool:
        """Whether it takes rows that the set itself dropped."""
        return any(file.folder == self.folder for file in self.reused.files)

    def bytes_to_write(self, to_do: int) -> tuple[int, int] | None:
        """Bytes of parts for the rows still ``to_do``, and of the new shards and the index.

        The size of a row that is not of numbers is that of the rows there are; None if there are
        none.
        """
        kind = format_of(self.spec)
        if isinstance(kind, Numbers):
            size = float(kind.row_bytes + KEY_BYTES)
        else:
            files = [file.record for file in self.reused.files]
            files += self.found_set.record.shards if self.found_set.record else ()
            if not files:
                return None
            size = sum(file.bytes for file in files) / sum(file.rows for file in files)
        new = self.stored.rows + len(self.reused)
        index = len(self.keys) * INDEX_BYTES if new else 0
        return round(to_do * size), round(new * size) + index

    @property
    def lines(self) -> list[str]:
        """What was damaged and is computed again, and what an interrupted run decided."""
        lines = [*self.found_set.sound.lines(), *map(repaired, self.damaged)]
        requested, kept = self.stored.asked.batch_size, self.shape.batch_size
        if requested != kept:
            lines.append(
                f"batches of {kept}, as the interrupted run had, not of {requested}; delete "
                f"{run_folder_of(self.folder)} to start over"
            )
        return lines

    @property
    def copied(self) -> int:
        """Rows that were missing and are on the disk elsewhere, but for those of other plans."""
        return len(self.reused) - self.resumed

    def rows_of(self, blocks: Iterable[int]) -> int:
        """Rows of these blocks."""
        return sum(self.stored.sizes[block] for block in blocks)

    def done(self, names: Iterable[PartName]) -> set[int]:
        """The blocks of which a part is among these."""
        plan, count = self.stored.name, len(self.stored.sizes)
        return {name.block for name in names if name.plan == plan and name.block < count}


def rows_done(folder: Path) -> tuple[int, int] | None:
    """How many rows of a set's plan are done, and how many it has; None if no run is at it."""
    run_folder = run_folder_of(folder)
    plan = StoredPlan.load(run_folder)
    if plan is None:
        return None
    done = {name.block for name in part_names(run_folder) if name.plan == plan.name}
    return sum(plan.sizes[block] for block in done if block < len(plan.sizes)), plan.rows


def repaired(name: PartName) -> str:
    """What is said of a damaged part."""
    return f"{name.file}: damaged part of an interrupted run; recomputing its rows"
