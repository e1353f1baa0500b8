"""What a set lacks: of a list of sources of rows, in order, none has it, so it is computed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sightline.cache.file_checks import file_fault, file_faults, remembered_faults
from sightline.cache.keys import (
    Keys,
    as_keys,
    at,
    find_keys,
    picked,
    selected,
    unique_sorted,
)
from sightline.cache.parts import Failure, Part, PartName, part_names, read_parts
from sightline.cache.plan import Batch, FoundSet, Plan, Role, Shape, StoredPlan, ordered
from sightline.cache.record import DAMAGED, FILE_NAME, Spec, read_record
from sightline.cache.rows import Rows, rows_in, union
from sightline.cache.verify import Soundness, soundness
from sightline.errors import CacheError
from sightline.files.atomic_files import folders_below
from sightline.files.output import is_run_folder, run_folder_of


def find_set(folder: Path, spec: Spec, *, remember: bool) -> FoundSet:
    """What a run with this ``spec`` finds in a folder; ``remember`` as in `remembered_faults`."""
    none = Soundness(Rows(spec))
    if not (folder / FILE_NAME).exists():
        return FoundSet(none)
    try:
        record = read_record(folder)
    except CacheError as error:
        return FoundSet(none, None, (f"the existing set is damaged: {error}",))
    if record.spec.origin != spec.origin:
        return FoundSet(none, None, tuple(spec.differences(record.spec)))
    faults = remembered_faults(folder, record.files, remember=remember)
    return FoundSet(soundness(folder, record, faults), record)


class Wanted(NamedTuple):
    """The rows that a set shall hold.

    Attributes:
        keys: sorted and distinct: uint8 [n, 32].
        lengths: int32 [n], padded length of each row; None: there is only one shape.
        groups: uint8 [n, 32]; rows of one group are computed consecutively.
    """

    keys: Keys
    lengths: NDArray[np.int32] | None = None
    groups: Keys | None = None

    @classmethod
    def of(
        cls,
        keys: Keys | Sequence[bytes],
        lengths: NDArray[np.int32] | None,
        groups: Keys | None,
    ) -> Wanted:
        """From columns in any order; of equal keys the first counts."""
        keys = as_keys(keys)
        first = unique_sorted(keys)
        return cls(
            at(keys, first),
            None if lengths is None else lengths[first],
            None if groups is None else groups[first],
        )

    def ordered(
        self, fingerprint: str, rows: NDArray[np.bool_], shape: Shape
    ) -> tuple[list[Batch], str]:
        """Some of the rows (bool [n]) in batches, and their digest; see `plan.ordered`."""
        lengths = None if self.lengths is None else self.lengths[rows]
        groups = None if self.groups is None else self.groups[rows]
        return ordered(fingerprint, picked(self.keys, rows), lengths, shape, groups)


def plan_set(
    folder: Path,
    spec: Spec,
    rows: Wanted,
    requested: Shape,
    *,
    retry_failed: bool = False,
    role: Role = Role.ALONE,
    copy_from: Path | None = None,
    remember: bool = False,
) -> Plan:
    """What ``folder`` needs to hold exactly these rows; reads only, beside any run too.

    An interrupted plan goes on if its rows are still what is missing. Otherwise its parts are a
    source of rows, as other sets of the fingerprint are.

    Args:
        requested: how they shall be computed.
        retry_failed: also compute failed rows again; of several workers not those that failed in
            the plan that goes on: another one has tried.
        role: of this process; of a joiner any difference from the others' plan is left to see.
        copy_from: folder of other sets; rows in a set with this fingerprint are copied. Rows that
            this set dropped but still has on disk are always reused.
        remember: keep what of the set is found sound (`remembered_faults`).
    """
    run_folder = run_folder_of(folder)
    found_set = find_set(folder, spec, remember=remember)
    names, stored = part_names(run_folder), StoredPlan.load(run_folder)
    if stored is not None and stored.fingerprint != spec.origin:
        stored = None
    shape = requested
    if stored is not None and any(name.plan == stored.name for name in names):
        # an interrupted run resumes in its original shape, or its rows would not match
        kept = {"batch_size": stored.shape.batch_size, "threads": stored.shape.threads}
        shape = requested.model_copy(update=kept)
    keys = rows.keys
    missing = _missing(found_set.sound, keys, retry_failed=retry_failed)

    def rest_of(reused: Collection[PartName]) -> Plan:
        read = list(read_parts(run_folder, spec, reused, check=role.reads_files))
        parts = [part for _, part in read if part is not None]
        left = missing.copy()
        finished = rows_in(spec, [part.shard for part in parts if part.shard is not None])
        mine = _take(finished, keys, left)
        copies = _copies(
            folder, found_set.sound.rows, copy_from, keys, left, check=role.reads_files
        )
        failed = {} if retry_failed else _failures(keys, left, parts)
        left[find_keys(keys, as_keys(sorted(failed)))] = False
        batches, digest = rows.ordered(spec.origin, left, shape)
        blocks = groupby(batches, key=lambda batch: batch.block)
        sizes = (sum(len(batch.keys) for batch in block) for _, block in blocks)
        file = StoredPlan(
            fingerprint=spec.origin,
            rows=int(left.sum()),
            shape=shape,
            asked=requested,
            parts=tuple(sorted(part.name.file for part in parts)),
            blocks=tuple((size, len(list(same))) for size, same in groupby(sizes)),
            digest=digest,
        )
        damaged = tuple(name for name, part in read if part is None)
        every = union(spec, [mine, *copies])
        sources = every, len(mine), failed
        return Plan(folder, spec, found_set, keys, missing, *sources, batches, file, damaged)

    if stored is not None and (role is not Role.ALONE or not retry_failed):
        plan = rest_of([name for name in names if name.file in stored.parts])
        if role is Role.JOINER or plan.stored.digest == stored.digest:
            return plan
    return rest_of(names)


def _missing(sound: Soundness, keys: Keys, *, retry_failed: bool) -> NDArray[np.bool_]:
    """Which of ``keys`` need computing: bool [n]; of the failed those that `repair` took out."""
    missing = sound.rows.find(keys) < 0
    if not retry_failed:
        failed = as_keys([key for key, code in sound.failed.items() if code != DAMAGED])
        rows = find_keys(keys, failed)
        missing[rows[rows >= 0]] = False
    return missing


def _failures(keys: Keys, rows: NDArray[np.bool_], parts: Sequence[Part]) -> dict[bytes, Failure]:
    """Why some of these rows (bool [n]) failed in the parts, by key."""
    failed = {key: why for part in parts for key, why in part.failed.items()}
    places = find_keys(keys, as_keys(list(failed)))
    inside = selected(places, rows)
    return {key: failed[key] for key, is_inside in zip(failed, inside, strict=True) if is_inside}


def _take(rows: Rows, keys: Keys, left: NDArray[np.bool_], *, check: bool = False) -> Rows:
    """Those of ``rows`` that are ``left`` (bool [n], of the wanted), and then no longer are.

    Args:
        check: read their files, and take none of a damaged one: a new shard gets a new digest.
    """
    mine = rows.only(selected(find_keys(keys, rows.keys), left))
    if check:
        fine = np.array([file_fault(*file) is None for file in mine.files], dtype=bool)
        mine = mine.only(fine[mine.shards])
    left[find_keys(keys, mine.keys)] = False
    return mine


def _copies(
    folder: Path,
    live: Rows,
    root: Path | None,
    keys: Keys,
    left: NDArray[np.bool_],
    *,
    check: bool,
) -> list[Rows]:
    """Rows on disk that need no model: this set's dropped ones, then those of sets below ``root``.

    Skips sets that cannot be read, which do not concern this run, and imported ones: their rows
    would lose their provenance.
    """
    copies = [_take(_dropped(live), keys, left)] if left.any() else []
    below = [] if root is None else folders_below(root, is_run_folder)
    for candidate in sorted(candidate for candidate, files in below if FILE_NAME in files):
        if not left.any():
            break
        if candidate.resolve() == folder.resolve():
            continue
        try:
            record = read_record(candidate)
            if record.spec.origin == live.spec.origin and not record.provenance.imported:
                faults = file_faults(candidate, [record.index]) if check else {}
                rows = soundness(candidate, record, faults).rows
                copies.append(_take(rows, keys, left, check=check))
        except CacheError:
            continue
    return copies


def _dropped(live: Rows) -> Rows:
    """Rows in the shards of a set but not in its index: no manifest wanted them."""
    sizes = np.array([file.record.rows for file in live.files], dtype=np.int64)
    holes = np.flatnonzero(live.live() < sizes)
    places = live.by_shard() if len(holes) else []
    dead = [np.setdiff1d(np.arange(sizes[i]), live.numbers[places[i]]) for i in holes]
    return rows_in(live.spec, [live.files[i] for i in holes], dead)
