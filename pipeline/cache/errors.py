"""Errors of the cache, and the base of every error that a user may see."""

from __future__ import annotations


class SightlineError(Exception):
    """A mistake or a state that the user can mend.

    ``str(error)`` is the whole message: what was found and where, what was expected, and what to
    do next. The command line prints it without a traceback and exits with 1.
    """


class CacheError(SightlineError):
    """A feature set, a token set or a manifest is missing, damaged or of another kind."""


class MissingKeys(CacheError):
    """Keys were asked for that a set does not hold."""


class BusyError(SightlineError):
    """Another process is writing the same feature set."""
