"""Write a grounding or cut-outs: tables into blocks, blocks into shards, one commit point."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sightline.cache.assemble import merged
from sightline.cache.blocks import Block
from sightline.cache.bundles import KEY_OF, Bundle, BundleRows, as_tensors, from_tensor
from sightline.cache.commit import FILE_NAME, read_tables_record
from sightline.cache.errors import CacheError
from sightline.cache.failures import Failure
from sightline.cache.keys import Keys, KeyTable, sort_order
from sightline.cache.manifest import key_column
from sightline.cache.parquet import read_table as read_columns
from sightline.cache.plan import Batch, Shape
from sightline.cache.record import TABLES_OF, TableKind, TableSetRecord, TableShard, TableSpec
from sightline.cache.set_writer import MAX_SMALL_SHARDS, SetWriter
from sightline.cache.tables import is_whole, publish_tables, read_table, write_table
from sightline.cache.worker import Worker
from sightline.output import Output

SHARD_ROWS: dict[TableKind, int] = {"grounding": 1024, "cutouts": 2048}
"""Units per shard by kind: images of a grounding, PNGs of cut-outs."""

Count = Callable[[Path, Sequence[TableShard]], dict[str, Any]]
"""Computes the informational counts of the record."""


@dataclass(frozen=True)
class _Published:
    """An existing shard: the keys of its units, and which of them failed."""

    shard: TableShard
    keys: Keys
    errors: tuple[str, ...]

    @property
    def failed(self) -> list[bytes]:
        return [key.tobytes() for key, code in zip(self.keys, self.errors, strict=True) if code]


class TableSetWriter(SetWriter[TableSpec]):
    """Computes what a grounding or a set of cut-outs lacks and publishes it; see `SetWriter`.

    A shard holds the units of a key range, so that it does not depend on the split into blocks.

    Args:
        count: computes the record's counts.
    """

    ahead = 0  # a result is a block

    def __init__(
        self,
        folder: Path,
        spec: TableSpec,
        count: Count,
        inputs: Iterable[Path] = (),
        worker: Worker | None = None,
    ) -> None:
        super().__init__(folder, spec, inputs, worker)
        self._count = count
        self._kind: TableKind = spec.kind
        self._first = TABLES_OF[spec.kind][0]
        self._published: list[_Published] = []
        self._record: TableSetRecord | None = None

    def plan(
        self,
        keys: Keys | Sequence[bytes],
        groups: Keys | None = None,
        *,
        block_rows: int,
        shard_rows: int | None = None,
        retry_failed: bool = False,
        threads: int = 1,
        code: str = "",
    ) -> list[Batch]:
        """The blocks still to be computed for the set to hold exactly ``keys``.

        Args:
            keys: uint8 [n, 32]; repeated keys count once.
            groups: uint8 [n, 32]; units of one group are computed consecutively.
            block_rows: units per block.
            shard_rows: units per shard; default: by kind.
            retry_failed: also recompute failed units.
            threads, code: as in `sightline.cache.plan.Shape`.

        Raises:
            SightlineError: other workers use a different plan.
        """
        shard_rows = shard_rows or SHARD_ROWS[self._kind]
        shape = Shape(block_rows, block_rows, shard_rows, threads, code)
        return self._make_plan(keys, None, shape, groups, retry_failed)

    def add(
        self,
        keys: Keys,
        rows: Mapping[str, pa.Table],
        failed: dict[bytes, Failure] | None = None,
        computed: Mapping[str, Any] | None = None,
        block: int = 0,
    ) -> None:
        """Make the tables of one block durable.

        Args:
            keys: uint8 [n, 32] of the units without an error.
            rows: the tables by name; failed units have a row in the first table.
            failed: key → code, path and reason of failed units.
            computed: device, library versions and batch size, for the new shards.
            block: block of the plan.
        """
        self._append(keys, as_tensors(rows), failed or {}, computed or {})
        self._let_go(block)

    def publish(self) -> TableSetRecord:
        """Assemble shards from the blocks and replace the commit point.

        Raises:
            CacheError: units of the plan were never added.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        kept, rest = self._kept()
        failed = [key for part in kept for key in part.failed]
        if self._unchanged(kept):
            record = self._record
            assert record is not None
            self._output.settle(file.name for file in record.files)
            self._finish(failed)
            return record
        rows = BundleRows(self._kind, [*map(self._bundle, self.blocks), *rest])
        lost = int((rows.find(self._planned) < 0).sum())
        if lost:
            raise CacheError(f"{self.folder}: {lost} planned rows were never computed")
        new = self._table.find(rows.keys) >= 0
        if kept:
            held = np.concatenate([part.keys for part in kept])
            new &= KeyTable(held[sort_order(held)]).find(rows.keys) < 0
        keys = rows.keys[new]
        made = write_table_shards(self._output, self._kind, keys, self.shape.shard_rows, rows)
        shards = [*(part.shard for part in kept), *made]
        self.failures.add({key: about for b in self.blocks for key, about in b.failed.items()})
        self.failures.write()  # before publishing: no kill leaves an error without its reason
        counts = self._count(self.folder, shards)
        record = publish_tables(self._output, self.spec, shards, counts)
        self._finish([*failed, *(key.tobytes() for key in rows.keys[new & rows.failed])])
        return record

    @property
    def published(self) -> TableSetRecord | None:
        return self._record

    def bytes_of(self, rows: int) -> tuple[int, int] | None:
        """As many as the existing set or its finished blocks have per row; None without either."""
        files = [] if self._record is None else self._record.files
        there = sum(len(part.keys) for part in self._published)
        if there:
            each = sum(file.bytes for file in files) / there
            return round(each * rows), round(2 * each * rows)
        there = sum(len(block.keys) + len(block.failed) for block in self.blocks)
        if there:
            each = sum(block.path.stat().st_size for block in self.blocks) / there
            return round(each * rows), round(2 * each * rows)
        return None

    # -- the existing set --------------------------------------------------------------------

    def _open_published(self) -> None:
        self._published, self._record = [], None
        if not (self.folder / FILE_NAME).exists():
            return
        try:
            record = read_tables_record(self.folder, self._kind)
        except CacheError as error:
            self.replaces = [f"the existing set is damaged: {error}"]
            return
        if record.fingerprint != self.spec.fingerprint:
            self.replaces = self.spec.differences(record.spec)
            return
        self._record = record
        for shard in record.shards:
            found = self._opened(shard)
            if found is None:
                name = shard.tables[self._first].name
                self.repaired.append(
                    f"{name}: this table, or another in its shard, is damaged; recomputing"
                )
            else:
                self._published.append(found)

    def _opened(self, shard: TableShard) -> _Published | None:
        if not is_whole(self.folder, shard):
            return None
        key = KEY_OF[self._kind]
        errors = ["error"] if self._kind == "grounding" else []
        try:
            table = read_columns(self.folder / shard.tables[self._first].name, [key, *errors])
            keys = key_column(table[key])
        except CacheError:
            return None
        codes = table["error"].to_pylist() if errors else [""] * len(keys)
        return _Published(shard, keys, tuple(codes))

    def _missing(self, retry_failed: bool) -> NDArray[np.bool_]:
        missing = np.ones(len(self._wanted), dtype=bool)
        for part in self._published:
            found = self._table.find(part.keys)
            again = np.array([retry_failed and code != "" for code in part.errors], dtype=bool)
            missing[found[(found >= 0) & ~again]] = False
        return missing

    def _kept(self) -> tuple[list[_Published], list[Bundle]]:
        """Shards to keep unchanged, and other shards with units to keep."""
        again = KeyTable(self._planned[sort_order(self._planned)])
        whole: list[_Published] = []
        broken: list[_Published] = []
        for part in self._published:
            stays = (self._table.find(part.keys) >= 0) & (again.find(part.keys) < 0)
            if stays.all():
                whole.append(part)
            elif stays.any():
                broken.append(part)
        small = [part for part in whole if len(part.keys) < self.shape.shard_rows / 2]
        if len(small) > MAX_SMALL_SHARDS:
            whole = [part for part in whole if len(part.keys) >= self.shape.shard_rows / 2]
            broken += small
        rest: list[Bundle] = []
        for part in broken:
            tables = {n: read_table(self.folder, n, file) for n, file in part.shard.tables.items()}
            rest.append(Bundle(self._kind, tables, part.shard.computed))
        return whole, rest

    def _bundle(self, block: Block) -> Bundle:
        tables = {name: from_tensor(block.tensor(name)) for name in TABLES_OF[self._kind]}
        return Bundle(self._kind, tables, block.computed)

    def _unchanged(self, kept: Sequence[_Published]) -> bool:
        record = self._record
        return record is not None and not len(self._planned) and len(kept) == len(record.shards)


def write_table_shards(
    output: Output, kind: TableKind, keys: Keys, shard_rows: int, rows: BundleRows
) -> list[TableShard]:
    """Split ``keys`` (uint8 [n, 32], sorted) into shards and write the tables of their units."""
    shards: list[TableShard] = []
    with output.scratch() as made:
        for start in range(0, len(keys), shard_rows):
            found = rows.find(keys[start : start + shard_rows])
            tables = rows.gather(found)
            files = {name: write_table(made, name, table) for name, table in tables.items()}
            shards.append(TableShard(tables=files, computed=merged(rows.computed(found))))
        output.move_in(made)
    return shards
