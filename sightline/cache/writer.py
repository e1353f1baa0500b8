"""Fill a set: lock, plan, blocks, workers, and one commit point; for rows of every kind.

A block is done when its part is in the run folder. It is written once its last row is there, so a
kill or a stop loses at most one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sightline.cache.feature_kind import feature_kind
from sightline.cache.keys import Keys, find_keys
from sightline.cache.missing import Wanted, plan_set
from sightline.cache.parts import (
    Failure,
    Part,
    loose_shards,
    part_names,
    read_failures,
    read_part,
    read_parts,
    remove_part,
    write_failures,
    write_part,
)
from sightline.cache.plan import Batch, Counts, Plan, Role, Shape, StoredPlan, repaired
from sightline.cache.publish import publish_plan
from sightline.cache.record import FeatureSpec, Provenance, SetRecord, Spec, set_output
from sightline.cache.shards import format_of
from sightline.cache.storable import storable
from sightline.errors import CacheError, SightlineError
from sightline.files.atomic_files import free_bytes
from sightline.files.lock import WriterLock
from sightline.files.output import PARTS, PLAN
from sightline.wording import in_bytes

_LOOKING = 100
"""A long look at the names of parts may take one part in so many of the time."""

_SHORT = 0.05
"""Seconds of a look that is made at every claim: it costs less than a block computed twice."""


def block_rows(spec: Spec) -> int:
    """Rows per block: those of the kind of features, a batch of other sets."""
    return feature_kind(spec.kind).block_rows if isinstance(spec, FeatureSpec) else 1


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


class SetWriter:
    """Computes what a set lacks and publishes it.

    ```python
    with SetWriter(folder, spec) as writer:
        for batch in writer.plan(keys, batch_size=64):
            writer.add(batch, rows, failed, {"device": "cpu", ...})
        record = writer.publish()
    ```

    A killed run resumes from its finished parts; readers see the old set until the new one is
    published. Workers that share the folder first enter `beside_others`, where each takes blocks of
    one plan, and then compete to enter the writer itself: the last active worker enters, computes
    what dead workers left, and publishes.

    Args:
        folder: folder of the set; the run's own files go to ``<folder>.run`` beside it.
        spec: what determines the content.
        inputs: files and folders that the rows are computed from.
        worker: its number, from 0, and how many share the folder; None: the only one.

    Attributes:
        repaired: what was damaged here and is being computed again, and other remarks on the plan.
        failures: code, path and reason of failed rows, by key, as far as they are known here.

    Raises:
        CacheError: the folder holds a set of a different kind.
        SightlineError: on entering, as in `sightline.files.output.Output`.
        BusyError: on entering, another process is writing here.
    """

    def __init__(
        self,
        folder: Path,
        spec: Spec,
        inputs: Iterable[Path] = (),
        worker: tuple[int, int] | None = None,
    ) -> None:
        self.folder, self.spec, self.worker = folder, spec, worker
        self._name = "worker {}/{}".format(*worker) if worker else ""
        self._output = set_output(folder, inputs, self._name, spec.kind)
        self.run_folder = self._output.run_folder
        self.repaired: list[str] = []
        self.failures: dict[bytes, Failure] = {}
        self._current: Plan | None = None
        self._open: dict[int, _Block] = {}
        self._parts: list[Part] = []
        self._new_parts: list[Part] = []
        self._done: set[int] = set()
        self._durable = self._resumed = 0
        self._next_look = 0.0
        self._entered = ExitStack()
        self._shared: WriterLock | None = None

    def __enter__(self) -> Self:
        with ExitStack() as entering:
            entering.enter_context(self._output)
            entering.callback(self._leave)
            self._entered = entering.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.__exit__(*error)

    @contextmanager
    def beside_others(self) -> Iterator[Self]:
        """Compute blocks alongside the other workers of this set.

        Raises:
            as on entering the writer itself; BusyError: a run that does not share is active.
        """
        with self._output.beside_others() as self._shared:
            try:
                yield self
            finally:
                self._shared = None

    def plan(
        self,
        keys: Keys | Sequence[bytes],
        lengths: NDArray[np.int32] | None = None,
        *,
        batch_size: int,
        **options: Any,
    ) -> list[Batch]:
        """The batches still to be computed for the set to hold exactly ``keys``.

        Args:
            keys, lengths, batch_size, options: as `preview` takes them.

        Raises:
            SightlineError: the disk has no room for the estimated output, or other workers use a
                different plan.
        """
        role = self._role
        how = {"batch_size": batch_size, **options, "role": role, "remember": True}
        plan = self.preview(keys, lengths, **how)
        if role is Role.JOINER:
            self._require_their_plan(plan)
        elif StoredPlan.load(self.run_folder) != plan.stored:
            plan.stored.save(self.run_folder, self._output.unfinished)
        self.repaired = plan.lines
        self.failures = read_failures(self.run_folder)
        shares = self._shared is not None
        self._done = plan.done(part_names(self.run_folder)) if shares else self._publishable(plan)
        self._current, self._open, self._new_parts, self._next_look = plan, {}, [], 0.0
        self._durable = self._resumed = plan.rows_of(self._done)
        self._require_space(plan)
        if self._shared is not None and role is Role.FIRST:
            self._shared.share()
        return self._left

    def preview(
        self,
        keys: Keys | Sequence[bytes],
        lengths: NDArray[np.int32] | None = None,
        *,
        batch_size: int,
        rows_per_block: int | None = None,
        shard_rows: int | None = None,
        groups: Keys | None = None,
        threads: int = 1,
        code: str = "",
        **options: Any,
    ) -> Plan:
        """What `plan` would plan; reads only, beside any run too.

        Args:
            keys: uint8 [n, 32]; repeated keys count once.
            lengths: int32 [n], padded length of each row, or None if there is only one shape.
            batch_size: rows per batch, including padding.
            rows_per_block: rows that are finished together; None: as `block_rows` says.
            shard_rows: rows per shard; None: as fit into about 64 MiB.
            groups: uint8 [n, 32]; rows of one group are computed consecutively.
            threads, code: as in `sightline.cache.plan.Shape`.
            options: `retry_failed`, `copy_from` and so on, as `plan_set` takes them.
        """
        requested = Shape(
            batch_size=batch_size,
            block_rows=rows_per_block or block_rows(self.spec),
            shard_rows=shard_rows or format_of(self.spec).shard_rows,
            threads=threads,
            code=code,
        )
        return plan_set(
            self.folder, self.spec, Wanted.of(keys, lengths, groups), requested, **options
        )

    def claim(self, skipped: Callable[[int], None] = lambda _: None) -> Iterator[Batch]:
        """The batches that this process should compute, block by block.

        Alone it takes all that are left. A worker takes the blocks that no other has finished or
        started, its own share first. It keeps the claim of what it has finished: while it lives,
        nobody need look whether that is done.

        Args:
            skipped: receives the number of rows that another worker has finished.
        """
        if self._shared is None or self.worker is None:
            yield from self._left
            return
        blocks: dict[int, list[Batch]] = {}
        for batch in self._left:
            blocks.setdefault(batch.block, []).append(batch)
        index, count = self.worker
        for number in sorted(blocks, key=lambda block: ((block - index) % count, block)):
            if number not in self._done and self._shared.claim(number):
                self._look()
                if number not in self._done:
                    yield from blocks[number]
                    continue
                self._shared.release(number)
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
        if isinstance(self.spec, FeatureSpec):
            keys, rows = storable(self.spec, keys, rows, failed, name_of)
        block = self._open.setdefault(batch.block, _Block())
        block.keys.append(keys)
        block.values.append(rows)
        block.failed |= failed
        block.rows += len(batch.keys)
        if block.rows >= self.current.stored.sizes[batch.block]:
            self._write(batch.block, self._open.pop(batch.block), computed)

    def add_block(self, number: int, keys: Keys, rows: Any, computed: Mapping[str, Any]) -> None:
        """Add a whole block, whose rows may be any of the plan; arguments as `add`."""
        block = _Block()
        if isinstance(self.spec, FeatureSpec):
            keys, rows = storable(self.spec, keys, rows, block.failed)
        block.keys.append(keys)
        block.values.append(rows)
        self._write(number, block, computed)

    def publish(self, provenance: Provenance | None = None, cut: int | None = None) -> SetRecord:
        """Merge the finished rows into shards and replace the commit point.

        Args:
            provenance: provenance of imported rows; default: computed here. A set that keeps
                imported rows stays imported.
            cut: texts of the plan that are longer than what is read of them; default: as before.

        Raises:
            CacheError: rows of the plan were neither added nor reported as failed.
        """
        plan = self.current
        parts = [*self._parts, *self._new_parts]
        failures = {**self.failures, **plan.failed}
        for part in parts:
            failures |= part.failed
        # of the set that is there too: no kill leaves an error without its reason
        write_failures(self.run_folder, failures, self._output.unfinished)
        record, failed = publish_plan(self._output, plan, parts, provenance, cut)
        self.failures = {key: failures[key] for key in failed if key in failures}
        write_failures(self.run_folder, self.failures, self._output.unfinished)
        self._forget(plan, parts)
        return record

    # -- what there is to do -----------------------------------------------------------------------

    @property
    def current(self) -> Plan:
        """The plan that is being filled.

        Raises:
            RuntimeError: there is none yet.
        """
        if self._current is None:
            raise RuntimeError("SetWriter: call `plan` first")
        return self._current

    @property
    def counts(self) -> Counts:
        """What is done and what is left; of nothing before there is a plan."""
        if (plan := self._current) is None:
            return Counts()
        before = plan.resumed + len(plan.failed)
        return Counts(
            len(plan.keys),
            plan.stored.rows + before,
            self._resumed + before,
            self._durable + before,
            plan.copied,
        )

    @property
    def rows_left(self) -> int:
        """Rows of the plan that are not durable yet."""
        return self.current.stored.rows - self._durable

    @property
    def _left(self) -> list[Batch]:
        """The batches of the blocks that are not known to be done."""
        return [batch for batch in self.current.batches if batch.block not in self._done]

    def computed_before(self) -> Mapping[str, Any] | None:
        """How the last block of this worker's share was computed that is done; None: none is."""
        index, count = self.worker or (0, 1)
        blocks = {b for b in self._done if (b - index) % count == 0} or self._done
        names = part_names(self.run_folder) if blocks else []
        latest = max(blocks, default=0), self.current.stored.name
        last = [name for name in names if (name.block, name.plan) == latest]
        try:
            parts = [read_part(self.run_folder, self.spec, n, check=False) for n in last[:1]]
        except (CacheError, OSError):  # the run that publishes reports the damage
            return None
        return parts[0].computed if parts and parts[0] else None

    @property
    def _role(self) -> Role:
        if self._shared is None:
            return Role.ALONE if self.worker is None else Role.LAST
        return Role.FIRST if self._shared.alone else Role.JOINER

    def _look(self) -> None:
        """See which blocks others have finished, unless that was seen just now and takes long."""
        start = time.monotonic()
        if start < self._next_look:
            return
        self._done |= self.current.done(part_names(self.run_folder))
        end = time.monotonic()
        self._next_look = end if end - start < _SHORT else end + _LOOKING * (end - start)

    # -- parts and the plan's file -------------------------------------------------------------

    def _write(self, number: int, block: _Block, computed: Mapping[str, Any] | None) -> None:
        keys, values = np.concatenate(block.keys), format_of(self.spec).concatenated(block.values)
        part = write_part(
            self.run_folder,
            self.spec,
            (self.current.stored.name, number),
            keys,
            values,
            block.failed,
            dict(computed or {}),
            self._output.unfinished,
        )
        self._new_parts.append(part)
        self._done.add(number)
        self._durable += len(keys) + len(block.failed)

    def _publishable(self, plan: Plan) -> set[int]:
        """Read the plan's parts, remove those that are damaged, and return the finished blocks."""
        mine = [name for name in part_names(self.run_folder) if name.plan == plan.stored.name]
        part_of = {part.name: part for part in self._new_parts}
        self._parts = [part_of[name] for name in mine if name in part_of]
        new = (name for name in mine if name not in part_of)
        damaged = list(plan.damaged)
        for name, part in read_parts(self.run_folder, plan.spec, new):
            if part is None:
                self.repaired.append(repaired(name))
                damaged.append(name)
            else:
                self._parts.append(part)
        for name in damaged:
            remove_part(self.run_folder, name)
        return plan.done(part.name for part in self._parts)

    def _forget(self, plan: Plan, published: Iterable[Part]) -> None:
        """Remove the plan, and the parts whose rows the published set holds; others stay."""
        names = {part.name for part in published}
        unpublished = [name for name in part_names(self.run_folder) if name not in names]
        for name, part in read_parts(self.run_folder, self.spec, unpublished, check=False):
            if part is not None and (find_keys(plan.keys, part.keys(self.spec)) >= 0).all():
                names.add(name)
        for name in names:
            remove_part(self.run_folder, name)
        for shard in loose_shards(self.run_folder):
            shard.unlink(missing_ok=True)
        (self.run_folder / PLAN).unlink(missing_ok=True)
        self._current, self._parts, self._new_parts = None, [], []
        self._leave()

    def _leave(self) -> None:
        """Remove the folder of parts if it is empty."""
        with suppress(OSError):
            (self.run_folder / PARTS).rmdir()

    # -- checks --------------------------------------------------------------------------------

    def _require_their_plan(self, plan: Plan) -> None:
        stored = StoredPlan.load(self.run_folder)
        if stored == plan.stored:
            return
        lines = ["they no longer have one"] if stored is None else plan.stored.differences(stored)
        raise SightlineError(
            f"{self.folder}: other workers fill this set with a different plan than "
            f"{self._name}:\n  "
            + "\n  ".join(lines)
            + "\n  Start every worker with the same inputs, options and versions, or wait until "
            "the others finish."
        )

    def _require_space(self, plan: Plan) -> None:
        """Refuse to start what the disk has no room for: parts, all new shards, the index."""
        sizes = plan.bytes_to_write(self.rows_left)
        free = free_bytes(self.run_folder)
        if sizes is not None and sum(sizes) > free:
            raise SightlineError(
                f"{self.folder}: its new rows need about {in_bytes(sum(sizes))} during writing "
                f"({in_bytes(sizes[1])} of them stay), but only {in_bytes(free)} are free; "
                "free some space or choose another output folder. Nothing was started."
            )
