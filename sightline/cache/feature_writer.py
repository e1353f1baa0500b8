"""Write a feature set: rows into blocks, blocks into shards, and one commit point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.cache.assemble import Placed, RowSource, publish, write_shards
from sightline.cache.commit import FILE_NAME, read_features
from sightline.cache.errors import CacheError
from sightline.cache.failures import Failure
from sightline.cache.feature_set import FeatureSet
from sightline.cache.keys import KEY_BYTES, Keys, KeyTable, as_keys, sort_order
from sightline.cache.plan import Batch, Shape
from sightline.cache.record import FeatureSetRecord, FeatureSpec, Provenance
from sightline.cache.repair import drop_unreadable
from sightline.cache.row_sources import BlockRows, PlacedRows, live_rows, only_sound, rows_on_disk
from sightline.cache.set_writer import MAX_SMALL_SHARDS, SetWriter
from sightline.cache.shard import TARGET_BYTES, rows_per_shard
from sightline.cache.worker import Worker
from sightline.errors import SightlineError
from sightline.files import free_bytes
from sightline.wording import in_bytes

BLOCK_ROWS = {"image": 512, "object": 512, "text": 2048, "teacher": 2048}
"""Rows per block by kind: a kill loses at most this many."""
_INDEX_BYTES = 45
"""Of a row in the index, about."""


class FeatureSetWriter(SetWriter[FeatureSpec]):
    """Computes what a feature set lacks and publishes it; see `SetWriter`.

    ```python
    with FeatureSetWriter(folder, spec) as writer:
        for batch in writer.plan(keys, batch_size=64):
            writer.add(batch.keys, features, failed, {"device": "cpu", ...}, batch.block)
        record = writer.publish()
    ```
    """

    def __init__(
        self,
        folder: Path,
        spec: FeatureSpec,
        inputs: Iterable[Path] = (),
        worker: Worker | None = None,
    ) -> None:
        super().__init__(folder, spec, inputs, worker)
        self.dtype = np.dtype(spec.dtype).newbyteorder("<")
        self._buffer: list[tuple[Keys, NDArray, dict[bytes, Failure]]] = []
        self._buffered_rows = 0
        self._buffered_block: int | None = None
        self._buffer_computed: dict[str, Any] = {}

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
        threads: int = 1,
        code: str = "",
    ) -> list[Batch]:
        """The batches still to be computed for the set to hold exactly ``keys``.

        Args:
            keys: uint8 [n, 32]; repeated keys count once.
            lengths: int32 [n], padded length of each row, or None if there is only one shape.
            batch_size: rows per batch, including padding.
            shard_bytes: bytes of rows per shard.
            groups: uint8 [n, 32]; rows of one group are computed consecutively.
            retry_failed: also recompute failed rows.
            copy_from: folder of other feature sets; rows in a set with this fingerprint are
                copied. Rows that this set dropped but still has on disk are always reused.
            threads, code: as in `sightline.cache.plan.Shape`.

        Raises:
            SightlineError: the disk has no room for the estimated output, or other workers use a
                different plan.
        """
        self._copy_from = copy_from
        shard_rows = rows_per_shard(self.spec.dim, self.dtype.itemsize, shard_bytes)
        shape = Shape(batch_size, BLOCK_ROWS[self.spec.kind], shard_rows, threads, code)
        batches = self._make_plan(keys, lengths, shape, groups, retry_failed)
        self._require_space(sum(len(batch.keys) for batch in batches))
        return batches

    def add(
        self,
        keys: Keys,
        rows: NDArray,
        failed: dict[bytes, Failure] | None = None,
        computed: Mapping[str, Any] | None = None,
        block: int = 0,
    ) -> None:
        """Add finished rows; they are durable once their block is full or the next one starts.

        Rows that are not finite, before or after conversion to the stored dtype, become errors.

        Args:
            keys: uint8 [n, 32].
            rows: float32 [n, dim], un-normalised.
            failed: key → code, path and reason of failed rows.
            computed: device, library versions and batch size, for the new shards; ``halved_to``
                if the plan's batch size did not fit in memory.
            block: block of the plan that the rows belong to.
        """
        computed = dict(computed or {})
        if block != self._buffered_block or computed != self._buffer_computed:
            self.flush()  # all rows of a block were computed the same way
        if self._buffered_block is not None and block != self._buffered_block:
            self._let_go(self._buffered_block)
        self._buffered_block, self._buffer_computed = block, computed
        failed = dict(failed or {})
        with np.errstate(over="ignore"):
            stored = rows.astype(self.dtype)
        finite = np.isfinite(stored).all(axis=1)
        for i in np.flatnonzero(~finite):
            failed[keys[i].tobytes()] = {
                "code": "not_finite",
                "path": "",
                "reason": f"the encoder's row holds NaN or exceeds {self.dtype.name}",
            }
        self._buffer.append((keys[finite], stored[finite], failed))
        self._buffered_rows += len(keys) + len(failed)
        if self._buffered_rows >= self.shape.block_rows:
            self.flush()

    def flush(self) -> None:
        """Make all added rows durable."""
        if not self._buffer or self._finished is None:
            return
        keys = np.concatenate([part[0] for part in self._buffer])
        features = np.concatenate([part[1] for part in self._buffer])
        failed = {key: about for part in self._buffer for key, about in part[2].items()}
        self._append(keys, {"features": features}, failed, self._buffer_computed)
        self._buffer, self._buffered_rows = [], 0

    def publish(self, provenance: Provenance | None = None) -> FeatureSetRecord:
        """Assemble shards from the blocks and replace the commit point.

        Args:
            provenance: provenance of imported rows; default: computed here. A set that keeps
                imported rows stays imported.

        Raises:
            CacheError: rows of the plan were neither added nor reported as failed.
        """
        self.flush()
        self.folder.mkdir(parents=True, exist_ok=True)
        rows = BlockRows(self.blocks, self.spec.dim, self.dtype)
        failed = self._newly_failed(rows)
        kept, kept_failed = self._kept()
        if self._unchanged(kept, kept_failed):
            assert self._published is not None
            record = self._published.record
            self._output.settle(file.name for file in record.files)
            self._finish(kept_failed)
            return record
        sources: list[RowSource] = [rows, *self._copies]
        kept, small = self._split_small(kept)
        if len(small.keys):
            sources.append(PlacedRows(self.folder, self.spec, small))
        keys = np.concatenate([self._planned, self._copied_keys, small.keys])
        keys = keys[sort_order(keys)]
        new = write_shards(self._output, self.spec, keys, self.shape.shard_rows, sources)
        own = len(kept.keys) or any(rows.folder == self.folder for rows in self._copies)
        if provenance is None and own and self._published is not None:
            provenance = self._published.record.provenance
        codes = {key: about["code"] for key, about in failed.items()}
        self.failures.add(failed)
        self.failures.write()  # before publishing: no kill leaves an error without its reason
        record = publish(
            self._output,
            self.spec,
            [kept, new],
            {**kept_failed, **codes},
            provenance or Provenance(),
        )
        self._finish({*kept_failed, *failed})
        return record

    @property
    def published(self) -> FeatureSetRecord | None:
        return self._published.record if self._published is not None else None

    def bytes_of(self, rows: int) -> tuple[int, int]:
        """Blocks and shards each hold every new row once; the index takes ~45 bytes per key."""
        row_bytes = self.spec.dim * self.dtype.itemsize + KEY_BYTES
        return rows * (row_bytes + _INDEX_BYTES), rows * (2 * row_bytes + _INDEX_BYTES)

    # -- the existing set --------------------------------------------------------------------

    def _open_published(self) -> None:
        self._published = self._opened()

    def _opened(self) -> FeatureSet | None:
        if not (self.folder / FILE_NAME).exists():
            return None
        try:
            record = read_features(self.folder)
        except CacheError as error:
            self.replaces = [f"the existing set is damaged: {error}"]
            return None
        if record.fingerprint != self.spec.fingerprint:
            self.replaces = self.spec.differences(record.spec)
            return None
        try:
            return FeatureSet.open(self.folder)
        except CacheError:
            if self._looks or (self._shared is not None and not self._shared.alone):
                raise
            self.repaired = drop_unreadable(self._output, self.folder, record).lines()
            return FeatureSet.open(self.folder)

    def _missing(self, retry_failed: bool) -> NDArray[np.bool_]:
        """Which of the wanted keys need computing: bool [n]."""
        if self._published is None:
            return np.ones(len(self._wanted), dtype=bool)
        absent = self._published.find(self._wanted) < 0
        if self._published.failed and not retry_failed:
            rows = self._table.find(as_keys(list(self._published.failed)))
            absent[rows[rows >= 0]] = False
        return absent

    def _copied(self, missing: NDArray[np.bool_]) -> NDArray[np.bool_]:
        self._copies = rows_on_disk(
            self.folder, self.spec, self._published, self._wanted[missing], self._copy_from
        )
        copied = np.zeros_like(missing)
        for rows in self._copies:
            copied |= missing & (rows.find(self._wanted) >= 0)
        return copied

    def _kept(self) -> tuple[Placed, dict[bytes, str]]:
        """Rows of the published set that are still wanted, and rows that remain failed."""
        if self._published is None:
            return Placed.nothing(), {}
        rows = live_rows(self._published)
        bad = as_keys(sorted(self._published.failed))
        again = KeyTable(bad).find(np.concatenate([self._planned, self._copied_keys]))
        stays = self._table.find(bad) >= 0
        stays[again[again >= 0]] = False
        failed = {key.tobytes(): self._published.failed[key.tobytes()] for key in bad[stays]}
        return rows.only(self._table.find(rows.keys) >= 0), failed

    def _unchanged(self, kept: Placed, failed: dict[bytes, str]) -> bool:
        published = self._published
        return (
            published is not None
            and not len(self._planned)
            and not len(self._copied_keys)
            and len(kept.keys) == len(published)
            and len(failed) == len(published.failed)
        )

    # -- assembling shards -------------------------------------------------------------------

    def _newly_failed(self, rows: BlockRows) -> dict[bytes, Failure]:
        """Code, path and reason of the planned rows without values, by key.

        Raises:
            CacheError: some were neither added nor reported as failed.
        """
        failed = {key: about for block in self.blocks for key, about in block.failed.items()}
        without = [key.tobytes() for key in self._planned[rows.find(self._planned) < 0]]
        lost = sum(key not in failed for key in without)
        if lost:
            raise CacheError(f"{self.folder}: {lost} planned rows were never computed")
        return {key: failed[key] for key in without}

    def _split_small(self, kept: Placed) -> tuple[Placed, Placed]:
        """Rows that stay in place, and rows of small shards once there are too many of these."""
        small = kept.live_rows() < self.shape.shard_rows / 2
        if small.sum() <= MAX_SMALL_SHARDS:
            return kept, Placed.nothing()
        gathered = only_sound(self.folder, kept.only(small[kept.shards]))
        moved = KeyTable(gathered.keys).find(kept.keys) >= 0
        return kept.only(~moved), gathered

    # -- helpers -----------------------------------------------------------------------------

    def _require_space(self, rows: int) -> None:
        row_bytes = self.spec.dim * self.dtype.itemsize
        _, needed = self.bytes_of(rows)
        free = free_bytes(self.run_folder)
        if needed > free:
            raise SightlineError(
                f"{self.folder}: {rows} rows of {row_bytes} bytes need about "
                f"{in_bytes(needed)} during writing, but only {in_bytes(free)} are free; "
                "free some space or choose another output folder. Nothing was started."
            )
