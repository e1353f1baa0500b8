"""The plan of a set: which rows are there, which are copied, which are to be computed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.cache.feature_kind import feature_kind
from sightline.cache.index import INDEX_BYTES
from sightline.cache.keys import (
    KEY_BYTES,
    Keys,
    as_keys,
    at,
    find_keys,
    picked,
    selected,
    unique_sorted,
)
from sightline.cache.parts import Failure, Part, PartName, part_names, sound_parts
from sightline.cache.plan import Batch, Shape, StoredPlan, ordered
from sightline.cache.record import FeatureSpec, Spec
from sightline.cache.reusable_rows import ReusableRows
from sightline.cache.rows import Rows, rows_in
from sightline.cache.shards import Numbers, format_of
from sightline.output import run_folder_of


def block_rows(spec: Spec) -> int:
    """Rows per block: those of the kind of features, a batch of other sets."""
    return feature_kind(spec.kind).block_rows if isinstance(spec, FeatureSpec) else 1


@dataclass(frozen=True, eq=False)
class Plan:
    """What a set needs to hold exactly its wanted rows.

    Attributes:
        folder: folder of the set.
        spec: what determines the content.
        found: the set that is there, as far as it can be used.
        wanted: keys of the whole set, sorted: uint8 [n, 32].
        to_compute: which of them it computes: bool [n].
        copied: which of them need no model, as other sets and dropped rows have them: bool [n].
        resumed: which of them are in parts of other plans: bool [n].
        sources: the rows that are copied or resumed.
        failed: rows of these parts that failed, with code, path and reason.
        batches: the rows that it computes, in their order.
        stored: what the plan's file says of it.
        damaged: parts of other plans that cannot be read.
    """

    folder: Path
    spec: Spec
    found: ReusableRows
    wanted: Keys
    to_compute: NDArray[np.bool_]
    copied: NDArray[np.bool_]
    resumed: NDArray[np.bool_]
    sources: tuple[Rows, ...]
    failed: dict[bytes, Failure]
    batches: Sequence[Batch] = field(repr=False)
    stored: StoredPlan
    damaged: tuple[PartName, ...] = ()

    @property
    def shape(self) -> Shape:
        """How rows are computed."""
        return self.stored.shape

    def bytes_to_write(self, to_do: int) -> tuple[int, int] | None:
        """Bytes of parts for the rows still ``to_do``, and of the new shards and the index.

        The size of a row that is not of numbers is that of the rows there are; None if there are
        none.
        """
        kind = format_of(self.spec)
        if isinstance(kind, Numbers):
            size = float(kind.row_bytes + KEY_BYTES)
        else:
            files = [file.record for rows in self.sources for file in rows.files]
            files += self.found.record.shards if self.found.record else ()
            if not files:
                return None
            size = sum(file.bytes for file in files) / sum(file.rows for file in files)
        new = int((self.to_compute | self.copied | self.resumed).sum())
        index = len(self.wanted) * INDEX_BYTES if new else 0
        return round(to_do * size), round(new * size) + index

    @property
    def lines(self) -> list[str]:
        """What was damaged and is computed again, and what an interrupted run decided."""
        lines = [*self.found.sound.lines(), *map(repaired, self.damaged)]
        asked, kept = self.stored.asked.batch_size, self.shape.batch_size
        if asked != kept:
            lines.append(
                f"batches of {kept}, as the interrupted run had, not of {asked}; delete "
                f"{run_folder_of(self.folder)} to start over"
            )
        return lines

    def done(self, names: Iterable[PartName]) -> set[int]:
        """The blocks of which a part is among these."""
        plan, count = self.stored.name, len(self.stored.blocks)
        return {name.block for name in names if name.plan == plan and name.block < count}


def repaired(name: PartName) -> str:
    """What is said of a damaged part."""
    return f"{name.file}: damaged part of an interrupted run; recomputing its rows"


def plan_set(
    folder: Path,
    spec: Spec,
    keys: Keys | Sequence[bytes],
    lengths: NDArray[np.int32] | None = None,
    *,
    batch_size: int,
    rows_per_block: int | None = None,
    shard_rows: int | None = None,
    groups: Keys | None = None,
    retry_failed: bool = False,
    resume_failed: bool = False,
    joins: bool = False,
    copy_from: Path | None = None,
    threads: int = 1,
    code: str = "",
    check: bool = True,
    remember: bool = False,
) -> Plan:
    """What ``folder`` needs to hold exactly ``keys``; reads only, beside any run too.

    An interrupted plan goes on if its rows are still what is missing. Otherwise its parts are a
    source of rows, as other sets of the fingerprint are.

    Args:
        keys: uint8 [n, 32]; repeated keys count once.
        lengths: int32 [n], padded length of each row, or None if there is only one shape.
        batch_size: rows per batch, including padding.
        rows_per_block: rows that are finished together; None: as `block_rows` says.
        shard_rows: rows per shard; None: as fit into about 64 MiB.
        groups: uint8 [n, 32]; rows of one group are computed consecutively.
        retry_failed: also compute failed rows again.
        resume_failed: but not those that failed in the plan that goes on: another worker has tried.
        joins: others are at work, so only their plan will do; any difference is left to see.
        copy_from: folder of other sets; rows in a set with this fingerprint are copied. Rows that
            this set dropped but still has on disk are always reused.
        threads, code: as in `sightline.cache.plan.Shape`.
        check: read the files of others that rows are copied from, and use no damaged one. Of
            several workers only the one that publishes does.
        remember: keep what of the set is found sound (`remembered_faults`).
    """
    run_folder = run_folder_of(folder)
    rows = shard_rows or format_of(spec).shard_rows
    asked = Shape(batch_size, rows_per_block or block_rows(spec), rows, threads, code)
    keys = as_keys(keys)
    first = unique_sorted(keys)
    found = ReusableRows(folder, spec, remember=remember)
    names, stored = part_names(run_folder), StoredPlan.load(run_folder)
    if stored is not None and stored.fingerprint != spec.fingerprint:
        stored = None
    shape = asked
    if stored is not None and any(name.plan == stored.name for name in names):
        # an interrupted run resumes in its original shape, or its rows would not match
        shape = replace(asked, batch_size=stored.shape.batch_size, threads=stored.shape.threads)
    wanted = at(keys, first)
    missing = found.missing(wanted, retry_failed=retry_failed)

    def cut(taken: Collection[PartName]) -> Plan:
        read = list(sound_parts(run_folder, spec, taken, check=check))
        parts = [part for _, part in read if part is not None]
        sources, copied, resumed = _sources(found, wanted, missing, parts, copy_from, check)
        rows, failed = missing & ~copied & ~resumed, {}
        if not retry_failed:
            failed = _failures(wanted, rows, parts)
            rows[find_keys(wanted, as_keys(sorted(failed)))] = False
        batches, digest = ordered(
            spec.fingerprint,
            picked(wanted, rows),
            None if lengths is None else lengths[first][rows],
            shape,
            None if groups is None else groups[first][rows],
        )
        blocks = groupby(batches, key=lambda batch: batch.block)
        file = StoredPlan(
            spec.fingerprint,
            int(rows.sum()),
            shape,
            asked,
            frozenset(part.name.file for part in parts),
            tuple(sum(len(batch.keys) for batch in block) for _, block in blocks),
            digest,
        )
        return Plan(
            *(folder, spec, found, wanted, rows, copied, resumed, sources, failed, batches, file),
            damaged=tuple(name for name, part in read if part is None),
        )

    if stored is not None and (resume_failed or not retry_failed):
        plan = cut([name for name in names if name.file in stored.parts])
        if joins or plan.stored.digest == stored.digest:
            return plan
    return cut(names)


def _failures(wanted: Keys, rows: NDArray[np.bool_], parts: Sequence[Part]) -> dict[bytes, Failure]:
    """Why some of these rows (bool [n]) failed in the parts, by key."""
    failed = {key: why for part in parts for key, why in part.failed.items()}
    places = find_keys(wanted, as_keys(list(failed)))
    inside = selected(places, rows)
    return {key: failed[key] for key, is_inside in zip(failed, inside, strict=True) if is_inside}


def _sources(
    found: ReusableRows,
    wanted: Keys,
    missing: NDArray[np.bool_],
    parts: Sequence[Part],
    copy_from: Path | None,
    check: bool,
) -> tuple[tuple[Rows, ...], NDArray[np.bool_], NDArray[np.bool_]]:
    """Rows that need no model; which are in other sets or dropped, and which in parts: bool [n]."""
    sources, left = [], missing.copy()
    files = [part.shard for part in parts if part.shard is not None]
    finished = rows_in(found.spec, files)
    places = find_keys(wanted, finished.keys)
    mine = finished.only(selected(places, left))
    resumed = np.zeros_like(left)
    resumed[find_keys(wanted, mine.keys)] = True
    left &= ~resumed
    if len(mine):
        sources.append(mine)
    copies, copied = found.copies(wanted, left, copy_from, check=check)
    return (*sources, *copies), copied, resumed
