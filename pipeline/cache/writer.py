"""Writing a feature set: lock, plan, blocks, shards, and the one commit point."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from pipeline.cache.assemble import Placed, RowSource, publish, write_shards
from pipeline.cache.blocks import Block, FinishedBlocks
from pipeline.cache.commit import FILE_NAME, read_features, refuse_other_kinds, set_output
from pipeline.cache.errors import CacheError
from pipeline.cache.failures import FailureList
from pipeline.cache.feature_set import FeatureSet
from pipeline.cache.keys import Keys, KeyTable, as_keys, picked, sort_order, unique_sorted
from pipeline.cache.plan import Batch, Plan
from pipeline.cache.record import FeatureSetRecord, FeatureSpec, Provenance
from pipeline.cache.repair import drop_unreadable
from pipeline.cache.row_sources import BlockRows, PlacedRows, live_rows, only_sound, rows_on_disk
from pipeline.cache.shard import TARGET_BYTES, rows_per_shard
from sightline.errors import SightlineError

BLOCK_ROWS = {"image": 512, "object": 512, "text": 2048, "teacher": 2048}
"""Rows of a block by kind: a kill repeats at most as many."""
_LOOKUPS = 1 << 16  # at once, so that the memory they take does not grow with the set
MAX_SMALL_SHARDS = 16
"""More shards than this that are less than half full are put together by the next run."""


class FeatureSetWriter:
    """Computes what a feature set lacks and publishes it.

    ```python
    with FeatureSetWriter(folder, spec) as writer:
        batches = writer.plan(keys, batch_size=64)
        for batch in batches:
            writer.add(batch.keys, features, failed)
        record = writer.publish(computed={"device": "cpu", ...})
    ```
    A run that was killed resumes from its finished blocks; readers see the old set until `publish`.

    Args:
        folder: the feature set; the run's own files go to ``<folder>.run`` beside it.
        spec: what decides the value of a row.
        inputs: files and folders that the rows are computed from.

    Raises:
        CacheError: on entering, features of another kind.
        SightlineError: on entering, as `sightline.output.Output`.
        BusyError: another process is writing here.
    """

    def __init__(self, folder: Path, spec: FeatureSpec, inputs: Iterable[Path] = ()) -> None:
        self.folder = folder
        self._output = set_output(folder, inputs)
        self.run_folder = self._output.run_folder
        self.spec = spec
        self.dtype = np.dtype(spec.dtype).newbyteorder("<")
        self.replaces: list[str] = []
        """Why nothing of the set that stood here before can be used; empty where it can."""
        self.repaired: list[str] = []
        """What was damaged in the set that stood here, and was taken out of it."""
        self._finished: FinishedBlocks | None = None
        self.planned_rows = self.copied_rows = 0
        self.durable_rows = 0
        """Rows of the plan that no kill can take away any more."""
        self.rows_per_call = 0
        """Rows to compute in one call: the plan's batch size, or less where memory ran out."""
        self._buffer: list[tuple[Keys, NDArray, dict[bytes, str]]] = []
        self._buffered_rows = 0
        self._buffer_call = 0  # rows per call of what is in the buffer
        self.failures = FailureList(self.run_folder / "failures.jsonl")
        """Where paths and reasons of failed rows are listed."""

    def __enter__(self) -> FeatureSetWriter:
        refuse_other_kinds(self.folder, self.spec.kind)
        self._output.__enter__()
        try:
            self._published = self._open_published()
            self._finished = FinishedBlocks(
                self.run_folder,
                self.spec.fingerprint,
                self.spec.dim,
                self.dtype,
                self._output.abandoned,
            )
            self.repaired += [
                f"{name}: a block of an interrupted run, damaged; its rows are computed again"
                for name in self._finished.damaged
            ]
            self.failures.read()
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
            try:
                self.flush()
            except OSError:
                if error is None:
                    raise  # else the run already ends with an error, most likely this very one
        finally:
            if self._finished is not None and not self._finished.blocks:
                self._finished.clear()
            self._output.__exit__(kind, error, traceback)

    def plan(
        self,
        keys: Keys | Sequence[bytes],
        lengths: NDArray[np.int32] | None = None,
        *,
        batch_size: int,
        shard_bytes: int = TARGET_BYTES,
        groups: Keys | None = None,
        retry_failed: bool = False,
        copy_from: Path | None = None,
    ) -> list[Batch]:
        """The batches that are still to be computed for the set to hold exactly ``keys``.

        Args:
            keys: uint8 [n, 32]; repeated keys count once.
            lengths: int32 [n], padded length of each row, or None where there is only one shape.
            batch_size: rows of every batch, padding included.
            shard_bytes: bytes of a shard's rows.
            groups: uint8 [n, 32]; rows of one group are computed one after the other.
            retry_failed: compute rows in error again, too.
            copy_from: folder above other feature sets; rows that one of this fingerprint holds
                are copied. What this set dropped and still has on disk is always taken back.

        Raises:
            SightlineError: the disk has no room for the estimated output.
        """
        keys = as_keys(keys)
        first = unique_sorted(keys)
        self._wanted = keys[first]
        lengths = None if lengths is None else lengths[first]
        missing = self._missing(retry_failed)
        self._copies = rows_on_disk(
            self.folder, self.spec, self._published, self._wanted[missing], copy_from
        )
        copied = np.zeros(len(self._wanted), dtype=bool)
        for rows in self._copies:
            copied |= missing & (rows.find(self._wanted) >= 0)
        self._copied_keys = self._wanted[copied]
        self.copied_rows = len(self._copied_keys)
        missing &= ~copied
        shard_rows = rows_per_shard(self.spec.dim, self.dtype.itemsize, shard_bytes)
        resumed = any(map(len, self._done(retry_failed)))
        stored = Plan.load(self.run_folder / "plan")
        if resumed and stored is not None and stored.fingerprint == self.spec.fingerprint:
            # an interrupted run goes on in the shape it began with, or its rows would not fit
            batch_size = stored.batch_size
        begun = None if stored is None else stored.digest
        known, outside = self._known(missing, retry_failed, stored)
        del stored  # as large as the plan that is made now

        def cut(rows: NDArray[np.bool_]) -> Plan:
            return Plan.make(
                self.spec.fingerprint,
                picked(self._wanted, rows),
                None if lengths is None else lengths[rows],
                batch_size,
                shard_rows,
                None if groups is None else groups[first][rows],
            )

        plan = cut(missing & ~outside)
        if begun != plan.digest:  # other rows are wanted than then: plan what nobody has done
            outside = known
            plan = cut(missing & ~known)
            plan.save(self.run_folder / "plan")
        self._plan = plan
        self._planned = plan.keys
        if outside.any():
            self._planned = np.concatenate([plan.keys, picked(self._wanted, outside)])
        self.batch_size = self.rows_per_call = batch_size
        batches = plan.batches()
        if resumed:
            self.rows_per_call = min(batch_size, *(block.batch_size for block in self._blocks))
            done = np.concatenate(self._done(retry_failed))
            table = KeyTable(done[unique_sorted(done)])
            batches = [batch for batch in batches if (table.find(batch.keys) < 0).any()]
        self.planned_rows = len(self._planned)
        self.resumed_rows = self.planned_rows - sum(len(batch.keys) for batch in batches)
        self.durable_rows = self.resumed_rows
        self._require_space(sum(len(batch.keys) for batch in batches))
        return batches

    def add(
        self,
        keys: Keys,
        features: NDArray,
        failed: dict[bytes, dict[str, str]] | None = None,
        rows_per_call: int | None = None,
    ) -> None:
        """Take finished rows; they are durable once a block of `BLOCK_ROWS` is full.

        Rows that are not finite, in the encoder's numbers or once stored, become errors.

        Args:
            keys: uint8 [n, 32].
            features: float32 [n, dim], un-normalised.
            failed: key → {"code", "path", "reason"} of rows that could not be computed.
            rows_per_call: rows that were computed in one call, padding included; default: the
                plan's batch size. A smaller number is recorded beside the shards, and a run that
                resumes here begins with it.
        """
        call = rows_per_call or self.batch_size
        if call != self._buffer_call:
            self.flush()  # a block holds rows of one shape
            self._buffer_call = call
        failed = dict(failed or {})
        with np.errstate(over="ignore"):
            stored = features.astype(self.dtype)
        finite = np.isfinite(stored).all(axis=1)
        for i in np.flatnonzero(~finite):
            failed[keys[i].tobytes()] = {
                "code": "not_finite",
                "path": "",
                "reason": f"the encoder's row holds NaN or exceeds {self.dtype.name}",
            }
        self.failures.add(failed)
        codes = {key: about["code"] for key, about in failed.items()}
        self._buffer.append((keys[finite], stored[finite], codes))
        self._buffered_rows += len(keys) + len(failed)
        if self._buffered_rows >= BLOCK_ROWS[self.spec.kind]:
            self.flush()

    def flush(self) -> None:
        """Make every row that was added durable."""
        if not self._buffer or self._finished is None:
            return
        keys = np.concatenate([part[0] for part in self._buffer])
        features = np.concatenate([part[1] for part in self._buffer])
        failed = {key: code for part in self._buffer for key, code in part[2].items()}
        self.failures.write()
        self._finished.append(keys, features, failed, self._buffer_call)
        self.durable_rows += len(keys) + len(failed)
        self._buffer, self._buffered_rows = [], 0

    def publish(
        self, computed: dict[str, str | int], provenance: Provenance | None = None
    ) -> FeatureSetRecord:
        """Assemble shards from the blocks and replace the commit point.

        Args:
            computed: device, library versions and batch size of this run, for the new shards.
            provenance: of imported rows; default: computed here.

        Raises:
            CacheError: rows of the plan were neither added nor reported as failed.
        """
        self.flush()
        halved = min((block.batch_size for block in self._blocks), default=self.batch_size)
        if halved < self.batch_size:
            computed = {**computed, "halved_to": halved}
        self.folder.mkdir(parents=True, exist_ok=True)
        assert self._finished is not None
        rows = BlockRows(self._finished, computed)
        failed = self._newly_failed(rows)
        kept, kept_failed = self._kept()
        if self._unchanged(kept, kept_failed):
            assert self._published is not None
            record = self._published.record
            self._output.settle(file.name for file in record.files)
            self._finish()
            return record
        sources: list[RowSource] = [rows, *self._copies]
        kept, small = self._split_small(kept)
        if len(small.keys):
            sources.append(PlacedRows(self.folder, self.spec, small))
        keys = np.concatenate([self._planned, self._copied_keys, small.keys])
        keys = keys[sort_order(keys)]
        new = write_shards(self._output, self.spec, keys, self._plan.shard_rows, sources)
        record = publish(
            self._output,
            self.spec,
            [kept, new],
            {**kept_failed, **failed},
            provenance or Provenance(),
        )
        self.failures.keep({*kept_failed, *failed})
        self.failures.write()
        self._finish()
        return record

    # -- what is there already ---------------------------------------------------------------

    def _open_published(self) -> FeatureSet | None:
        if not (self.folder / FILE_NAME).exists():
            return None
        try:
            record = read_features(self.folder)
        except CacheError as error:
            self.replaces = [f"what stood there is damaged: {error}"]
            return None
        if record.fingerprint != self.spec.fingerprint:
            self.replaces = self.spec.differences(record.spec)
            return None
        try:
            return FeatureSet.open(self.folder)
        except CacheError:
            self.repaired = drop_unreadable(self._output, self.folder, record).lines()
            return FeatureSet.open(self.folder)

    def _missing(self, retry_failed: bool) -> NDArray[np.bool_]:
        """Which of the wanted keys are to be computed: bool [n]."""
        if self._published is None:
            return np.ones(len(self._wanted), dtype=bool)
        absent = self._published.find(self._wanted) < 0
        if self._published.failed and not retry_failed:
            rows = KeyTable(self._wanted).find(as_keys(list(self._published.failed)))
            absent[rows[rows >= 0]] = False
        return absent

    def _known(
        self, missing: NDArray[np.bool_], retry_failed: bool, stored: Plan | None
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which missing rows are finished, and which of them the stored plan left out: bool [n]."""
        wanted = KeyTable(self._wanted)

        def among(parts: Iterable[Keys]) -> NDArray[np.bool_]:
            found = np.zeros_like(missing)
            for keys in parts:
                for start in range(0, len(keys), _LOOKUPS):
                    rows = wanted.find(keys[start : start + _LOOKUPS])
                    found[rows[rows >= 0]] = True
            return found

        known = missing & among(self._done(retry_failed))
        if stored is None or not known.any():
            return known, known
        return known, known & ~among([stored.keys])

    @property
    def _blocks(self) -> list[Block]:
        return self._finished.blocks if self._finished is not None else []

    def _done(self, retry_failed: bool) -> list[Keys]:
        """Keys of the finished blocks, those in error among them: uint8 [n, 32] each."""
        failed = [] if retry_failed else [key for block in self._blocks for key in block.failed]
        return [as_keys(failed), *(block.keys for block in self._blocks)]

    def _kept(self) -> tuple[Placed, dict[bytes, str]]:
        """Rows of the published set that are still wanted, and those that stay in error."""
        if self._published is None:
            return Placed.nothing(), {}
        wanted = KeyTable(self._wanted)
        rows = live_rows(self._published)
        bad = as_keys(sorted(self._published.failed))
        again = KeyTable(bad).find(np.concatenate([self._planned, self._copied_keys]))
        stays = wanted.find(bad) >= 0
        stays[again[again >= 0]] = False
        failed = {key.tobytes(): self._published.failed[key.tobytes()] for key in bad[stays]}
        return rows.only(wanted.find(rows.keys) >= 0), failed

    def _unchanged(self, kept: Placed, failed: dict[bytes, str]) -> bool:
        published = self._published
        return (
            published is not None
            and not len(self._planned)
            and not len(self._copied_keys)
            and len(kept.keys) == len(published)
            and len(failed) == len(published.failed)
        )

    # -- putting shards together -------------------------------------------------------------

    def _newly_failed(self, rows: BlockRows) -> dict[bytes, str]:
        """Key → code of the planned rows that have no numbers.

        Raises:
            CacheError: some were neither added nor reported as failed.
        """
        blocks = self._blocks
        codes = {key: code for block in blocks for key, code in block.failed.items()}
        without = [key.tobytes() for key in self._planned[rows.find(self._planned) < 0]]
        lost = sum(key not in codes for key in without)
        if lost:
            raise CacheError(f"{self.folder}: {lost} planned rows were never computed")
        return {key: codes[key] for key in without}

    def _split_small(self, kept: Placed) -> tuple[Placed, Placed]:
        """Rows that stay where they are, and those of small shards once there are too many."""
        small = kept.live_rows() < self._plan.shard_rows / 2
        if small.sum() <= MAX_SMALL_SHARDS:
            return kept, Placed.nothing()
        gathered = only_sound(self.folder, kept.only(small[kept.shards]))
        moved = KeyTable(gathered.keys).find(kept.keys) >= 0
        return kept.only(~moved), gathered

    def _finish(self) -> None:
        """The run is over: its plan and blocks are of no more use."""
        assert self._finished is not None
        self._finished.clear()
        self._finished = None
        (self.run_folder / "plan").unlink(missing_ok=True)

    # -- small things ------------------------------------------------------------------------

    def _require_space(self, rows: int) -> None:
        """Blocks and shards each hold every new row once; the index about 45 bytes a key."""
        row_bytes = self.spec.dim * self.dtype.itemsize
        needed = rows * (2 * (row_bytes + 32) + 45)
        self.run_folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.run_folder).free
        if needed > free:
            raise SightlineError(
                f"{self.folder}: {rows} rows of {row_bytes} bytes need about "
                f"{needed / 1e9:.2f} GB while they are written, and {free / 1e9:.2f} GB are free; "
                "make room or choose another output folder. Nothing was started."
            )
