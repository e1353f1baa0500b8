"""The base of every error that a user may see."""

from __future__ import annotations


class SightlineError(Exception):
    """A mistake or a state that the user can fix.

    ``str(error)`` is the whole message: what was found and where, what was expected, and what to
    do next. The command line prints it without a traceback and exits with 1.
    """


class BusyError(SightlineError):
    """Another process is writing to the same output."""


class SaidElsewhere(SightlineError):
    """Ends this process because of an error that another process of the same run reports.

    The command line exits with 1 and prints nothing.
    """
