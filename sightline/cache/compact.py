"""Compact and gc: reduce a set to what its record lists, and compact it where rows are dead."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sightline.cache.keys import as_keys, sort_order
from sightline.cache.parts import files_of, fingerprint_of, loose_shards, part_names
from sightline.cache.plan import StoredPlan
from sightline.cache.publish import commit_rows, write_shards
from sightline.cache.record import FILE_NAME, SetRecord, read_record, set_output
from sightline.cache.shards import format_of
from sightline.cache.verify import require_all_sound
from sightline.errors import CacheError, Unfinished
from sightline.files.atomic_files import folders_below
from sightline.files.lock import WriterLock
from sightline.files.output import (
    PARTS,
    RECORDS,
    Output,
    is_run_folder,
    next_names,
    run_files,
    run_folder_of,
)
from sightline.wording import counted


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
    kept. Superseded files stay as after any publication, `collect` removes them.

    Args:
        shard_rows: rows per shard; default: as in a run.
    """
    with set_output(folder) as output:
        return _compact(output, shard_rows)


def _compact(output: Output, shard_rows: int | None) -> SetRecord:
    record = read_record(output.place)
    usable = require_all_sound(output.place, record)
    keys = np.concatenate([usable.rows.keys, as_keys(list(usable.failed))])
    live = usable.rows.live()
    full = [shard for shard, rows in zip(record.shards, live, strict=True) if rows == shard.rows]
    size = shard_rows or format_of(record.spec).shard_rows
    rows = write_shards(output, keys[sort_order(keys)], size, usable.rows, full)
    return commit_rows(output, [rows], usable.failed, record.provenance, record.cut)


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


def collect(folder: Path, shard_rows: int | None = None) -> Garbage:
    """Remove what a set no longer references from its folder: files, then rows inside shards.

    A set with such rows is compacted, which takes room. Leaves other files alone.

    Args:
        shard_rows: as of `compact`.

    Raises:
        Unfinished: there is no room for a shard; the files are gone, the set is as it was.
    """
    with set_output(folder) as output:
        before = garbage(folder)
        size = read_record(folder).size + sum(before.files.values())
        _free(output, before)
        failed: OSError | None = None
        try:
            if before.rows:
                _compact(output, shard_rows)
        except OSError as error:
            failed = error
        finally:
            after = garbage(folder)
            _free(output, after)
        freed = max(0, size - read_record(folder).size)
        files = before.files | after.files
        if failed is not None:
            raise Unfinished(
                f"{folder}: {failed.strerror or failed}; its shards still hold "
                f"{counted(before.rows, 'dropped row')}. Make room on this disk and run "
                "`sightline cache gc` again",
                Garbage(files, 0, freed),
            ) from failed
        return Garbage(files, before.rows, freed)


def _free(output: Output, waste: Garbage) -> None:
    """Remove the files of ``waste``."""
    output.remove(waste.files)
    for part in _strange_parts(output.folder).values():
        part.unlink(missing_ok=True)
    with suppress(OSError):  # it holds others
        (output.run_folder / PARTS).rmdir()


def lost_runs(top: Path) -> dict[Path, Garbage]:
    """The run folders at and below ``top`` whose output is gone, and what of ours they hold."""
    lost: dict[Path, Garbage] = {}
    for parent, _ in folders_below(top, is_run_folder):
        for run_folder in sorted(path for path in parent.iterdir() if is_run_folder(path)):
            name = run_folder.name.removesuffix(".run")
            folder = run_folder.with_name(name) if name else parent
            if not any((folder / record).is_file() for record in RECORDS):
                files = {path: path.lstat().st_size for path in run_files(run_folder)}
                names = {path.relative_to(run_folder).as_posix(): files[path] for path in files}
                lost[run_folder] = Garbage(names, 0, sum(files.values()))
    return lost


def remove_run(run_folder: Path) -> None:
    """Remove what runs left in their folder, and the folder unless it holds something else.

    Raises:
        BusyError: a run is writing there.
    """
    with WriterLock(run_folder):
        for path in run_files(run_folder):
            path.unlink(missing_ok=True)
    for folder in (run_folder / PARTS, run_folder):
        with suppress(OSError):  # it holds something else
            folder.rmdir()


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
                if plan and fingerprint_of(run_folder, name) == plan.fingerprint:
                    mine.add(name.plan)
                    continue
            strange |= {f"{PARTS}/{file.name}": file for file in files_of(run_folder, name)}
    return strange | {f"{PARTS}/{file.name}": file for file in loose_shards(run_folder)}
