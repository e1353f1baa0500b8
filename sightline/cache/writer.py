"""Fill a set: lock, plan, blocks, workers, and one commit point; for rows of every kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sightline.atomic_files import free_bytes
from sightline.cache.blocks import Blocks, Counts
from sightline.cache.keys import Keys, find_keys
from sightline.cache.parts import FOLDER as PARTS
from sightline.cache.parts import (
    Failure,
    Part,
    loose_shards,
    part_names,
    read_failures,
    remove_part,
    sound_parts,
    write_failures,
)
from sightline.cache.plan import FILE, Batch, StoredPlan
from sightline.cache.publish import publish
from sightline.cache.record import Provenance, SetRecord, Spec, set_output
from sightline.cache.set_plan import Plan, Role, plan_set, repaired
from sightline.errors import SightlineError
from sightline.lock import WriterLock
from sightline.wording import in_bytes


class SetWriter:
    """Computes what a set lacks and publishes it.

    ```python
    with SetWriter(folder, spec) as writer:
        for batch in writer.plan(keys, batch_size=64):
            writer.add(batch, rows, failed, {"device": "cpu", ...})
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
        worker: its number, from 0, and how many share the folder; None: the only one.

    Attributes:
        repaired: what was damaged here and is being computed again, and other remarks on the plan.
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
        worker: tuple[int, int] | None = None,
    ) -> None:
        self.folder, self.spec, self.worker = folder, spec, worker
        self._name = "worker {}/{}".format(*worker) if worker else ""
        self._output = set_output(folder, inputs, self._name, spec.kind)
        self.run_folder = self._output.run_folder
        self._blocks: Blocks | None = None
        self.repaired: list[str] = []
        self.failures: dict[bytes, Failure] = {}
        self._parts: list[Part] = []
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
    def joined(self) -> Iterator[Self]:
        """Compute blocks alongside the other workers of this set.

        Raises:
            as on entering the writer itself; BusyError: a run that does not share is active.
        """
        with self._output.joined() as self._shared:
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
            keys, lengths, batch_size, options: as `plan_set` takes them.

        Raises:
            SightlineError: the disk has no room for the estimated output, or other workers use a
                different plan.
        """
        shared, worker, role = self._shared, self.worker, self._role
        plan = plan_set(
            self.folder,
            self.spec,
            keys,
            lengths,
            batch_size=batch_size,
            role=role,
            remember=True,
            **options,
        )
        if role is Role.JOINER:
            self._require_their_plan(plan)
        elif StoredPlan.load(self.run_folder) != plan.stored:
            plan.stored.save(self.run_folder, self._output.unfinished)
        self.repaired = plan.lines
        self.failures = read_failures(self.run_folder)
        done = self._publishable(plan) if shared is None else plan.done(part_names(self.run_folder))
        unfinished = self._output.unfinished
        self._blocks = Blocks(plan, self.run_folder, done, unfinished, shared, worker)
        self._require_space(self._blocks)
        if shared is not None and role is Role.FIRST:
            shared.share()
        return self._blocks.left

    def add(
        self,
        batch: Batch,
        rows: Any,
        failed: Mapping[bytes, Failure] | None = None,
        computed: Mapping[str, Any] | None = None,
    ) -> None:
        """Add the rows of a batch of the plan; see `Blocks.add`."""
        self.blocks.add(batch, rows, failed, computed)

    def publish(self, provenance: Provenance | None = None, cut: int | None = None) -> SetRecord:
        """Merge the finished rows into shards and replace the commit point.

        Args:
            provenance: provenance of imported rows; default: computed here. A set that keeps
                imported rows stays imported.
            cut: texts of the plan that are longer than what is read of them; default: as before.

        Raises:
            CacheError: rows of the plan were neither added nor reported as failed.
        """
        blocks = self.blocks
        parts = [*self._parts, *blocks.written]
        known = {**self.failures, **blocks.plan.failed}
        for part in parts:
            known |= part.failed
        # of the set that is there too: no kill leaves an error without its reason
        write_failures(self.run_folder, known, self._output.unfinished)
        record, failed = publish(self._output, blocks.plan, parts, provenance, cut)
        self.failures = {key: known[key] for key in failed if key in known}
        write_failures(self.run_folder, self.failures, self._output.unfinished)
        self._forget(blocks.plan, parts)
        return record

    @property
    def _role(self) -> Role:
        if self._shared is None:
            return Role.ALONE if self.worker is None else Role.LAST
        return Role.FIRST if self._shared.alone else Role.JOINER

    # -- parts and the plan's file -------------------------------------------------------------

    @property
    def blocks(self) -> Blocks:
        """Those of the plan.

        Raises:
            RuntimeError: there is no plan yet.
        """
        if self._blocks is None:
            raise RuntimeError("SetWriter: call `plan` first")
        return self._blocks

    @property
    def counts(self) -> Counts:
        """What is done and what is left; of nothing before there is a plan."""
        return Counts() if self._blocks is None else self._blocks.counts

    def _publishable(self, plan: Plan) -> set[int]:
        """Read the plan's parts, remove those that are damaged, and return the finished blocks."""
        mine = [name for name in part_names(self.run_folder) if name.plan == plan.stored.name]
        known = {part.name: part for part in (self._blocks.written if self._blocks else ())}
        self._parts = [known[name] for name in mine if name in known]
        new = (name for name in mine if name not in known)
        damaged = list(plan.damaged)
        for name, part in sound_parts(self.run_folder, plan.spec, new):
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
        others = [name for name in part_names(self.run_folder) if name not in names]
        for name, part in sound_parts(self.run_folder, self.spec, others, check=False):
            if part is not None and (find_keys(plan.wanted, part.keys(self.spec)) >= 0).all():
                names.add(name)
        for name in names:
            remove_part(self.run_folder, name)
        for shard in loose_shards(self.run_folder):
            shard.unlink(missing_ok=True)
        (self.run_folder / FILE).unlink(missing_ok=True)
        self._blocks, self._parts = None, []
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

    def _require_space(self, blocks: Blocks) -> None:
        """Refuse to start what the disk has no room for: parts, all new shards, the index."""
        sizes = blocks.plan.bytes_to_write(blocks.rows_left)
        free = free_bytes(self.run_folder)
        if sizes is not None and sum(sizes) > free:
            raise SightlineError(
                f"{self.folder}: its new rows need about {in_bytes(sum(sizes))} during writing "
                f"({in_bytes(sizes[1])} of them stay), but only {in_bytes(free)} are free; "
                "free some space or choose another output folder. Nothing was started."
            )
