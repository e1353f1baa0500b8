"""One writer at a time: an operating-system lock in the run folder of an output."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import socket
import time
from pathlib import Path
from typing import Any

from sightline.errors import BusyError, SightlineError
from sightline.files.atomic_files import options_of

_LOCAL_LOCKS = {"nolock", "local_lock=all", "local_lock=posix"}
"""Options of nfs(5) with which other machines do not see the locks of this one."""
_held: set[tuple[int, int]] = set()
"""Device and inode of the locks of this process; the kernel would let it take them again."""
_OURS = (b"process ", b"worker ")  # how a lock of ours begins
_SHARED = b"shared\n"
_TOKEN = re.compile(rb"^[0-9a-f]{16}$", re.MULTILINE)
_WAIT = 0.02  # seconds between polls of a lock that a worker plans or publishes under
_GRACE = 1.0  # seconds that a worker which took the lock needs to write its line into it


class WriterLock:
    """Holds ``<run folder>/lock`` while a run writes.

    A POSIX record lock: the kernel releases it however the process dies, and decode workers that
    outlive a killed parent do not inherit it. A run whose own parent (DVC, a shell) was killed
    continues and keeps it. The process and host in the file are for the message; its second line
    is a token.

    A run locks every byte of the file. Workers, which share an output, share a lock on its first
    byte, and each locks the bytes of the blocks that it is computing. The first worker locks every
    byte until it calls `share`, which it writes into the file; the others wait for that. A worker
    that finds the lock free just after a run has ended is the first one again.

    Args:
        folder: the run folder.
        worker: such as ``worker 0/2`` if it shares the output, to show the others; else empty.
        join: share the lock with other workers.
        patience: seconds to wait for others to end, without ``join``.

    Attributes:
        alone: no other run or worker holds it.
        token: a random name, which runs keep for as long as the file is there: what has it in its
            own name is theirs.

    Raises:
        BusyError: another run holds it.
    """

    def __init__(
        self, folder: Path, worker: str = "", *, join: bool = False, patience: float = 0.0
    ) -> None:
        self.path = folder / "lock"
        self.alone = False
        self.token = ""
        self._worker, self._join = worker, join
        self._patience = patience
        self._handle = -1
        self._identity = (0, 0)

    def __enter__(self) -> WriterLock:
        handle = self._opened_and_locked()
        content = os.pread(handle, 1 << 16, 0)
        if not _ours(content):
            os.close(handle)
            raise SightlineError(
                f"{self.path}: not a lock of Sightline, so {self.path.parent} belongs to something "
                "else; name another output, or move it away"
            )
        self._handle = handle
        _held.add(self._identity)
        token = _TOKEN.search(content)
        self.token = token[0].decode() if token else secrets.token_hex(8)
        if self.alone:
            worker = f"{self._worker}, " if self._worker else ""
            holder = f"{worker}process {os.getpid()} on {socket.gethostname()}"
            text = f"{holder}\n{self.token}\n".encode()
            os.pwrite(handle, text, 0)
            os.truncate(handle, len(text))
        return self

    def __exit__(self, *error: Any) -> None:
        _held.discard(self._identity)
        os.close(self._handle)  # which releases it
        self.alone = False

    def share(self) -> None:
        """Let other workers in, and keep out runs that write alone."""
        os.pwrite(self._handle, _SHARED, os.fstat(self._handle).st_size)
        fcntl.lockf(self._handle, fcntl.LOCK_SH, 1)
        fcntl.lockf(self._handle, fcntl.LOCK_UN, 0, 1)
        self.alone = False

    def claim(self, block: int) -> bool:
        """Take a block for this worker; False if another one is computing it."""
        return _locked(self._handle, exclusive=True, length=1, start=1 + block)

    def release(self, block: int) -> None:
        """Release a claimed block."""
        fcntl.lockf(self._handle, fcntl.LOCK_UN, 1, 1 + block)

    def _opened_and_locked(self) -> int:
        """Wait for the lock; returns a handle of the file."""
        end = time.monotonic() + (_GRACE if self._join else self._patience)
        while True:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                handle = os.open(
                    self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644
                )
            except FileNotFoundError:  # a run that has just ended removed the folder
                continue
            self._identity = _identity(os.fstat(handle))
            if self._identity in _held:
                # closing the file would release this process's lock, so it stays open
                raise BusyError(f"{self.path.parent}: this process is already writing here")
            try:
                self.alone = locked = _locked(handle, exclusive=True)
                if not locked and self._join:
                    # its holder may have ended since, and with it the plan that it shared
                    locked = _locked(handle, exclusive=False, length=1) and _is_shared(handle)
            except OSError as error:
                os.close(handle)
                raise SightlineError(
                    f"{self.path}: this file system has no locks ({error.strerror}), so two "
                    "runs could damage each other's files; put the output on a local disk"
                ) from error
            if not locked:
                holder = os.pread(handle, 200, 0).decode(errors="replace").split("\n")[0]
                os.close(handle)
                waits = self._join and holder.startswith("worker ")
                if not waits and time.monotonic() >= end:
                    raise BusyError(
                        f"{self.path.parent}: another run is writing here "
                        f"({holder or 'unknown'}); wait for it to finish, or end that process "
                        "(its finished work is kept)"
                    )
                time.sleep(_WAIT)
                continue
            if not _LOCAL_LOCKS.isdisjoint(options_of(self._identity[0])):
                os.close(handle)
                raise SightlineError(
                    f"{self.path}: this network folder is mounted without locks (nolock), so a run "
                    "on another machine would not be seen; mount it with locks, or put the output "
                    "on a local disk"
                )
            if self._in_place():
                return handle
            os.close(handle)  # removed with its folder while we waited for it

    def _in_place(self) -> bool:
        try:
            return _identity(os.lstat(self.path)) == self._identity
        except FileNotFoundError:
            return False


def _locked(handle: int, *, exclusive: bool, length: int = 0, start: int = 0) -> bool:
    """Whether the bytes (``length`` 0: all from ``start`` on) could be locked without waiting.

    Raises:
        OSError: the file system has no locks.
    """
    how = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    try:
        fcntl.lockf(handle, how | fcntl.LOCK_NB, length, start)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


def _is_shared(handle: int) -> bool:
    """Whether the last that held every byte of the lock shares it."""
    return os.pread(handle, 1 << 16, 0).endswith(_SHARED)


def _ours(content: bytes) -> bool:
    """Whether a run or worker of ours wrote it, even if it was killed while it wrote."""
    return any(content[: len(start)] == start[: len(content)] for start in _OURS)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
