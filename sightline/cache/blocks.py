"""The blocks of a plan: which are done, which this process takes, and how it makes them durable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sightline.cache.keys import Keys
from sightline.cache.parts import Failure, Part, part_names, read_part, write_part
from sightline.cache.plan import Batch, StoredPlan
from sightline.cache.record import FeatureSpec
from sightline.cache.set_plan import Plan
from sightline.cache.shards import Numbers, format_of
from sightline.errors import CacheError
from sightline.lock import WriterLock
from sightline.output import run_folder_of

NOT_FINITE = "not_finite"
"""The code of a row that cannot be stored, as it or some of it is no finite number."""
UNDERFLOW = "underflow"
"""The code of a row whose numbers are too small to be stored."""
_MOST_LOST = 0.01
"""Of a row's length; float16 has about 0.0003 where its numbers are not too small."""

_LOOKING = 100
"""A long look at the names of parts may take one part in so many of the time."""

_SHORT = 0.05
"""Seconds of a look that is made at every claim: it costs less than a block computed twice."""


def rows_done(folder: Path) -> tuple[int, int] | None:
    """How many rows of a set's plan are done, and how many it has; None if no run is at it."""
    run_folder = run_folder_of(folder)
    plan = StoredPlan.load(run_folder)
    if plan is None:
        return None
    done = {name.block for name in part_names(run_folder) if name.plan == plan.name}
    return sum(plan.sizes[block] for block in done if block < len(plan.sizes)), plan.rows


class Counts(NamedTuple):
    """Rows of a set that is being filled, failed ones included.

    Attributes:
        wanted: of the whole set.
        planned: that were missing and must be computed, done ones included.
        resumed: of these, those that an interrupted run or another worker had done at first.
        durable: of these, those that survive a kill now.
        copied: that were missing and need no model.
    """

    wanted: int = 0
    planned: int = 0
    resumed: int = 0
    durable: int = 0
    copied: int = 0


@dataclass
class _Block:
    """A block of which some rows are there.

    Attributes:
        rows: how many, failed ones included.
    """

    keys: list[Keys] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    failed: dict[bytes, Failure] = field(default_factory=dict)
    rows: int = 0


class Blocks:
    """Claims, fills and writes the blocks of a plan.

    A block is done when its part is in the run folder. It is written once its last row is there, so
    a kill or a stop loses at most one.

    Args:
        plan: of the set.
        run_folder: of the set.
        done: blocks that are done.
        unfinished: folder to make parts in (`Output.unfinished`).
        lock: that this process shares with other workers; None: it is alone.
        worker: its number, from 0, and how many there are; None: the only one.

    Attributes:
        written: the parts that this process has written.
        durable_rows: rows of the plan that survive a kill.
    """

    def __init__(
        self,
        plan: Plan,
        run_folder: Path,
        done: set[int],
        unfinished: Path | None = None,
        lock: WriterLock | None = None,
        worker: tuple[int, int] | None = None,
    ) -> None:
        self.plan, self.written = plan, list[Part]()
        self._run_folder, self._unfinished = run_folder, unfinished
        self._done, self._lock, self._worker = done, lock, worker
        self._sizes = plan.stored.sizes
        self.durable_rows = self._resumed = sum(self._sizes[block] for block in done)
        self._open: dict[int, _Block] = {}
        self._format = format_of(plan.spec)
        self._next_look = 0.0

    @classmethod
    def seen(cls, plan: Plan) -> Blocks:
        """The blocks of a plan as they are now, for a dry run."""
        run_folder = run_folder_of(plan.folder)
        return cls(plan, run_folder, plan.done(part_names(run_folder)))

    @property
    def counts(self) -> Counts:
        """What is done and what is left."""
        plan = self.plan
        before = plan.resumed + len(plan.failed)
        return Counts(
            len(plan.wanted),
            plan.stored.rows + before,
            self._resumed + before,
            self.durable_rows + before,
            len(plan.taken) - plan.resumed,
        )

    @property
    def left(self) -> list[Batch]:
        """The batches of the blocks that are not known to be done."""
        return [batch for batch in self.plan.batches if batch.block not in self._done]

    @property
    def rows_left(self) -> int:
        """Rows of the plan that are not durable yet."""
        return self.plan.stored.rows - self.durable_rows

    def computed_before(self) -> Mapping[str, Any] | None:
        """How the last block of this worker's share was computed that is done; None: none is."""
        index, count = self._worker or (0, 1)
        blocks = {b for b in self._done if (b - index) % count == 0} or self._done
        names = part_names(self._run_folder) if blocks else []
        latest = max(blocks, default=0), self.plan.stored.name
        last = [name for name in names if (name.block, name.plan) == latest]
        try:
            found = [read_part(self._run_folder, self.plan.spec, n, check=False) for n in last[:1]]
        except (CacheError, OSError):  # the run that publishes reports the damage
            return None
        return found[0].computed if found and found[0] else None

    def claim(self, skipped: Callable[[int], None] = lambda _: None) -> Iterator[Batch]:
        """The batches that this process should compute, block by block.

        Alone it takes all that are left. A worker takes the blocks that no other has finished or
        started, its own share first. It keeps the claim of what it has finished: while it lives,
        nobody need look whether that is done.

        Args:
            skipped: receives the number of rows that another worker has finished.
        """
        if self._lock is None or self._worker is None:
            yield from self.left
            return
        blocks: dict[int, list[Batch]] = {}
        for batch in self.left:
            blocks.setdefault(batch.block, []).append(batch)
        index, count = self._worker
        for number in sorted(blocks, key=lambda block: ((block - index) % count, block)):
            if number not in self._done and self._lock.claim(number):
                self._look()
                if number not in self._done:
                    yield from blocks[number]
                    continue
                self._lock.release(number)
            skipped(sum(len(batch.keys) for batch in blocks[number]))

    def add(
        self,
        batch: Batch,
        rows: Any,
        failed: Mapping[bytes, Failure] | None = None,
        computed: Mapping[str, Any] | None = None,
        name_of: Callable[[bytes], str] = lambda key: "",
    ) -> None:
        """Add the rows of a batch; with the last one its block becomes durable.

        Numbers that are not finite, before or after conversion to the stored dtype, become errors.

        Args:
            batch: of the plan.
            rows: of its keys that did not fail, in order: float32 [n, dim], un-normalised, or a
                table of n rows (`sightline.cache.tables`).
            failed: key → code, path and reason of failed rows.
            computed: device, library versions and batch size, for the new shards; ``halved_to``
                if the plan's batch size did not fit in memory. That of the last batch counts.
            name_of: what a key stands for, such as a file, for a row that becomes an error.
        """
        failed = dict(failed or {})
        keys = batch.keys
        if failed:
            keys = keys[np.array([key.tobytes() not in failed for key in keys], dtype=bool)]
        if isinstance(self._format, Numbers):
            keys, rows = self._finite(self._format, keys, rows, failed, name_of)
        block = self._open.setdefault(batch.block, _Block())
        block.keys.append(keys)
        block.values.append(rows)
        block.failed |= failed
        block.rows += len(batch.keys)
        if block.rows >= self._sizes[batch.block]:
            self._write(batch.block, self._open.pop(batch.block), computed)

    def write(self, number: int, keys: Keys, rows: Any, computed: Mapping[str, Any]) -> None:
        """Write a whole block, whose rows may be any of the plan; arguments as `add`."""
        block = _Block()
        if isinstance(self._format, Numbers):
            keys, rows = self._finite(self._format, keys, rows, block.failed)
        block.keys.append(keys)
        block.values.append(rows)
        self._write(number, block, computed)

    def _write(self, number: int, block: _Block, computed: Mapping[str, Any] | None) -> None:
        keys, values = np.concatenate(block.keys), self._format.joined(block.values)
        part = write_part(
            self._run_folder,
            self.plan.spec,
            (self.plan.stored.name, number),
            keys,
            values,
            block.failed,
            dict(computed or {}),
            self._unfinished,
        )
        self.written.append(part)
        self._done.add(number)
        self.durable_rows += len(keys) + len(block.failed)

    def _look(self) -> None:
        """See which blocks others have finished, unless that was seen just now and takes long."""
        start = time.monotonic()
        if start < self._next_look:
            return
        self._done |= self.plan.done(part_names(self._run_folder))
        end = time.monotonic()
        self._next_look = end if end - start < _SHORT else end + _LOOKING * (end - start)

    def _finite(
        self,
        kind: Numbers,
        keys: Keys,
        rows: NDArray,
        failed: dict[bytes, Failure],
        name_of: Callable[[bytes], str] = lambda key: "",
    ) -> tuple[Keys, NDArray]:
        """The rows that can be stored; the others are added to ``failed``."""
        with np.errstate(over="ignore", under="ignore"):
            stored = rows.astype(kind.dtype)
        finite = np.asarray(np.isfinite(stored).all(axis=1))
        kept = finite & ~_underflows(rows, stored)
        if kept.all():
            return keys, stored
        for key, row, is_finite in zip(keys[~kept], rows[~kept], finite[~kept], strict=True):
            code, reason = UNDERFLOW if is_finite else NOT_FINITE, self._why_not(kind, row)
            failed[key.tobytes()] = {
                "code": code,
                "path": name_of(key.tobytes()),
                "reason": reason,
            }
        return keys[kept], stored[kept]

    def _why_not(self, kind: Numbers, row: NDArray) -> str:
        """Why a row cannot be stored, and what to do if that is known."""
        if np.isfinite(row).all():
            largest, dtype = float(np.abs(row).max()), kind.dtype
            verb = "exceeds" if largest > 1 else "is too small for"
            return f"{verb} {dtype.name} (largest {largest:.2g}): store with --dtype float32"
        found = "the encoder's row holds NaN or infinity"
        spec = self.plan.spec
        if isinstance(spec, FeatureSpec) and spec.precision.startswith("fp16"):
            return f"{found} in fp16: compute with --precision bf16 or fp32"
        return f"{found}: look at its weights"


def _underflows(rows: NDArray, stored: NDArray) -> NDArray[np.bool_]:
    """Which rows [n, dim] lose more than rounding when numbers as small as theirs are stored."""
    low = np.abs(rows).max(axis=1, initial=0.0) < np.finfo(stored.dtype).smallest_normal
    if not low.any():
        return low
    exact = rows[low].astype(np.float64)
    lost = np.linalg.norm(exact - stored[low].astype(np.float64), axis=1)
    low[low] = lost > _MOST_LOST * np.linalg.norm(exact, axis=1)
    return low
