"""What a run finds: the set in its folder, rows it dropped, and the same rows in other sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.atomic_files import folders_below
from sightline.cache.file_checks import file_fault, file_faults, remembered_faults
from sightline.cache.keys import Keys, as_keys, find_keys, selected
from sightline.cache.record import DAMAGED, FILE_NAME, SetRecord, Spec, read_record
from sightline.cache.rows import Rows, rows_in
from sightline.cache.verify import UsableRows, sound_part
from sightline.errors import CacheError


class ReusableRows:
    """The set in a folder, as far as a run with this ``spec`` can use it.

    Args:
        remember: keep what is found sound (`remembered_faults`).

    Attributes:
        record: that of the set; None if there is none that can be used.
        sound: what can be used of it.
        replaces: why a set that is there cannot be used; empty if it can.
    """

    def __init__(self, folder: Path, spec: Spec, *, remember: bool) -> None:
        self.folder, self.spec = folder, spec
        self.record: SetRecord | None = None
        self.sound = UsableRows(Rows(spec))
        self.replaces: list[str] = []
        if not (folder / FILE_NAME).exists():
            return
        try:
            record = read_record(folder)
        except CacheError as error:
            self.replaces = [f"the existing set is damaged: {error}"]
            return
        if record.fingerprint != spec.fingerprint:
            self.replaces = spec.differences(record.spec)
            return
        self.record = record
        faults = remembered_faults(folder, record.files, remember=remember)
        self.sound = sound_part(folder, record, faults)

    def missing(self, keys: Keys, *, retry_failed: bool) -> NDArray[np.bool_]:
        """Which of ``keys`` (uint8 [n, 32], sorted) need computing: bool [n].

        Args:
            retry_failed: failed rows too; those that `repair` took out always do.
        """
        missing = self.sound.rows.find(keys) < 0
        if not retry_failed:
            failed = [key for key, code in self.sound.failed.items() if code != DAMAGED]
            rows = find_keys(keys, as_keys(failed))
            missing[rows[rows >= 0]] = False
        return missing

    def copies(
        self, keys: Keys, missing: NDArray[np.bool_], root: Path | None, *, check: bool
    ) -> tuple[list[Rows], NDArray[np.bool_]]:
        """Rows on disk that need no model: this set's dropped ones, then those of other sets.

        Args:
            root: folder of other sets.
            check: read their files, and copy from none that is damaged.

        Returns:
            the rows, and which of the wanted keys they are of: bool [n].
        """
        left, copies = missing.copy(), []
        for rows in self._on_disk(root, check):
            if not left.any():
                break
            places = find_keys(keys, rows.keys)
            mine = rows.only(selected(places, left))
            if check and not self.owns(mine):
                # a new shard gets a new digest: copying damaged rows would give them a valid one
                faults = [file_fault(*file) for file in mine.files]
                fine = np.array([fault is None for fault in faults], dtype=bool)
                mine = mine.only(fine[mine.shards])
            if len(mine):
                copies.append(mine)
                left[find_keys(keys, mine.keys)] = False
        return copies, missing & ~left

    def _on_disk(self, root: Path | None, check: bool) -> Iterator[Rows]:
        """Dropped rows of this set, and the rows of other sets with its fingerprint, by path.

        Skips sets that cannot be read, which do not concern this run, and imported ones: their
        rows would lose their provenance.
        """
        yield self._dropped_rows()
        below = [] if root is None else folders_below(root, lambda name: name.endswith(".run"))
        for folder in sorted(folder for folder, files in below if FILE_NAME in files):
            if folder.resolve() == self.folder.resolve():
                continue
            try:
                record = read_record(folder)
                if record.fingerprint == self.spec.fingerprint and not record.provenance.imported:
                    faults = file_faults(folder, [record.index]) if check else {}
                    yield sound_part(folder, record, faults).rows
            except CacheError:
                continue

    def _dropped_rows(self) -> Rows:
        """Rows in the shards of this set but not in its index: no manifest wanted them."""
        sound = self.sound.rows
        sizes = np.array([file.record.rows for file in sound.files], dtype=np.int64)
        with_dropped = np.flatnonzero(sound.live() < sizes)
        if not len(with_dropped):
            return Rows(self.spec)
        live = sound.by_shard()
        dead = [np.setdiff1d(np.arange(sizes[i]), sound.numbers[live[i]]) for i in with_dropped]
        return rows_in(self.spec, [sound.files[i] for i in with_dropped], dead)

    def owns(self, rows: Rows) -> bool:
        """Whether rows are in shards of this set."""
        return any(file.folder == self.folder for file in rows.files)

    def kept(self, keys: Keys, again: NDArray[np.bool_]) -> tuple[Rows, dict[bytes, str]]:
        """Rows of the set that are still wanted, and the codes of rows that remain failed.

        Args:
            again: which of the wanted rows are computed or copied: bool [n].
        """
        bad = as_keys(sorted(self.sound.failed))
        places = find_keys(keys, bad)
        stays = selected(places, ~again)
        failed = {key.tobytes(): self.sound.failed[key.tobytes()] for key in bad[stays]}
        rows = self.sound.rows
        return rows.only(find_keys(keys, rows.keys) >= 0), failed

    def is_complete(self, kept: Rows, failed: Mapping[bytes, str]) -> bool:
        """Whether the set is sound and has these rows and failures, so that nothing changes it."""
        sound = self.sound
        whole = len(kept) == len(sound.rows) and len(failed) == len(sound.failed)
        return whole and not sound.dropped and not sound.index_fault
