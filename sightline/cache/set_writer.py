"""Fill a set: lock, plan, blocks and workers; shared by features and tables."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from sightline.cache.blocks import Block, FinishedBlocks, rows_in_blocks
from sightline.cache.commit import refuse_other_kinds, set_output
from sightline.cache.failures import Failure, FailureList
from sightline.cache.keys import Keys, KeyTable, as_keys, picked, unique_sorted
from sightline.cache.plan import Batch, Plan, Shape, planned_rows
from sightline.cache.record import FeatureSetRecord, FeatureSpec, TableSetRecord, TableSpec
from sightline.cache.worker import Worker
from sightline.errors import SightlineError
from sightline.lock import WriterLock
from sightline.output import run_folder_of

_LOOKUPS = 1 << 16  # at once, so that memory does not grow with the set
MAX_SMALL_SHARDS = 16
"""With more shards than this less than half full, the next run merges them."""

Spec = TypeVar("Spec", FeatureSpec, TableSpec)


def rows_done(folder: Path) -> tuple[int, int] | None:
    """How many rows of a set's plan are done, and how many it has; None if no run is at it."""
    run_folder = run_folder_of(folder)
    total = planned_rows(run_folder / "plan")
    return None if total is None else (min(rows_in_blocks(run_folder), total), total)


class SetWriter(ABC, Generic[Spec]):
    """Computes what a set lacks and publishes it.

    A killed run resumes from its finished blocks; readers see the old set until the new one is
    published. Workers that share the folder first enter `joined`, where each takes blocks of one
    plan, and then compete to enter the writer itself: the last active worker enters, computes
    what dead workers left, and publishes.

    Args:
        folder: folder of the set; the run's own files go to ``<folder>.run`` beside it.
        spec: what determines the content.
        inputs: files and folders that the rows are computed from.
        worker: this worker among those that share the folder; None: the only one.

    Attributes:
        replaces: why the previous set here cannot be reused; empty if it can.
        repaired: what was damaged here and is being recomputed.
        planned_rows, resumed_rows, copied_rows: rows of the plan; those that an earlier run
            finished; rows that needed no model.
        durable_rows: rows of the plan that survive a kill.
        shape: shape of the plan.
        failures: list of paths and reasons of failed rows.

    Raises:
        CacheError: on entering, the folder holds a set of a different kind.
        SightlineError: on entering, as in `sightline.output.Output`.
        BusyError: on entering, another process is writing here.
    """

    ahead = 4
    """Number of results that may wait for writing while the next are computed."""

    def __init__(
        self,
        folder: Path,
        spec: Spec,
        inputs: Iterable[Path] = (),
        worker: Worker | None = None,
    ) -> None:
        self.folder = folder
        self.spec = spec
        self.worker = worker
        self._output = set_output(folder, inputs, str(worker or ""))
        self.run_folder = self._output.run_folder
        self.replaces: list[str] = []
        self.repaired: list[str] = []
        self.planned_rows = self.copied_rows = self.resumed_rows = self.durable_rows = 0
        self.shape = Shape(1, 1, 1)
        self.failures = FailureList(self.run_folder / "failures.jsonl")
        self._shared: WriterLock | None = None
        self._finished: FinishedBlocks | None = None
        self._marking = threading.Lock()
        self._looks = False

    def __enter__(self) -> Self:
        refuse_other_kinds(self.folder, self.spec.kind)
        self._output.__enter__()
        try:
            self._begin()
        except BaseException:
            self._output.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._end(error)
        finally:
            self._output.__exit__(kind, error, traceback)

    @contextmanager
    def joined(self) -> Iterator[Self]:
        """Compute blocks alongside the other workers of this set.

        Raises:
            as on entering the writer itself; BusyError: a run that does not share is active.
        """
        refuse_other_kinds(self.folder, self.spec.kind)
        with self._output.joined() as self._shared:
            error: BaseException | None = None
            try:
                self._begin()
                yield self
            except BaseException as raised:
                error = raised
                raise
            finally:
                self._end(error)
                self._shared = None

    def mine(
        self, batches: Sequence[Batch], skipped: Callable[[int], None] = lambda _: None
    ) -> Iterator[Batch]:
        """The ``batches`` that this run should compute, claimed on demand.

        A single run computes all of them. A worker takes blocks that no other worker has finished
        or started, its own share first.

        Args:
            skipped: receives the number of rows finished by another worker.
        """
        lock = self._shared
        if lock is None or self.worker is None:
            yield from batches
            return
        blocks: dict[int, list[Batch]] = {}
        for batch in batches:
            blocks.setdefault(batch.block, []).append(batch)
        index, count = self.worker.index, self.worker.count
        for number in sorted(blocks, key=lambda block: ((block - index) % count, block)):
            if not lock.claim(number):
                continue
            self._look_for_blocks()
            left = [batch for batch in blocks[number] if not self._is_done(batch)]
            skipped(sum(len(each.keys) for each in blocks[number]) - sum(len(b.keys) for b in left))
            if not left:
                lock.release(number)
            yield from left

    @contextmanager
    def looked_at(self) -> Iterator[Self]:
        """Plan only: read what there is, beside other runs too, and write nothing.

        Raises:
            CacheError, SightlineError: as on entering the writer, but damage is not repaired.
        """
        refuse_other_kinds(self.folder, self.spec.kind)
        self._output.check_place()
        self._looks = True
        try:
            self._begin()
            yield self
        finally:
            self._finished, self._looks = None, False

    @property
    def wanted_rows(self) -> int:
        """Rows of the whole set, once it is planned."""
        return len(self._wanted)

    @property
    @abstractmethod
    def published(self) -> FeatureSetRecord | TableSetRecord | None:
        """The record of the existing set, if its rows can be reused."""

    @abstractmethod
    def bytes_of(self, rows: int) -> tuple[int, int] | None:
        """Bytes of ``rows`` in the set, and the room that writing them takes; None: not known."""

    @property
    def blocks(self) -> list[Block]:
        """The finished blocks."""
        return self._finished.blocks if self._finished is not None else []

    @abstractmethod
    def add(
        self,
        keys: Keys,
        rows: Any,
        failed: dict[bytes, Failure] | None = None,
        computed: Mapping[str, Any] | None = None,
        block: int = 0,
    ) -> None:
        """Add finished rows; see the writer of each kind."""

    @abstractmethod
    def publish(self) -> FeatureSetRecord | TableSetRecord:
        """Assemble the finished rows and replace the commit point."""

    # -- for the writer of each kind ---------------------------------------------------------

    @abstractmethod
    def _open_published(self) -> None:
        """Inspect the existing set; fills `replaces` and `repaired`."""

    @abstractmethod
    def _missing(self, retry_failed: bool) -> NDArray[np.bool_]:
        """Which wanted keys the published set lacks: bool [n]."""

    def _copied(self, missing: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which of these need no model: bool [n]."""
        return np.zeros_like(missing)

    def flush(self) -> None:
        """Make all added rows durable."""

    def _make_plan(
        self,
        keys: Keys | Sequence[bytes],
        lengths: NDArray[np.int32] | None,
        shape: Shape,
        groups: Keys | None,
        retry_failed: bool,
    ) -> list[Batch]:
        """The batches still to be computed for the set to hold exactly ``keys``.

        Raises:
            SightlineError: other workers use a different plan.
        """
        keys = as_keys(keys)
        first = unique_sorted(keys)
        self._wanted = keys[first]
        self._table = KeyTable(self._wanted)
        lengths = None if lengths is None else lengths[first]
        missing = self._missing(retry_failed)
        copied = self._copied(missing)
        self._copied_keys = self._wanted[copied]
        self.copied_rows = len(self._copied_keys)
        missing &= ~copied
        # workers that start later must not retry what another worker has tried
        done = self._done(again=retry_failed and self.worker is None)
        stored = Plan.load(self.run_folder / "plan")
        asked = shape
        if (
            stored is not None
            and stored.fingerprint == self.spec.fingerprint
            and any(map(len, done))
        ):
            # an interrupted run resumes in its original shape, or its rows would not match
            begun = stored.shape
            shape = replace(shape, batch_size=begun.batch_size, threads=begun.threads)
        self._row_is_done = np.zeros_like(missing)
        self._mark(self._row_is_done, done)
        known, outside = self._known(missing, stored)

        def cut(rows: NDArray[np.bool_]) -> Plan:
            return Plan.make(
                self.spec.fingerprint,
                picked(self._wanted, rows),
                None if lengths is None else lengths[rows],
                shape,
                None if groups is None else groups[first][rows],
                asked,
            )

        plan = cut(missing & ~outside)
        if self._shared is not None and not self._shared.alone:
            self._require_their_plan(plan, stored)
        else:
            old = None if stored is None else (stored.digest, stored.asked)
            del stored  # as large as the new plan
            if old is None or old[0] != plan.digest:
                outside = known  # the wanted rows have changed: plan what is not done yet
                plan = cut(missing & ~known)
            if old != (plan.digest, asked) and not self._looks:
                plan.save(self.run_folder / "plan")
            if self._shared is not None:
                self._shared.share()
        self.shape = shape
        self._planned = plan.keys
        if outside.any():
            self._planned = np.concatenate([plan.keys, picked(self._wanted, outside)])
        batches = plan.batches()
        if known.any():
            batches = [batch for batch in batches if not self._is_done(batch)]
        self.planned_rows = len(self._planned)
        self.resumed_rows = self.planned_rows - sum(len(batch.keys) for batch in batches)
        self.durable_rows = self.resumed_rows
        return batches

    def _append(
        self,
        keys: Keys,
        tensors: Mapping[str, NDArray],
        failed: dict[bytes, Failure],
        computed: Mapping[str, Any],
    ) -> None:
        """Write a block."""
        assert self._finished is not None
        with self._marking:
            self._finished.append(keys, tensors, failed, computed)
            self._mark_blocks(self._finished.blocks[-1:])
        self.durable_rows += len(keys) + len(failed)

    def _let_go(self, block: int) -> None:
        """Record that every row of a block of the plan is durable."""
        if self._shared is not None:
            self._shared.release(block)

    def _finish(self, failed: Iterable[bytes]) -> None:
        """Clean up after publishing, with these keys failed: plan and blocks are obsolete."""
        assert self._finished is not None
        self.failures.keep(set(failed))
        self.failures.write()
        self._finished.clear()
        self._finished = None
        (self.run_folder / "plan").unlink(missing_ok=True)

    # -- internal ----------------------------------------------------------------------------

    def _begin(self) -> None:
        self.replaces, self.repaired = [], []
        self._open_published()
        alone = self._shared is None or self._shared.alone
        self._finished = FinishedBlocks(
            self.run_folder,
            self.spec.fingerprint,
            self._output.abandoned,
            alone=alone,
            looks=self._looks,
        )
        self.repaired += [
            f"{name}: damaged block of an interrupted run; recomputing its rows"
            for name in self._finished.damaged
        ]
        self.failures.read()

    def _end(self, error: BaseException | None) -> None:
        """Keep added rows, and leave no empty folder."""
        try:
            self.flush()
        except OSError:
            if error is None:
                raise  # else the run is already ending with an error, most likely this one
        finally:
            alone = self._shared is None or self._shared.alone  # others may be about to write
            if alone and self._finished is not None and not self._finished.blocks:
                self._finished.leave()
            self._finished = None

    def _require_their_plan(self, plan: Plan, stored: Plan | None) -> None:
        if stored is not None and (plan.digest, plan.asked) == (stored.digest, stored.asked):
            return
        lines = ["they no longer have one"] if stored is None else plan.differences(stored)
        raise SightlineError(
            f"{self.folder}: other workers fill this set with a different plan than "
            f"{self.worker}:\n  "
            + "\n  ".join(lines)
            + "\n  Start every worker with the same inputs, options and versions, or wait until "
            "the others finish."
        )

    def _known(
        self, missing: NDArray[np.bool_], stored: Plan | None
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which missing rows are finished, and which of them the stored plan omits: bool [n]."""
        known = missing & self._row_is_done
        if stored is None or not known.any():
            return known, known
        theirs = np.zeros_like(missing)
        self._mark(theirs, [stored.keys])
        return known, known & ~theirs

    def _done(self, *, again: bool) -> list[Keys]:
        """Keys of the finished blocks; failed keys are excluded if retried (``again``)."""
        failed = [] if again else [key for block in self.blocks for key in block.failed]
        return [as_keys(failed), *(block.keys for block in self.blocks)]

    def _is_done(self, batch: Batch) -> bool:
        return bool(self._row_is_done[self._table.find(batch.keys)].all())

    def _look_for_blocks(self) -> None:
        assert self._finished is not None
        with self._marking:
            known = len(self._finished.blocks)
            self._finished.refresh()
            self._mark_blocks(self._finished.blocks[known:])

    def _mark_blocks(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            self._mark(self._row_is_done, [block.keys, as_keys(list(block.failed))])

    def _mark(self, rows: NDArray[np.bool_], parts: Iterable[Keys]) -> None:
        """Set ``rows`` (bool [n] over the wanted keys) where any of ``parts`` has the key."""
        for keys in parts:
            for start in range(0, len(keys), _LOOKUPS):
                found = self._table.find(keys[start : start + _LOOKUPS])
                rows[found[found >= 0]] = True
