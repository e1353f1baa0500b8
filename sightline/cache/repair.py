"""Repair: take damaged shards out of a set."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from sightline.cache.file_checks import Progress, file_faults
from sightline.cache.publish import commit_rows
from sightline.cache.record import FileRecord, read_record, set_output
from sightline.cache.verify import Soundness, soundness, verify
from sightline.errors import CacheError


def repair(folder: Path, progress: Progress = lambda _: None) -> Soundness:
    """Read every byte of the set in ``folder`` and take out damaged shards.

    Their rows leave the index, to be computed by the next run, then their files are removed;
    everything else is unchanged. A damaged index is rebuilt; it was the only list of failed rows,
    so these will be retried.
    """
    with set_output(folder) as output:
        record = read_record(folder)
        _require_readable(folder, record.files)
        damaged = file_faults(folder, record.files, progress)
        usable = soundness(folder, record, damaged)
        if not usable.lines() and not verify(folder):
            return usable
        commit_rows(output, [usable.rows], usable.failed, record.provenance, record.cut)
        output.remove(usable.dropped)
        return usable


def _require_readable(folder: Path, files: Sequence[FileRecord]) -> None:
    """Raise for an unreadable file: missing permission does not mean damage."""
    for file in files:
        path = folder / file.name
        if path.exists() and not os.access(path, os.R_OK):
            raise CacheError(f"{path}: no permission to read; nothing was repaired")
