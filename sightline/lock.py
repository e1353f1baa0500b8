"""One writer at a time: an operating-system lock in the run folder of an output."""

from __future__ import annotations

import errno
import os
import re
import socket
from pathlib import Path
from types import TracebackType

from sightline.errors import BusyError, SightlineError
from sightline.files import token
from sightline.mounts import options_of

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None

_LOCAL_LOCKS = {"nolock", "local_lock=all", "local_lock=posix"}  # options of nfs(5)
_held: set[tuple[int, int]] = set()
"""Device and inode of the locks of this process, which the kernel lets it take again and again."""
_FIRST = b"process "  # what a lock of ours begins with
_TOKEN_LINE = re.compile(r"temporary files ([0-9a-f]{16})")


class WriterLock:
    """Holds ``<run folder>/lock`` while a run writes.

    A POSIX record lock: the kernel drops it when the process dies, however it dies, and decode
    workers that outlive a killed parent do not inherit it. A run whose own parent was killed (DVC,
    a shell) goes on and keeps it. The process and host inside the file are for the message; the
    tokens tell the next run which temporary files a killed one left.

    Attributes:
        abandoned: tokens of processes that were killed while they held this lock.
        found_empty: ``lock`` was there, without a word in it; it is left so again.

    Raises:
        BusyError: another run holds it.
        SightlineError: ``lock`` is somebody else's file, or the file system has no locks.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lock"
        self.abandoned: tuple[str, ...] = ()
        self.found_empty = False
        self._handle: int | None = None
        self._identity = (0, 0)

    def __enter__(self) -> WriterLock:
        if fcntl is None:
            raise SightlineError(f"{self.path}: this system has no file locks; use Linux or macOS")
        while self._handle is None:
            there = os.path.lexists(self.path)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                handle = os.open(
                    self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644
                )
            except FileNotFoundError:  # the folder, removed by a run that has just ended
                continue
            self._identity = _identity(os.fstat(handle))
            if self._identity in _held:
                # closing the file would drop the lock that this process has, so it stays open
                raise BusyError(f"{self.path.parent}: this process is writing here already")
            try:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = os.pread(handle, 200, 0).decode(errors="replace").split("\n")[0]
                os.close(handle)
                raise _refusal(self.path, error, holder or "unknown") from error
            if _seen_by_this_machine_only(self._identity[0]):
                os.close(handle)
                raise SightlineError(
                    f"{self.path}: this network folder is mounted without locks (nolock), so a run "
                    "on another machine would not be seen; mount it with locks, or put the output "
                    "on a local disk"
                )
            if self._in_place():
                self._handle = handle
            else:  # removed with its folder while we waited for it
                os.close(handle)
        found = os.pread(self._handle, 1 << 16, 0)
        self.found_empty = there and not found
        if found and not found.startswith(_FIRST):
            os.close(self._handle)
            self._handle = None
            raise SightlineError(
                f"{self.path}: not a lock of Sightline, so {self.path.parent} is somebody else's; "
                "name another output, or move it away"
            )
        _held.add(self._identity)
        tokens = _TOKEN_LINE.findall(found.decode(errors="replace"))
        self.abandoned = tuple(each for each in tokens if each != token())
        self._write((token(), *self.abandoned))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._handle is not None:
            if kind is None or issubclass(kind, Exception):
                if self.found_empty:
                    os.truncate(self._handle, 0)
                else:
                    self._write(())  # every temporary file is gone
            _held.discard(self._identity)
            os.close(self._handle)  # which releases it
            self._handle = None

    def _write(self, tokens: tuple[str, ...]) -> None:
        assert self._handle is not None
        lines = [f"process {os.getpid()} on {socket.gethostname()}"]
        lines += [f"temporary files {token}" for token in tokens]
        text = "".join(f"{line}\n" for line in lines).encode()
        os.pwrite(self._handle, text, 0)  # first, so that a kill in between loses no token
        os.truncate(self._handle, len(text))

    def _in_place(self) -> bool:
        try:
            return _identity(os.lstat(self.path)) == self._identity
        except FileNotFoundError:
            return False


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _seen_by_this_machine_only(device: int) -> bool:
    """Whether locks on a network file system stay on this machine."""
    return not _LOCAL_LOCKS.isdisjoint(options_of(device))


def _refusal(path: Path, error: OSError, holder: str) -> SightlineError:
    if error.errno in (errno.EACCES, errno.EAGAIN):
        return BusyError(
            f"{path.parent}: another run is writing here ({holder}); wait for it, or end that "
            "process; what it has done is kept"
        )
    return SightlineError(
        f"{path}: this file system has no locks ({error.strerror}); two runs could damage each "
        "other. Put the output on a local disk."
    )
