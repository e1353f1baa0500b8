"""What a set lacks: of a list of sources of rows, in order, none has it, so it is computed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.atomic_files import folders_below
from sightline.cache.feature_kind import feature_kind
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
from sightline.cache.parts import Failure, Part, PartName, part_names, sound_parts
from sightline.cache.plan import Found, Plan, Role, Shape, StoredPlan, ordered
from sightline.cache.record import DAMAGED, FILE_NAME, FeatureSpec, Spec, read_record
from sightline.cache.rows import Rows, joined, rows_in
from sightline.cache.shards import format_of
from sightline.cache.verify import UsableRows, sound_part
from sightline.errors import CacheError
from sightline.output import is_run_folder, run_folder_of


def block_rows(spec: Spec) -> int:
    """Rows per block: those of the kind of features, a batch of other sets."""
    return feature_kind(spec.kind).block_rows if isinstance(spec, FeatureSpec) else 1


def find_set(folder: Path, spec: Spec, *, remember: bool) -> Found:
    """What a run with this ``spec`` finds in a folder; ``remember`` as in `remembered_faults`."""
    none = UsableRows(Rows(spec))
    if not (folder / FILE_NAME).exists():
        return Found(none)
    try:
        record = read_record(folder)
    except CacheError as error:
        return Found(none, None, (f"the existing set is damaged: {error}",))
    if record.spec.origin != spec.origin:
        return Found(none, None, tuple(spec.differences(record.spec)))
    faults = remembered_faults(folder, record.files, remember=remember)
    return Found(sound_part(folder, record, faults), record)


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
    role: Role = Role.ALONE,
    copy_from: Path | None = None,
    threads: int = 1,
    code: str = "",
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
        retry_failed: also compute failed rows again; of several workers not those that failed in
            the plan that goes on: another one has tried.
        role: of this process; of a joiner any difference from the others' plan is left to see.
        copy_from: folder of other sets; rows in a set with this fingerprint are copied. Rows that
            this set dropped but still has on disk are always reused.
        threads, code: as in `sightline.cache.plan.Shape`.
        remember: keep what of the set is found sound (`remembered_faults`).
    """
    run_folder = run_folder_of(folder)
    rows = shard_rows or format_of(spec).shard_rows
    asked = Shape(
        batch_size=batch_size,
        block_rows=rows_per_block or block_rows(spec),
        shard_rows=rows,
        threads=threads,
        code=code,
    )
    keys = as_keys(keys)
    first = unique_sorted(keys)
    found = find_set(folder, spec, remember=remember)
    names, stored = part_names(run_folder), StoredPlan.load(run_folder)
    if stored is not None and stored.fingerprint != spec.origin:
        stored = None
    shape = asked
    if stored is not None and any(name.plan == stored.name for name in names):
        # an interrupted run resumes in its original shape, or its rows would not match
        kept = {"batch_size": stored.shape.batch_size, "threads": stored.shape.threads}
        shape = asked.model_copy(update=kept)
    wanted = at(keys, first)
    missing = _missing(found.sound, wanted, retry_failed=retry_failed)

    def cut(taken: Collection[PartName]) -> Plan:
        read = list(sound_parts(run_folder, spec, taken, check=role.reads_files))
        parts = [part for _, part in read if part is not None]
        left = missing.copy()
        finished = rows_in(spec, [part.shard for part in parts if part.shard is not None])
        mine = _take(finished, wanted, left)
        others = _copies(folder, found.sound.rows, copy_from, wanted, left, check=role.reads_files)
        failed = {} if retry_failed else _failures(wanted, left, parts)
        left[find_keys(wanted, as_keys(sorted(failed)))] = False
        batches, digest = ordered(
            spec.origin,
            picked(wanted, left),
            None if lengths is None else lengths[first][left],
            shape,
            None if groups is None else groups[first][left],
        )
        blocks = groupby(batches, key=lambda batch: batch.block)
        sizes = (sum(len(batch.keys) for batch in block) for _, block in blocks)
        file = StoredPlan(
            fingerprint=spec.origin,
            rows=int(left.sum()),
            shape=shape,
            asked=asked,
            parts=tuple(sorted(part.name.file for part in parts)),
            blocks=tuple((rows, len(list(same))) for rows, same in groupby(sizes)),
            digest=digest,
        )
        damaged = tuple(name for name, part in read if part is None)
        every = joined(spec, [mine, *others])
        rows = wanted, missing, every, len(mine), failed
        return Plan(folder, spec, found, *rows, batches, file, damaged)

    if stored is not None and (role is not Role.ALONE or not retry_failed):
        plan = cut([name for name in names if name.file in stored.parts])
        if role is Role.JOINER or plan.stored.digest == stored.digest:
            return plan
    return cut(names)


def _missing(sound: UsableRows, keys: Keys, *, retry_failed: bool) -> NDArray[np.bool_]:
    """Which of ``keys`` need computing: bool [n]; of the failed those that `repair` took out."""
    missing = sound.rows.find(keys) < 0
    if not retry_failed:
        failed = as_keys([key for key, code in sound.failed.items() if code != DAMAGED])
        rows = find_keys(keys, failed)
        missing[rows[rows >= 0]] = False
    return missing


def _failures(wanted: Keys, rows: NDArray[np.bool_], parts: Sequence[Part]) -> dict[bytes, Failure]:
    """Why some of these rows (bool [n]) failed in the parts, by key."""
    failed = {key: why for part in parts for key, why in part.failed.items()}
    places = find_keys(wanted, as_keys(list(failed)))
    inside = selected(places, rows)
    return {key: failed[key] for key, is_inside in zip(failed, inside, strict=True) if is_inside}


def _take(rows: Rows, wanted: Keys, left: NDArray[np.bool_], *, check: bool = False) -> Rows:
    """Those of ``rows`` that are ``left`` (bool [n], of the wanted), and then no longer are.

    Args:
        check: read their files, and take none of a damaged one: a new shard gets a new digest.
    """
    mine = rows.only(selected(find_keys(wanted, rows.keys), left))
    if check:
        fine = np.array([file_fault(*file) is None for file in mine.files], dtype=bool)
        mine = mine.only(fine[mine.shards])
    left[find_keys(wanted, mine.keys)] = False
    return mine


def _copies(
    folder: Path,
    live: Rows,
    root: Path | None,
    wanted: Keys,
    left: NDArray[np.bool_],
    *,
    check: bool,
) -> list[Rows]:
    """Rows on disk that need no model: this set's dropped ones, then those of sets below ``root``.

    Skips sets that cannot be read, which do not concern this run, and imported ones: their rows
    would lose their provenance.
    """
    copies = [_take(_dropped(live), wanted, left)] if left.any() else []
    below = [] if root is None else folders_below(root, is_run_folder)
    for other in sorted(other for other, files in below if FILE_NAME in files):
        if not left.any():
            break
        if other.resolve() == folder.resolve():
            continue
        try:
            record = read_record(other)
            if record.spec.origin == live.spec.origin and not record.provenance.imported:
                faults = file_faults(other, [record.index]) if check else {}
                rows = sound_part(other, record, faults).rows
                copies.append(_take(rows, wanted, left, check=check))
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
