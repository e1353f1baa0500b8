"""Compact and gc: reduce a set to exactly the files of a clean run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sightline.cache.commit import commit, write_shards
from sightline.cache.keys import Keys, as_keys, sort_order
from sightline.cache.parts import FOLDER as PARTS
from sightline.cache.parts import note_of, part_names
from sightline.cache.plan import StoredPlan
from sightline.cache.record import FILE_NAME, SetRecord, read_record, set_output
from sightline.cache.shards import format_of
from sightline.cache.verify import UsableRows, all_sound
from sightline.errors import CacheError
from sightline.output import Output, next_names, run_folder_of


@dataclass(frozen=True)
class Garbage:
    """What `collect` removed, or would remove.

    Attributes:
        files: name → bytes of superseded files, leftovers of killed runs, and parts of interrupted
            runs (``parts/…``) that the next one cannot go on with.
        rows: rows in live shards that the index no longer references.
        bytes: total bytes freed, including those rows.
    """

    files: dict[str, int]
    rows: int
    bytes: int


def compact(folder: Path, shard_rows: int | None = None) -> SetRecord:
    """Rewrite a set into the files that a clean run over its keys would have written.

    Splits the sorted keys, including failed rows, into full shards; shards that already match are
    kept. Superseded files stay on disk until `collect`.

    Args:
        shard_rows: rows per shard; default: as in a run.
    """
    with set_output(folder) as output:
        record = read_record(folder)
        usable = all_sound(folder, record)
        keys = np.concatenate([usable.rows.keys, as_keys(list(usable.failed))])
        cut = shard_rows or format_of(record.spec).shard_rows
        return _rewrite(output, record, usable, [keys[sort_order(keys)]], cut)


def garbage(folder: Path) -> Garbage:
    """The parts of a set's folder that no reader needs any more."""
    record = read_record(folder)
    listed = {file.name for file in record.files}
    ours = next_names(folder, FILE_NAME) - listed
    paths = {name: folder / name for name in sorted(ours) if "/" not in name}
    paths |= _strange_parts(folder)
    files = {name: path.lstat().st_size for name, path in paths.items() if path.is_file()}
    held = sum(shard.rows for shard in record.shards)
    rows = held - record.rows
    dead = sum(shard.bytes for shard in record.shards) * rows // max(held, 1)
    return Garbage(files, rows, sum(files.values()) + dead)


def collect(folder: Path) -> Garbage:
    """Remove what a set no longer references from its folder: files, and rows inside shards.

    Rewrites shards with such rows. Leaves other files alone.
    """
    with set_output(folder) as output:
        before = garbage(folder)
        if before.rows:
            record = read_record(folder)
            usable = all_sound(folder, record)
            parts = [usable.rows.keys[rows] for rows in usable.rows.by_shard() if len(rows)]
            _rewrite(output, record, usable, parts, max(shard.rows for shard in record.shards))
        removed = garbage(folder).files
        output.remove(removed)
        for part in _strange_parts(folder).values():
            part.unlink(missing_ok=True)
        with suppress(OSError):  # it holds others
            (output.run_folder / PARTS).rmdir()
        return Garbage(removed, before.rows, before.bytes)


def _strange_parts(folder: Path) -> dict[str, Path]:
    """``parts/NAME`` → finished parts beside the set of another fingerprint than the plan there."""
    run_folder = run_folder_of(folder)
    plan, names = StoredPlan.load(run_folder), part_names(run_folder)
    mine = {name.plan for name in names if plan and name.file in plan.parts}
    mine |= {plan.name} if plan else set()
    strange: dict[str, Path] = {}
    for name in names:
        if name.plan not in mine:
            with suppress(OSError, CacheError):
                if plan and note_of(run_folder, name)["fingerprint"] == plan.fingerprint:
                    mine.add(name.plan)
                    continue
            strange[f"{PARTS}/{name.file}"] = run_folder / PARTS / name.file
    return strange


def _rewrite(
    output: Output, record: SetRecord, usable: UsableRows, parts: Sequence[Keys], shard_rows: int
) -> SetRecord:
    """Republish the rows of a set: each part (sorted keys) is split into separate shards."""
    live = usable.rows.live()
    full = [shard for shard, rows in zip(record.shards, live, strict=True) if rows == shard.rows]
    shards = [write_shards(output, keys, shard_rows, usable.rows, full) for keys in parts]
    # a set without rows has no shards
    return commit(output, shards or [usable.rows], usable.failed, record.provenance, record.cut)
