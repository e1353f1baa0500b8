"""The base of every error that a user may see."""

from __future__ import annotations


class SightlineError(Exception):
    """A mistake or a state that the user can mend.

    ``str(error)`` is the whole message: what was found and where, what was expected, and what to
    do next. The command line prints it without a traceback and exits with 1.
    """


class BusyError(SightlineError):
    """Another process is writing to the same output."""


class SaidElsewhere(SightlineError):
    """Why this process ends, which another process of the same run tells the user.

    The command line exits with 1 and prints nothing.
    """
