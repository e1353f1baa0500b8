"""The base of every error that a user may see."""

from __future__ import annotations


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


class LostProcess(SightlineError):
    """Another process of the same run ended, so what all take part in cannot continue."""


def message_of(error: Exception) -> str | None:
    """The message for a user error or a system error; None for any other exception."""
    if isinstance(error, SightlineError):
        return str(error)
    if isinstance(error, OSError):
        # disk full, no permission, a device disconnected: the system's message is enough
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}; what was published before is intact"
    if type(error).__name__ == "SafetensorError" and "(os error " in str(error):  # as well
        return f"{first_lines(error, 1)}; what was published before is intact"
    return None


def first_lines(error: BaseException, count: int = 2) -> str:
    """The first lines of a library's error, on one line; its class if it has no message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:count]).rstrip(". ") or type(error).__name__
