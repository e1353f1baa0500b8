"""Fill a set: lock, plan, finished parts, workers, and one commit point; for rows of every kind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from sightline.atomic_files import free_bytes
from sightline.cache.keys import KEY_BYTES, Keys, as_keys, find_keys, picked, unique_sorted
from sightline.cache.parts import FOLDER as PARTS
from sightline.cache.parts import (
    Failure,
    Part,
    Parts,
    read_failures,
    rows_in_parts,
    write_failures,
)
from sightline.cache.plan import FILE, Batch, Plan, Shape, StoredPlan, WorkerNumber
from sightline.cache.publish import publish, write_shards
from sightline.cache.record import (
    Provenance,
    SetRecord,
    Spec,
    set_output,
)
from sightline.cache.reusable_rows import ReusableRows
from sightline.cache.rows import Rows, Shard, joined, rows_in
from sightline.cache.shards import Numbers, format_of
from sightline.errors import CacheError, SightlineError
from sightline.lock import WriterLock
from sightline.output import run_folder_of
from sightline.wording import in_bytes

BLOCK_ROWS = {"image": 512, "object": 512, "text": 2048, "teacher": 2048}
"""Rows per block by kind, a batch for others: a kill loses at most this many."""
MAX_SMALL_SHARDS = 16
"""With more shards than this less than half full, the next run merges them."""
_INDEX_BYTES = 61  # of a row in the index, about


def rows_done(folder: Path) -> tuple[int, int] | None:
    """How many rows of a set's plan are done, and how many it has; None if no run is at it."""
    run_folder = run_folder_of(folder)
    plan = StoredPlan.load(run_folder)
    if plan is None:
        return None
    return min(rows_in_parts(run_folder, plan.parts), plan.rows), plan.rows


class SetWriter:
    """Computes what a set lacks and publishes it.

    ```python
    with SetWriter(folder, spec) as writer:
        for batch in writer.plan(keys, batch_size=64):
            writer.add(batch.keys, rows, failed, {"device": "cpu", ...}, batch.block)
        record = writer.publish()
    ```

    A killed run resumes from its finished parts; readers see the old set until the new one is
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
        wanted_rows: rows of the whole set, once it is planned.
        durable_rows: rows of the plan that survive a kill.
        ahead: number of results that may wait for writing while the next are computed.
        shape: shape of the plan.
        failures: code, path and reason of failed rows, by key, as far as they are known here.

    Raises:
        CacheError: the folder holds a set of a different kind.
        SightlineError: on entering, as in `sightline.output.Output`.
        BusyError: on entering, another process is writing here.
    """

    def __init__(
        self,
        folder: Path,
        spec: Spec,
        inputs: Iterable[Path] = (),
        worker: WorkerNumber | None = None,
    ) -> None:
        self.folder, self.spec, self.worker = folder, spec, worker
        self.format = format_of(spec)
        self.ahead = 4 if isinstance(self.format, Numbers) else 0  # a table's result is a block
        self._output = set_output(folder, inputs, str(worker or ""), spec.kind)
        self.run_folder = self._output.run_folder
        self.replaces: list[str] = []
        self.repaired: list[str] = []
        self.planned_rows = self.copied_rows = self.resumed_rows = self.durable_rows = 0
        self.wanted_rows = 0
        self.shape = Shape(1, 1, 1)
        self.failures: dict[bytes, Failure] = {}
        self._entered = ExitStack()
        self._shared: WriterLock | None = None
        self._finished: Parts | None = None
        self._marking = threading.Lock()
        self._looks = False
        self._buffer: list[tuple[Keys, Any, dict[bytes, Failure]]] = []
        self._buffered_rows = 0
        self._buffered_block: int | None = None
        self._buffered_computed: dict[str, Any] = {}

    def __enter__(self) -> Self:
        with ExitStack() as entering:
            entering.enter_context(self._output)
            entering.enter_context(self._at_work())
            self._entered = entering.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.__exit__(*error)

    @contextmanager
    def joined(self) -> Iterator[Self]:
        """Compute blocks alongside the other workers of this set.

        Raises:
            as on entering the writer itself; BusyError: a run that does not share is active.
        """
        with self._output.joined() as self._shared:
            try:
                with self._at_work():
                    yield self
            finally:
                self._shared = None

    @contextmanager
    def looked_at(self) -> Iterator[Self]:
        """Plan only: read what there is, beside other runs too, and write nothing.

        Raises:
            CacheError, SightlineError: as on entering the writer.
        """
        self._output.check_place()
        self._looks = True
        try:
            self._begin()
            yield self
        finally:
            self._finished, self._looks = None, False

    def plan(
        self,
        keys: Keys | Sequence[bytes],
        lengths: NDArray[np.int32] | None = None,
        *,
        batch_size: int,
        shard_rows: int | None = None,
        groups: Keys | None = None,
        retry_failed: bool = False,
        copy_from: Path | None = None,
        threads: int = 1,
        code: str = "",
    ) -> list[Batch]:
        """The batches still to be computed for the set to hold exactly ``keys``.

        Args:
            keys: uint8 [n, 32]; repeated keys count once.
            lengths: int32 [n], padded length of each row, or None if there is only one shape.
            batch_size: rows per batch, including padding.
            shard_rows: rows per shard; None: as fit into about 64 MiB.
            groups: uint8 [n, 32]; rows of one group are computed consecutively.
            retry_failed: also recompute failed rows.
            copy_from: folder of other sets; rows in a set with this fingerprint are copied. Rows
                that this set dropped but still has on disk are always reused.
            threads, code: as in `sightline.cache.plan.Shape`.

        Raises:
            SightlineError: the disk has no room for the estimated output, or other workers use a
                different plan.
        """
        block_rows = BLOCK_ROWS.get(self.spec.kind, 1)
        shape = Shape(batch_size, block_rows, shard_rows or self.format.shard_rows, threads, code)
        keys = as_keys(keys)
        first = unique_sorted(keys)
        self._wanted = keys[first]
        self.wanted_rows = len(self._wanted)
        missing = self._there.missing(self._wanted, retry_failed=retry_failed)
        self._copies, self._copied = self._there.copies(self._wanted, missing, copy_from)
        self._planned = missing & ~self._copied
        # workers that start later must not retry what another worker has tried
        again = retry_failed and self.worker is None
        self._done = np.zeros_like(missing)
        self._mark(self._done, self.parts, again=again)
        stored, self.shape = StoredPlan.load(self.run_folder), shape
        if stored and stored.fingerprint == self.spec.fingerprint and self._done.any():
            # an interrupted run resumes in its original shape, or its rows would not match
            kept = stored.shape
            self.shape = replace(shape, batch_size=kept.batch_size, threads=kept.threads)

        def cut(done: NDArray[np.bool_], parts: Iterable[str]) -> Plan:
            rows = self._planned & ~done
            return Plan.make(
                self.spec.fingerprint,
                picked(self._wanted, rows),
                None if lengths is None else lengths[first][rows],
                self.shape,
                None if groups is None else groups[first][rows],
                shape,
                frozenset(parts),
            )

        plan = None
        if stored is not None:
            before = np.zeros_like(missing)
            begun = [part for part in self.parts if part.name in stored.parts]
            self._mark(before, begun, again=again)
            plan = cut(before, stored.parts)
        if self._is_alone:
            if plan is None or stored is None or stored.digest != plan.stored.digest:
                # the wanted rows have changed: plan what is not done yet
                plan = cut(self._done, (part.name for part in self.parts))
            if stored != plan.stored and not self._looks:
                plan.stored.save(self.run_folder, self._output.unfinished)
            if self._shared is not None:
                self._shared.share()
        elif plan is None or stored != plan.stored:
            self._refuse_their_plan(plan, stored)
        batches = plan.batches()
        if (self._planned & self._done).any():
            batches = [batch for batch in batches if not self._is_done(batch)]
        left = sum(len(batch.keys) for batch in batches)
        self.copied_rows, self.planned_rows = int(self._copied.sum()), int(self._planned.sum())
        self.resumed_rows = self.durable_rows = self.planned_rows - left
        self._require_space(left)
        return batches

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
            self._look_for_parts()
            left = [batch for batch in blocks[number] if not self._is_done(batch)]
            skipped(sum(len(each.keys) for each in blocks[number]) - sum(len(b.keys) for b in left))
            if not left:
                lock.release(number)
            yield from left

    def add(
        self,
        keys: Keys,
        rows: Any,
        failed: Mapping[bytes, Failure] | None = None,
        computed: Mapping[str, Any] | None = None,
        block: int = 0,
    ) -> None:
        """Add finished rows; they are durable once their block is full or the next one starts.

        Numbers that are not finite, before or after conversion to the stored dtype, become errors.

        Args:
            keys: uint8 [n, 32].
            rows: float32 [n, dim], un-normalised, or a table of n rows (`sightline.cache.tables`).
            failed: key → code, path and reason of failed rows.
            computed: device, library versions and batch size, for the new shards; ``halved_to``
                if the plan's batch size did not fit in memory.
            block: block of the plan that the rows belong to.
        """
        computed = dict(computed or {})
        if block != self._buffered_block or computed != self._buffered_computed:
            self.flush()  # all rows of a block were computed the same way
        if self._shared is not None and self._buffered_block not in (None, block):
            self._shared.release(self._buffered_block)
        self._buffered_block, self._buffered_computed = block, computed
        failed = dict(failed or {})
        if isinstance(self.format, Numbers):
            keys, rows = self._finite(keys, rows, failed)
        self._buffer.append((keys, rows, failed))
        self._buffered_rows += len(keys) + len(failed)
        if self._buffered_rows >= self.shape.block_rows:
            self.flush()

    def flush(self) -> None:
        """Make all added rows durable."""
        if not self._buffer or self._finished is None:
            return
        keys = np.concatenate([part[0] for part in self._buffer])
        rows = self.format.joined([part[1] for part in self._buffer])
        failed = {key: about for part in self._buffer for key, about in part[2].items()}
        with self._marking:
            part = self._finished.append(keys, rows, failed, self._buffered_computed)
            if self._shared is not None:
                self._mark(self._done, [part])
        self.durable_rows += len(keys) + len(failed)
        self._buffer, self._buffered_rows = [], 0

    def publish(self, provenance: Provenance | None = None) -> SetRecord:
        """Merge the finished rows into shards and replace the commit point.

        Args:
            provenance: provenance of imported rows; default: computed here. A set that keeps
                imported rows stays imported.

        Raises:
            CacheError: rows of the plan were neither added nor reported as failed.
        """
        self.flush()
        folder = self.run_folder / PARTS
        parts = [part for part in self.parts if part.shard is not None]
        files = [Shard(folder, part.shard) for part in parts if part.shard is not None]
        finished = rows_in(self.spec, files, keys=[part.keys for part in parts])
        failed = self._newly_failed(finished)
        again = self._planned | self._copied
        kept, kept_failed = self._there.kept(self._wanted, again)
        if self._unchanged(kept, kept_failed):
            assert self._there.record is not None
            self._finish(kept_failed)
            return self._there.record
        self._output.remove(shard.name for shard in self._there.sound.dropped)
        computed_here = len(kept) or any(self._there.owns(rows) for rows in self._copies)
        kept, small = self._split_small(kept)
        sources = joined(self.spec, [finished, *self._copies, small])
        again[find_keys(self._wanted, small.keys)] = True
        keys = picked(self._wanted, again)
        new = write_shards(self._output, keys, self.shape.shard_rows, sources)
        if provenance is None and computed_here and self._there.record is not None:
            provenance = self._there.record.provenance
        self.failures |= failed
        # before publishing: no kill leaves an error without its reason
        write_failures(self.run_folder, self.failures, self._output.unfinished)
        record = publish(
            self._output,
            [kept, new],
            kept_failed | {key: about["code"] for key, about in failed.items()},
            provenance or Provenance(),
        )
        self._finish({*kept_failed, *failed})
        return record

    @property
    def parts(self) -> list[Part]:
        """The finished parts."""
        return self._finished.parts if self._finished is not None else []

    def bytes_of(self, rows: int) -> tuple[int, int] | None:
        """Bytes of ``rows`` in the set, and the room that writing them takes; None: not known.

        Parts and shards each hold every new row once. The size of a row that is not of numbers is
        that of the rows there are.
        """
        if isinstance(self.format, Numbers):
            size = float(self.format.row_bytes + KEY_BYTES)
        else:
            record = self._there.record
            shards = [] if record is None else list(record.shards)
            shards += [part.shard for part in self.parts if part.shard is not None]
            if not shards:
                return None
            size = sum(shard.bytes for shard in shards) / sum(shard.rows for shard in shards)
        return round(rows * (size + _INDEX_BYTES)), round(rows * (2 * size + _INDEX_BYTES))

    # -- the existing set --------------------------------------------------------------------

    def _begin(self) -> None:
        self._there = ReusableRows(self.folder, self.spec, remember=not self._looks)
        self.replaces, self.repaired = self._there.replaces, self._there.sound.lines()
        self._finished = Parts(self.run_folder, self.spec, self._output.unfinished)
        if self._is_alone and not self._looks:
            self._finished.remove_unusable()
        self.repaired += [
            f"{name}: damaged part of an interrupted run; recomputing its rows"
            for name in self._finished.damaged
        ]
        self.failures = read_failures(self.run_folder)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Read what there is; in the end keep added rows, and leave no empty folder."""
        try:
            self._begin()
            yield
        except BaseException:
            with suppress(OSError):  # most likely the error with which the run is ending
                self.flush()
            raise
        else:
            self.flush()
        finally:
            if self._is_alone and self._finished is not None:  # others may be about to write
                self._finished.leave()
            self._finished = None

    @property
    def _is_alone(self) -> bool:
        """Whether no other worker is at this set."""
        return self._shared is None or self._shared.alone

    def _unchanged(self, kept: Rows, failed: Mapping[bytes, str]) -> bool:
        sound = self._there.sound
        return (
            self._there.record is not None
            and not sound.dropped
            and not sound.index_fault
            and not (self._planned | self._copied).any()
            and len(kept) == len(sound.rows)
            and len(failed) == len(sound.failed)
        )

    def _split_small(self, kept: Rows) -> tuple[Rows, Rows]:
        """Rows that stay in place, and rows of small shards once there are too many of these."""
        small = kept.live() < self.shape.shard_rows / 2
        if small.sum() <= MAX_SMALL_SHARDS:
            return kept, kept.only(np.zeros(len(kept), dtype=bool))
        return kept.only(~small[kept.shards]), kept.only(small[kept.shards])

    # -- parts -------------------------------------------------------------------------------

    def _finite(
        self, keys: Keys, rows: NDArray, failed: dict[bytes, Failure]
    ) -> tuple[Keys, NDArray]:
        """The rows that can be stored; the others are added to ``failed``."""
        assert isinstance(self.format, Numbers)
        with np.errstate(over="ignore"):
            stored = rows.astype(self.format.dtype)
        finite = np.isfinite(stored).all(axis=1)
        if finite.all():
            return keys, stored
        for i in np.flatnonzero(~finite):
            failed[keys[i].tobytes()] = {
                "code": "not_finite",
                "path": "",
                "reason": f"the encoder's row holds NaN or exceeds {self.format.dtype.name}",
            }
        return keys[finite], stored[finite]

    def _newly_failed(self, finished: Rows) -> dict[bytes, Failure]:
        """Code, path and reason of the planned rows without values, by key.

        Raises:
            CacheError: some were neither added nor reported as failed.
        """
        failed = {key: about for part in self.parts for key, about in part.failed.items()}
        planned = self._wanted[self._planned]
        without = [key.tobytes() for key in planned[finished.find(planned) < 0]]
        lost = sum(key not in failed for key in without)
        if lost:
            raise CacheError(f"{self.folder}: {lost} planned rows were never computed")
        return {key: failed[key] for key in without}

    def _is_done(self, batch: Batch) -> bool:
        return bool(self._done[find_keys(self._wanted, batch.keys)].all())

    def _look_for_parts(self) -> None:
        assert self._finished is not None
        with self._marking:
            count = len(self._finished.parts)
            self._finished.refresh()
            self._mark(self._done, self._finished.parts[count:])

    def _mark(self, rows: NDArray[np.bool_], parts: Iterable[Part], *, again: bool = False) -> None:
        """Set ``rows`` (bool [n] over the wanted keys) that are in ``parts``.

        Args:
            again: failed rows are tried again, so they do not count.
        """
        for part in parts:
            for keys in (part.keys, as_keys([] if again else list(part.failed))):
                places = find_keys(self._wanted, keys)
                rows[places[places >= 0]] = True

    def _finish(self, failed: Iterable[bytes]) -> None:
        """Clean up after publishing, with these keys failed: plan and parts are obsolete."""
        assert self._finished is not None
        self.failures = {key: self.failures[key] for key in failed if key in self.failures}
        write_failures(self.run_folder, self.failures, self._output.unfinished)
        self._finished.clear()
        self._finished = None
        (self.run_folder / FILE).unlink(missing_ok=True)

    # -- helpers -----------------------------------------------------------------------------

    def _refuse_their_plan(self, plan: Plan | None, stored: StoredPlan | None) -> NoReturn:
        lines = ["they no longer have one"]
        if plan is not None and stored is not None:
            lines = plan.stored.differences(stored)
        raise SightlineError(
            f"{self.folder}: other workers fill this set with a different plan than "
            f"{self.worker}:\n  "
            + "\n  ".join(lines)
            + "\n  Start every worker with the same inputs, options and versions, or wait until "
            "the others finish."
        )

    def _require_space(self, rows: int) -> None:
        sizes = self.bytes_of(rows)
        free = free_bytes(self.run_folder)
        if sizes is not None and sizes[1] > free:
            row_bytes = sizes[0] // max(rows, 1)
            raise SightlineError(
                f"{self.folder}: {rows} rows of about {row_bytes} bytes need about "
                f"{in_bytes(sizes[1])} during writing, but only {in_bytes(free)} are free; "
                "free some space or choose another output folder. Nothing was started."
            )
