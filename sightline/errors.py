"""The base of every error that a user may see."""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sightline.wording import in_bytes

_NUMBER = re.compile(r"\(os error (\d+)\)")
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
OUT_OF_MEMORY = re.compile(
    r"out of memory|can(no|')t allocate memory|invalid buffer size|alloc_failed|alloc failed"
    r"|bad_alloc|failed to map segment|can't start new thread",
    re.IGNORECASE,
)
"""In errors of any type: of Apple's GPU, of the CPU, of CUDA's libraries, of C++, of the linker, of
threads, which need room for their stacks."""


class SightlineError(Exception):
    """A mistake or a state that the user can fix.

    ``str(error)`` is the whole message: what was found and where, what was expected, and what to
    do next. The command line prints it without a traceback and exits with 1.
    """


class BusyError(SightlineError):
    """Another process is writing to the same output."""


class CacheError(SightlineError):
    """A set of the cache or a manifest is missing, damaged or of the wrong kind."""


class MissingKeys(CacheError):
    """A set does not hold all requested keys."""


class Transient(SightlineError):
    """A model behind an API did not answer a call this time, and may the next time.

    Args:
        message: what was found, without the key of the service.
        retry_after: seconds after which the service takes calls again, if it says so.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unfinished(SightlineError):
    """A part of the work could not be done.

    Args:
        message: what is left, and why.
        done: what a whole run would return, of the part that is done.
    """

    def __init__(self, message: str, done: object) -> None:
        super().__init__(message)
        self.done = done


class LostProcess(SightlineError):
    """Another process of the same run ended, so what all take part in cannot continue."""


def message_of(error: Exception) -> str | None:
    """The message for a user error or a system error; None for any other exception."""
    if isinstance(error, SightlineError):
        return str(error)
    if short_of_memory := _why_no_memory(error):
        return short_of_memory
    failure = system_error(error)
    if failure is None:
        return None
    # disk full, no permission, a device disconnected: the system's message is enough
    where = f"{failure.filename}: " if failure.filename else ""
    return f"{where}{failure.strerror or failure}; what was published before is intact"


def system_error(error: BaseException) -> OSError | None:
    """The system's error that ``error`` is, or that a library hides in it; None for any other.

    Libraries in Rust (safetensors, tokenizers) put its number into their text. `torch.save` raises
    an error of its own while it handles that of the file, if it is given a file of Python's.
    """
    if isinstance(error, OSError):
        return error
    if hidden := _NUMBER.search(str(error)):
        return OSError(int(hidden[1]), os.strerror(int(hidden[1])))
    if "inline_container" in str(error) and isinstance(error.__context__, OSError):
        return error.__context__
    return None


def _why_no_memory(error: BaseException) -> str | None:
    """The message if memory ran out, or was limited, when ``error`` or one behind it was raised."""
    link: BaseException | None = error
    while link is not None:
        is_exhausted = isinstance(link, MemoryError) or getattr(link, "errno", None) == errno.ENOMEM
        # the text of an error with a number holds the name of a file
        text_counts = (
            isinstance(link, ImportError | RuntimeError) or getattr(link, "errno", 0) is None
        )
        lines = [line.strip() for line in str(link).splitlines()]
        telling = [line for line in lines if text_counts and OUT_OF_MEMORY.search(line)]
        if is_exhausted or telling:
            return (
                f"there is not enough memory ({telling[0] if telling else first_lines(link, 1)}); "
                f"{_memory_remedy()}; what was published before is intact"
            )
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return None


def _memory_remedy() -> str:
    for which, option in ((resource.RLIMIT_AS, "-v"), (resource.RLIMIT_DATA, "-d")):
        limit, _ = resource.getrlimit(which)
        if limit != resource.RLIM_INFINITY:
            return (
                f"each process here may have {in_bytes(limit)} of virtual memory, into which "
                f"libraries are mapped whole: raise the limit (`ulimit {option} unlimited`), or "
                "ask the batch system for more"
            )
    return "stop other programs on this machine or device, or compute less at once"


@contextmanager
def room_for(content: str, folder: Path) -> Iterator[None]:
    """Name what there was no room for, and where, if the disk or a quota is full in the block."""
    try:
        yield
    except Exception as error:
        failure = system_error(error)
        if failure is None or failure.errno not in _NO_ROOM:
            raise
        raise SightlineError(
            f"{folder}: no room to write {content} ({failure.strerror}); what was written before "
            "is intact. Make room on this disk, or raise the quota; the same command then goes on"
        ) from error


def first_lines(error: BaseException, count: int = 2) -> str:
    """The first lines of a library's error, on one line; its class if it has no message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:count]).rstrip(". ") or type(error).__name__


def harmless(message: str) -> str:
    """``message`` with control characters, which may control a terminal, written as escapes."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in message)
