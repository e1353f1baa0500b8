"""What a command may replace: only its own files, by name, as listed in its record.

The same rule applies to everything that writes. An output folder has a *record*, a JSON file that
lists which files in the folder are ours. A command replaces and removes those by name, and no other
file; if it needs the name of a file that the record does not list, it refuses. It removes only
empty folders, renames only folders that it made itself, and writes the record last. Files of ours
that the record does not list are named in a second file, the *claims*: those that a run is writing,
or was writing when it was killed, and superseded ones that stay until they are collected.
"""

from __future__ import annotations

import filecmp
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any

from sightline.claims import MOST_BYTES, claims_of, claims_text, read_claims, stays_inside
from sightline.errors import SightlineError
from sightline.files import (
    fsync_file,
    fsync_folder,
    is_mount_point,
    remove_leftovers,
    token,
    write_all,
    write_bytes,
)
from sightline.lock import WriterLock
from sightline.overlap import check_apart

RECORDS = {
    "dataset.json": "a prepared data set",
    "set.json": "a cached set",
    "ground_stats.json": "grounding statistics",
    "run.json": "a training run",
    "report.json": "a report",
    "geometry.json": "a comparison of embedding spaces",
    "export.json": "exported features",
}
"""Every kind of record → what its folder holds."""
_OURS = re.compile(rb'"schema": ?"sightline\.')
_RUN_FILES = ("plan.json", "failures.jsonl", "parts")
"""What runs keep in a run folder, besides its lock."""
_HEAD_BYTES = 4096
_MOST_SYNCED = 100  # files of a folder; more are cheaper to rewrite than to sync

Listed = Callable[[bytes], Collection[str]]
"""Bytes of a record → the names that it lists; SightlineError if the file is not Sightline's."""


class Output:
    """An output folder while a command writes to it; see the module for the rule.

    ```python
    with Output(folder, "dataset.json", json_record("sightline.dataset/1"), inputs) as output:
        with output.scratch() as made:
            ...  # fill the folder `made`
            output.publish(made, {"schema": "sightline.dataset/1", "counts": ...})
    ```

    Args:
        folder: need not exist; may be a link to a folder, a mount point or the working folder.
        record: name of the record in it.
        listed: reads the names that a record lists.
        inputs: files and folders that the command reads; missing ones are ignored.
        worker: such as ``worker 0/2`` if it shares the output with others; else empty.
        patience: seconds to wait for another run to end; a worker waits two, for runs that are
            about to end.

    Attributes:
        folder: the output folder, absolute, links resolved.
        run_folder: where a run keeps its working files: ``<folder>.run`` beside it, or ``.run``
            inside a mount point, because files cannot be renamed into one from outside.
        owned: names of our files, relative to the folder, with ``/`` between parts.
        abandoned: tokens in the names of temporary files that killed runs left; those in the two
            folders themselves have been removed.

    Raises:
        BusyError: another run is writing there.
        SightlineError: the folder is a file, contains an input, is inside one, or does not belong
            to Sightline. Nothing has been changed.
    """

    def __init__(
        self,
        folder: Path,
        record: str,
        listed: Listed,
        inputs: Iterable[Path] = (),
        worker: str = "",
        patience: float = 0.0,
    ) -> None:
        self.given = folder
        self.folder = Path(os.path.realpath(folder))
        self.run_folder = run_folder_of(self.folder)
        self.record = record
        self.abandoned: tuple[str, ...] = ()
        self.owned: set[str] = set()
        self._listed = listed
        self._inputs = [Path(path) for path in inputs]
        self._worker = worker
        self._patience = 2.0 if worker else patience
        self._stack = ExitStack()
        self._scratches = itertools.count()

    def __enter__(self) -> Output:
        self._begin(WriterLock(self.run_folder, self._worker, patience=self._patience))
        return self

    @contextmanager
    def joined(self) -> Iterator[WriterLock]:
        """Write only to the run folder, together with the other workers.

        The first worker holds the lock alone until it shares it.
        """
        lock = WriterLock(self.run_folder, self._worker, join=True)
        self._begin(lock)
        with self._stack:
            yield lock

    def _begin(self, lock: WriterLock) -> None:
        self.check_place()
        with ExitStack() as stack:
            stack.enter_context(lock)
            stack.callback(lambda: self._tidy() if lock.alone and not lock.found_empty else None)
            self.abandoned = lock.abandoned
            for folder in (self.folder, self.run_folder):
                remove_leftovers(folder, lock.abandoned)
            for each in lock.abandoned:
                for left in self.run_folder.glob(f"{self._scratch_of(each).name}*"):
                    shutil.rmtree(left, ignore_errors=True)
            self.owned = set(self._read_record()) | self.claims()
            self._stack = stack.pop_all()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def check_place(self) -> None:
        """Run the checks of entering the folder, without taking the lock.

        Raises:
            SightlineError: as for the class.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise SightlineError(f"{self.given}: is a file, not a folder; name another output")
        self._read_record()
        self.claims()
        self._refuse_another_kind()
        inside = check_apart(self.given, self._inputs)
        if inside is not None and not self._is_new_or_ours():
            raise SightlineError(
                f"{self.given}: is inside the input {inside} and contains other files; name a "
                "new folder"
            )
        check_apart(self.run_folder, self._inputs, holds_only=True)
        run = self.run_folder
        there = [name for name in _RUN_FILES if os.path.lexists(run / name)]
        if there and not os.path.lexists(run / "lock"):
            raise SightlineError(
                f"{run}: contains {', '.join(there)} but no lock of Sightline, so it may belong to "
                f"something else; move it away, or run `touch {run / 'lock'}` if an earlier run "
                "left it"
            )

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A new folder of this run on the output's file system, removed at the end."""
        folder = self._scratch_of(f"{token()}-{next(self._scratches)}")
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def check(self, names: Iterable[str]) -> None:
        """Refuse to start if a file that is not ours has one of ``names``.

        Raises:
            SightlineError: there is one, or a folder on the way to it is a link or a file.
        """
        for name in names:
            self._refuse_detours(name)
            if name not in self.owned:
                self._refuse_if_there(name)

    def claim(self, names: Collection[str]) -> None:
        """Make ``names`` ours, durably, before they are written.

        Raises:
            SightlineError: as for `check`.
        """
        new = set(names) - self.owned
        self.check(new)
        self.remember(new)

    def remember(self, names: Iterable[str]) -> None:
        """Record ``names`` as ours for the next run, in case this one is killed."""
        new = sorted(set(names))
        if not new:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = claims_of(self.folder, self.record)
        if not path.exists():
            write_bytes(path, claims_text([]))
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            # a line truncated by a kill must not swallow the first new one
            lines = [b"\n", *(f"{json.dumps(name)}\n".encode() for name in new)]
            write_all(handle, b"".join(lines), os.fstat(handle).st_size)
            os.fsync(handle)
        finally:
            os.close(handle)
        self.owned.update(new)

    def write(self, name: str, *pieces: bytes | memoryview) -> Path:
        """Replace our file ``name`` with ``pieces``, durably and atomically.

        A file that is not ours is adopted if it has exactly these bytes.
        """
        path = self.folder / name
        self._refuse_detours(name)
        if name not in self.owned and not _holds(path, pieces):
            self.claim([name])
        write_bytes(path, *pieces)
        self.owned.add(name)
        return path

    def move_in(self, made: Path) -> list[str]:
        """Move every file of ``made``, a folder of this run, into the output; returns their names.

        Raises:
            SightlineError: a file that is not ours has one of the names; nothing was moved.
        """
        found = {
            path.relative_to(made).as_posix(): path
            for path in sorted(made.rglob("*"))
            if not path.is_dir()
        }
        _make_durable(made)
        self.move(found)
        return list(found)

    def move(self, files: Mapping[str, Path]) -> None:
        """Move durable files of this run to their names in the output.

        A file that is not ours is adopted if it has exactly the bytes of the new one.

        Raises:
            SightlineError: a file that is not ours has one of the names; nothing was moved.
        """
        for name in files:
            self._refuse_detours(name)
        same = {
            name
            for name, path in files.items()
            if name not in self.owned and _equal(path, self.folder / name)
        }
        self.claim(files.keys() - same)
        self.remember(same)
        for name, path in files.items():
            target = self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
        for parent in {(self.folder / name).parent for name in files}:
            fsync_folder(parent)

    def move_whole(self, made: Path, name: str) -> None:
        """Move the folder ``made`` of this run to an unused name, whole or not at all.

        Raises:
            SightlineError: a folder on the way to the name is a link or a file.
        """
        files = (path for path in made.rglob("*") if not path.is_dir())
        _make_durable(made)
        self.claim([f"{name}/{path.relative_to(made).as_posix()}" for path in files])
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        made.rename(target)
        fsync_folder(target.parent)

    def remove(self, names: Iterable[str]) -> None:
        """Remove those of ``names`` that are ours, and the folders that this leaves empty."""
        gone = sorted(set(names) & self.owned)
        for name in gone:
            if not self._behind_a_link(name):
                (self.folder / name).unlink(missing_ok=True)
        parents = {parent for name in gone for parent in PurePosixPath(name).parents}
        for parent in sorted(parents - {PurePosixPath()}, key=lambda p: -len(p.parts)):
            with suppress(OSError):  # it holds something else
                (self.folder / parent).rmdir()

    def publish(self, made: Path, body: Mapping[str, Any]) -> None:
        """Replace our files with those of ``made``; the record is ``body`` with their names."""
        self.folder.mkdir(parents=True, exist_ok=True)
        names = self.move_in(made)
        text = json.dumps({**body, "files": names}, indent=1, ensure_ascii=False)
        self.replace_record((text + "\n").encode(), names)

    def replace_record(self, data: bytes, names: Collection[str]) -> None:
        """Write the record, which lists ``names``, and remove our other files."""
        self.remember(self.owned - {*names, self.record})
        self.write(self.record, data)
        self.drop_stale(names)

    def drop_stale(self, names: Collection[str]) -> None:
        """Remove our files that are not among ``names``, which the record lists."""
        self.remove(self.owned - {*names, self.record})
        self.settle(names)

    def claims(self) -> set[str]:
        """Names of our files that the record may not list."""
        return read_claims(self.folder, self.record)

    def settle(self, names: Iterable[str]) -> None:
        """Update the claims: the record now lists ``names``, they list our other files."""
        listed = {*names, self.record}
        rest = {name for name in self.owned - listed if os.path.lexists(self.folder / name)}
        self.owned = listed | rest
        path = claims_of(self.folder, self.record)
        if rest:
            write_bytes(path, claims_text(sorted(rest)))
        else:
            path.unlink(missing_ok=True)

    def _refuse_another_kind(self) -> None:
        for name, what in RECORDS.items():
            path = self.folder / name
            if name == self.record or not path.is_file():
                continue
            with path.open("rb") as file:
                if _OURS.search(file.read(_HEAD_BYTES)):
                    raise SightlineError(
                        f"{self.given}: contains {what} ({name}), but this command writes "
                        f"{RECORDS.get(self.record, 'something else')}; name another folder"
                    )

    def _is_new_or_ours(self) -> bool:
        if not self.folder.exists() or (self.folder / self.record).is_file():
            return True  # `_read_record` has refused a record that is not ours
        begun = claims_of(self.folder, self.record).is_file()
        return begun or all(path == self.run_folder for path in self.folder.iterdir())

    def _read_record(self) -> Collection[str]:
        path = self.folder / self.record
        if path.is_dir():
            raise SightlineError(f"{path}: is a folder; move it away, or name another output")
        try:
            if path.stat().st_size > MOST_BYTES:
                raise SightlineError(f"{path}: too large for a record; name another output")
            data = path.read_bytes()
        except FileNotFoundError:
            return ()
        try:
            return {*self._listed(data), self.record}
        except SightlineError as error:
            raise SightlineError(f"{path}: {error}") from None

    def _refuse_detours(self, name: str) -> None:
        """Refuse to write through a link, or where a file has the name of a folder."""
        path = self.folder
        for part in PurePosixPath(name).parts[:-1]:
            path /= part
            if path.is_symlink() or (path.exists() and not path.is_dir()):
                what = "a link" if path.is_symlink() else "a file"
                raise SightlineError(
                    f"{path}: is {what}, but {Path(name).name} belongs in a folder of that name; "
                    "move it away, or name another output"
                )

    def _refuse_if_there(self, name: str) -> None:
        path = self.folder / name
        if os.path.lexists(path):
            raise SightlineError(
                f"{path}: already exists, and {self.record} does not list it as Sightline's; "
                "move it away, or name another output"
            )

    def _behind_a_link(self, name: str) -> bool:
        parents = PurePosixPath(name).parents
        return any((self.folder / parent).is_symlink() for parent in parents if parent.parts)

    def _scratch_of(self, process: str) -> Path:
        return self.run_folder / f"scratch-{process}"

    def _tidy(self) -> None:
        """Remove a run folder that contains only the lock."""
        lock = self.run_folder / "lock"
        with suppress(OSError):
            if list(self.run_folder.iterdir()) == [lock]:
                lock.unlink()
                self.run_folder.rmdir()


def json_record(schema: str) -> Listed:
    """A reader of the names under ``files`` in a JSON record with ``schema``."""

    def listed(data: bytes) -> Collection[str]:
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            body = None
        found = body.get("schema") if isinstance(body, dict) else None
        names = body.get("files") if isinstance(body, dict) else None
        if found != schema or not isinstance(names, list):
            said = f"schema {str(found)[:80]!r}" if isinstance(found, str) else "another file"
            raise SightlineError(
                f"{said}, expected {schema}; this folder belongs to something else, so name "
                "another output, or move it away"
            )
        if not all(isinstance(name, str) and stays_inside(name) for name in names):
            raise SightlineError("lists files outside its folder; move it away")
        return names

    return listed


def run_folder_of(folder: Path) -> Path:
    """Where runs that write to ``folder`` keep their own files; see `Output`."""
    folder = Path(os.path.realpath(folder))
    if is_mount_point(folder):
        return folder / ".run"
    return folder.with_name(folder.name + ".run")


def _holds(path: Path, pieces: Iterable[bytes | memoryview]) -> bool:
    """Whether ``path`` is a plain file with exactly these bytes."""
    if path.is_symlink() or not path.is_file():
        return False
    return path.read_bytes() == b"".join(bytes(piece) for piece in pieces)


def _equal(path: Path, other: Path) -> bool:
    """Whether both are plain files with the same bytes."""
    if other.is_symlink() or not other.is_file():
        return False
    return path.stat().st_size == other.stat().st_size and filecmp.cmp(path, other, shallow=False)


def _make_durable(folder: Path) -> None:
    for root, _, names in os.walk(folder):
        for name in names if len(names) <= _MOST_SYNCED else []:
            fsync_file(Path(root, name))
        fsync_folder(Path(root))
