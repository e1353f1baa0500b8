"""End a process without freeing its libraries object by object."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable


def run_then_exit(command: Callable[[], None]) -> None:
    """Run ``command``, then end the process as soon as its threads and exit handlers are done.

    Python would go on to free the millions of objects that torch and transformers create, which
    takes about two seconds and releases nothing that the system does not. Exit codes, tracebacks
    and exit handlers registered by ``command`` or its imports are as usual.
    """
    status = 1  # an uncaught exception, unless something else is known

    def leave() -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):  # the reader of a pipe is gone, or the stream is closed
                os._exit(status or 120)  # as Python does
        os._exit(status)

    atexit.register(leave)  # handlers run last in, first out: this is the last one
    try:
        command()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
