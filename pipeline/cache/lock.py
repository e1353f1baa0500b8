"""One writer at a time: an operating-system lock on a feature set's run folder."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from types import TracebackType

from pipeline.cache.errors import BusyError, SightlineError

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None


class WriterLock:
    """Holds ``<run folder>/lock`` while a run writes.

    A POSIX record lock: the kernel drops it when the process dies, however it dies, and decode
    workers that outlive a killed parent do not inherit it. The process and host inside the file
    are for the message only.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lock"
        self._handle: int | None = None

    def __enter__(self) -> WriterLock:
        if fcntl is None:
            raise SightlineError(f"{self.path}: this system has no file locks; use Linux or macOS")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(handle, 200, 0).decode(errors="replace").strip() or "unknown"
            os.close(handle)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise BusyError(
                    f"{self.path.parent}: another run is writing here ({holder}); wait for it, or "
                    "end that process; what it has done is kept"
                ) from error
            raise SightlineError(
                f"{self.path}: this file system has no locks ({error.strerror}); two runs could "
                "damage each other. Put the output on a local disk."
            ) from error
        os.truncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        self._handle = handle
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._handle is not None:
            os.truncate(self._handle, 0)
            os.close(self._handle)  # which releases it
            self._handle = None
