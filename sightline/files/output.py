"""What a command may replace: only its own files, by name, as listed in its record.

The same rule applies to everything that writes. An output folder has a *record*, a JSON file that
lists which files in the folder are ours. A command replaces and removes those by name, and no other
file; if it needs the name of a file that the record does not list, it refuses. It removes only
empty folders, renames only folders that it made itself, and writes the record last. Before a file
enters, the *next record* (`set.json.next` for `set.json`) lists it, so that it is ours even if the
run is killed. Superseded files that stay until they are collected remain listed there.

An output that is a single file is replaced only if its first bytes show that we wrote it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from sightline.errors import SightlineError
from sightline.files.atomic_files import (
    HOME_REMEDY,
    check_apart,
    fsync,
    is_mount_point,
    replacing,
    write_bytes,
)
from sightline.files.lock import WriterLock

RECORDS = {
    "dataset.json": "a prepared data set",
    "set.json": "a cached set",
    "run.json": "a training run",
    "report.json": "a report",
    "geometry.json": "a comparison of embedding spaces",
    "export.json": "exported features",
}
"""Every kind of record → what its folder holds."""
_OURS = re.compile(rb'"schema": ?"sightline\.')
REMEMBERED = "remembered.parquet"
"""In a run folder: what was read of files (`sightline.cache.file_memory`)."""
PLAN, FAILURES, PARTS = "plan.json", "failures.jsonl", "parts"
"""What runs keep in a run folder, besides its lock (`sightline.cache.plan`, `.parts`)."""
_RUN = ".run"
_SCRATCH = "scratch-"
_HEAD_BYTES = 4096
_MOST_SYNCED = 100  # files of a folder; more are cheaper to rewrite than to sync

_NEXT_SCHEMA = "sightline.next/1"

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
        worker: such as ``worker 0/2`` if it shares the output with others; else empty. A worker
            waits two seconds for a run that is about to end.

    Attributes:
        folder: the output folder, absolute, links resolved.
        run_folder: where a run keeps its working files: ``<folder>.run`` beside it, or ``.run``
            inside a mount point, because files cannot be renamed into one from outside.
        unfinished: folder in it, while the lock is held, in which everything is made before it is
            renamed. Its name is in the lock, so that the next run knows what a killed one left.
        owned: names of our files, relative to the folder, with ``/`` between parts.

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
    ) -> None:
        if folder.parts[:1] == ("~",):
            raise SightlineError(f"{folder}: {HOME_REMEDY}")
        self.place = folder
        self.folder = Path(os.path.realpath(folder))
        if folder.name.endswith(_RUN) or self.folder.name.endswith(_RUN):
            raise SightlineError(
                f"{folder}: a folder NAME{_RUN} is for the files of runs that write to NAME; name "
                "another output, or rename this one if it is one"
            )
        self.run_folder = run_folder_of(self.folder)
        self.unfinished = self.run_folder
        self.record = record
        self.owned: set[str] = set()
        self._next: set[str] = set()
        self._listed = listed
        self._inputs = [Path(path) for path in inputs]
        self._worker = worker
        self._entered = ExitStack()

    def __enter__(self) -> Output:
        patience = 2.0 if self._worker else 0.0
        lock = WriterLock(self.run_folder, self._worker, patience=patience)
        self._entered.enter_context(self._locked(lock))
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.__exit__(*error)

    def beside_others(self) -> AbstractContextManager[WriterLock]:
        """Write only to the run folder, together with the other workers.

        The first worker holds the lock alone until it shares it.
        """
        return self._locked(WriterLock(self.run_folder, self._worker, join=True))

    @contextmanager
    def _locked(self, lock: WriterLock) -> Iterator[WriterLock]:
        self.check_place()
        with lock:
            try:
                self.unfinished = self.run_folder / f"{_SCRATCH}{lock.token}"
                if lock.alone:
                    shutil.rmtree(self.unfinished, ignore_errors=True)
                self.unfinished.mkdir(exist_ok=True)
                self._next = next_names(self.folder, self.record)
                self.owned = self.recorded() | self._next
                yield lock
                if lock.alone:
                    self._settle()
            finally:
                if lock.alone:
                    with suppress(OSError):
                        self.unfinished.rmdir()
                    self._tidy()

    def check_place(self) -> None:
        """Run the checks of entering the folder, without taking the lock."""
        if self.folder.exists() and not self.folder.is_dir():
            raise SightlineError(f"{self.place}: is a file, not a folder; name another output")
        self.recorded()
        next_names(self.folder, self.record)
        self._refuse_another_kind()
        inside = check_apart(self.place, self._inputs)
        if inside is not None and not self._is_new_or_ours():
            raise SightlineError(
                f"{self.place}: is inside the input {inside} and contains other files; name a "
                "new folder"
            )
        check_apart(self.run_folder, self._inputs)
        run = self.run_folder
        if run.exists() and (_device(run) != _device(self.folder) or is_mount_point(run.resolve())):
            leads = f" (a link to {run.readlink()})" if run.is_symlink() else ""
            raise SightlineError(
                f"{run}{leads} and {self.place} lie on two file systems, but what a run makes in "
                "the first is moved into the second; put both on one"
            )
        present = [name for name in (PLAN, FAILURES, PARTS) if os.path.lexists(run / name)]
        if present and not os.path.lexists(run / "lock"):
            raise SightlineError(
                f"{run}: contains {', '.join(present)} but no lock of Sightline, so it may belong "
                f"to something else; move it away, or run `touch {run / 'lock'}` if an earlier run "
                "left it"
            )

    @property
    def begun(self) -> bool:
        """Whether a run was killed here, or left superseded files."""
        return _next_of(self.folder, self.record).is_file()

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A new folder of this run on the output's file system, removed at the end."""
        folder = self.unfinished / secrets.token_hex(8)
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def check(self, names: Iterable[str]) -> None:
        """Refuse ``names`` that a file which is not ours has, or that lie behind a link or file."""
        for name in names:
            path = self.folder / name
            if (detour := self._detour(name)) is not None:
                kind = "a link" if detour.is_symlink() else "a file"
                raise SightlineError(
                    f"{detour}: is {kind}, but {path.name} belongs in a folder of that name; "
                    "move it away, or name another output"
                )
            if name not in self.owned and os.path.lexists(path):
                raise SightlineError(
                    f"{path}: already exists, and {self.record} does not list it as Sightline's; "
                    "move it away, or name another output"
                )

    def claim(self, names: Collection[str]) -> None:
        """Check ``names``, and make them ours durably, before they are written."""
        self.check(names)
        self._list(names)

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Replace our file ``name`` with ``data``, durably and atomically."""
        self.check([name])
        self._list({name} - self.owned)
        write_bytes(self.folder / name, data, via=self.unfinished)

    def move_in(self, source: Path) -> list[str]:
        """Move every file of ``source``, a folder of this run, into the output; return the names.

        If a file that is not ours has such a name, nothing is moved.
        """
        _make_durable(source)
        files = {name: source / name for name in _files_below(source)}
        self.check(files)
        self._list(files.keys() - self.owned)
        for name, path in files.items():
            target = self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            path.chmod(source.stat().st_mode & 0o666)  # safetensors makes its files private
            path.replace(target)
        for parent in {(self.folder / name).parent for name in files}:
            fsync(parent)
        return list(files)

    def remove(self, names: Iterable[str]) -> None:
        """Remove those of ``names`` that are ours, and the folders that this leaves empty."""
        gone = sorted(set(names) & self.owned)
        for name in gone:
            if self._detour(name) is None:
                (self.folder / name).unlink(missing_ok=True)
        parents = {parent for name in gone for parent in PurePosixPath(name).parents}
        for parent in sorted(parents - {PurePosixPath()}, key=lambda p: -len(p.parts)):
            with suppress(OSError):  # it holds something else
                (self.folder / parent).rmdir()

    def publish(self, source: Path, body: Mapping[str, Any]) -> None:
        """Replace our files with those of ``source``; the record is ``body`` with their names."""
        names = self.move_in(source)
        text = json.dumps({**body, "files": names}, indent=1, ensure_ascii=False)
        self.commit((text + "\n").encode())
        self.remove_unlisted()

    def commit(self, data: bytes) -> None:
        """Replace the record; files of ours that it does not list stay, listed in the next one."""
        self._list(self.owned - {*self._listed(data), self.record})
        self.write(self.record, data)

    def remove_unlisted(self, but: Collection[str] = ()) -> None:
        """Remove our files that the record does not list, ``but`` these."""
        self.remove(self.owned - self.recorded() - {*but})

    def recorded(self) -> set[str]:
        """The names that the record lists, and its own."""
        return _names_in(self.folder / self.record, self._listed) | {self.record}

    def _list(self, names: Iterable[str]) -> None:
        """Make ``names`` ours in the next record, durably."""
        new = self._next.union(names)
        if new != self._next:
            self._write_next(new)
            self.owned |= new

    def _settle(self) -> None:
        """Leave in the next record only those of our files that the record does not list."""
        listed = self.recorded()
        present = {name for name in self._next - listed if os.path.lexists(self.folder / name)}
        if present != self._next:
            self._write_next(present)
        self.owned = listed | present

    def _write_next(self, names: set[str]) -> None:
        path = _next_of(self.folder, self.record)
        if names:
            body = {"schema": _NEXT_SCHEMA, "files": sorted(names)}
            text = json.dumps(body, indent=1) + "\n"
            write_bytes(path, text.encode(), via=self.unfinished)
        else:
            path.unlink(missing_ok=True)
        self._next = names

    def _refuse_another_kind(self) -> None:
        for name, kind in RECORDS.items():
            path = self.folder / name
            if name == self.record or not path.is_file():
                continue
            with path.open("rb") as file:
                if _OURS.search(file.read(_HEAD_BYTES)):
                    raise SightlineError(
                        f"{self.place}: contains {kind} ({name}), but this command writes "
                        f"{RECORDS.get(self.record, 'something else')}; name another folder"
                    )

    def _is_new_or_ours(self) -> bool:
        if not self.folder.exists() or (self.folder / self.record).is_file():
            return True  # `recorded` has refused a record that is not ours
        return self.begun or all(path == self.run_folder for path in self.folder.iterdir())

    def _detour(self, name: str) -> Path | None:
        """The link or file in the place of a folder on the way to ``name``, if there is one."""
        path = self.folder
        for part in PurePosixPath(name).parts[:-1]:
            path /= part
            if path.is_symlink() or (path.exists() and not path.is_dir()):
                return path
        return None

    def _tidy(self) -> None:
        """Remove a run folder that contains only the lock."""
        lock = self.run_folder / "lock"
        with suppress(OSError):
            if list(self.run_folder.iterdir()) == [lock]:
                lock.unlink()
                self.run_folder.rmdir()


def next_names(folder: Path, record: str) -> set[str]:
    """Names of our files in ``folder`` that its record may not list: those of the next record."""
    return _names_in(_next_of(folder, record), json_record(_NEXT_SCHEMA))


def _next_of(folder: Path, record: str) -> Path:
    return folder / f"{record}.next"


def _names_in(path: Path, listed: Listed) -> set[str]:
    """The names that a record lists; empty if there is none."""
    if not os.path.lexists(path):
        return set()
    try:
        return set(listed(path.read_bytes() if path.is_file() else b""))
    except SightlineError as error:
        raise SightlineError(f"{path}: {error}") from None


def json_record(schema: str) -> Listed:
    """A reader of the names under ``files`` in a JSON record with ``schema``."""

    def listed(data: bytes) -> Collection[str]:
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            body = None
        actual = body.get("schema") if isinstance(body, dict) else None
        names = body.get("files") if isinstance(body, dict) else None
        if actual != schema or not isinstance(names, list):
            fault = f"schema {str(actual)[:80]!r}" if isinstance(actual, str) else "another file"
            raise SightlineError(
                f"{fault}, expected {schema}; this folder belongs to something else, so name "
                "another output, or move it away"
            )
        if not all(isinstance(name, str) and _stays_inside(name) for name in names):
            raise SightlineError("lists files outside its folder; move it away")
        return names

    return listed


def run_folder_of(folder: Path) -> Path:
    """Where runs that write to ``folder`` keep their own files; see `Output`."""
    folder = Path(os.path.realpath(folder))
    if is_mount_point(folder):
        return folder / _RUN
    return folder.with_name(folder.name + _RUN)


def is_run_folder(folder: Path) -> bool:
    """Whether runs keep their files there, so that no output is at or below it."""
    names = ("lock", REMEMBERED, PLAN, FAILURES, PARTS)
    return folder.name.endswith(_RUN) and any(os.path.lexists(folder / name) for name in names)


@contextmanager
def replacing_file(path: Path, mark: bytes, inputs: Iterable[Path] = ()) -> Iterator[Path]:
    """A path to write to; it replaces the file ``path`` if the block ends without an error.

    A link is replaced, not what it leads to.

    Args:
        mark: bytes near the beginning of every such file that Sightline writes.
        inputs: as for `Output`.
    """
    check_output_file(path, mark, inputs)
    with replacing(path) as part:
        yield part


def check_output_file(path: Path, mark: bytes, inputs: Iterable[Path] = ()) -> None:
    """Refuse what `replacing_file` would, for commands that work for a while before they write."""
    if path.is_dir():
        raise SightlineError(f"{path}: is a folder; name the file to write")
    inside = check_apart(path, inputs)
    if inside is not None:
        raise SightlineError(f"{path}: is inside the input {inside}; write it somewhere else")
    if not path.exists():
        return
    if path.is_file() and not path.stat().st_size:
        return  # such as `mktemp` creates
    if not path.is_file():
        raise SightlineError(f"{path}: already exists; move it away, or name another file")
    with path.open("rb") as file:
        if mark not in file.read(_HEAD_BYTES):
            raise SightlineError(
                f"{path}: already exists and was not written by this command; move it away, or "
                "name another file"
            )


def write_file(path: Path, data: bytes, mark: bytes, inputs: Iterable[Path] = ()) -> None:
    """Replace our file ``path`` with ``data``, atomically; see `replacing_file`."""
    assert mark in data[:_HEAD_BYTES], f"{path.name}: lacks its mark {mark!r}"
    with replacing_file(path, mark, inputs) as part:
        part.write_bytes(data)


def run_files(run_folder: Path) -> list[Path]:
    """What runs keep in a run folder: their lock, and what a killed one left."""
    files = [run_folder / name for name in ("lock", REMEMBERED, PLAN, FAILURES, PARTS)]
    for name in (PARTS, f"{_SCRATCH}*"):
        files += [path for folder in run_folder.glob(name) for path in folder.rglob("*")]
    return [path for path in files if path.is_file() or path.is_symlink()]


def _device(path: Path) -> int:
    """The file system that ``path`` is on, or would be made on."""
    return next(place for place in (path, *path.parents) if place.exists()).stat().st_dev


def _stays_inside(name: str) -> bool:
    """Whether a name leads to a file in its own folder or below."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def _files_below(folder: Path) -> list[str]:
    """The names of the files in ``folder`` and its folders, with ``/`` between parts."""
    paths = sorted(path for path in folder.rglob("*") if not path.is_dir())
    return [path.relative_to(folder).as_posix() for path in paths]


def _make_durable(folder: Path) -> None:
    for root, _, names in os.walk(folder):
        for name in names if len(names) <= _MOST_SYNCED else []:
            fsync(Path(root, name))
        fsync(Path(root))
