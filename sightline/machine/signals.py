"""SIGINT and SIGTERM end a command with one line that says how to resume, and what it started."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Timer
from types import FrameType

from sightline.devices import is_first_process, of_several_processes
from sightline.errors import LostProcess

_AGAIN = 0.05  # seconds
_POLL = 0.1  # seconds between two looks at processes that are to end
_OTHERS = 5.0  # seconds that a process other than 0 waits before it fails
_LOST = 15.0  # seconds that one which lost another waits; launchers take less than one to end it


class Stopped(BaseException):
    """SIGINT or SIGTERM asked a command to end; this is not an error.

    Code that knows how much is done, and how to resume, adds that with `add_note`. It is neither an
    `Exception` nor a `KeyboardInterrupt`, because libraries catch those.

    Attributes:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def __str__(self) -> str:
        notes = getattr(self, "__notes__", None) or [
            "what was published before is intact; rerun the same command"
        ]
        return f"stopped by {signal.Signals(self.number).name}: {' '.join(notes)}"


@dataclass
class Heard:
    """What came of the signals to a command.

    Attributes:
        stop: the `Stopped` that was raised, or None. Libraries that are just being imported may
            catch it, and fail in some other way later.
        ignored: later signals are ignored.
    """

    stop: Stopped | None = None
    ignored: bool = False


def stop_on_signals() -> Heard:
    """Let the first SIGINT or SIGTERM raise `Stopped` in the main thread.

    Later ones are ignored: `timeout` and container runtimes signal a process and then its whole
    group, and saving takes only a moment. SIGKILL is always safe. A process forked from this one
    ignores the signals too: decode workers end when this process does.

    Where Python discards exceptions (finalizers, and the weak-reference callbacks that every import
    has), the signal is sent again a moment later.

    Returns:
        what was heard. A command that has failed, and says why, sets ``ignored``.
    """
    process = os.getpid()
    heard = Heard()
    report = sys.unraisablehook

    def stop(number: int, frame: FrameType | None) -> None:
        if heard.ignored or os.getpid() != process:
            return
        heard.ignored = True
        heard.stop = Stopped(number)
        raise heard.stop

    def dropped(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, Stopped):
            report(unraisable)
            return
        heard.ignored = False
        Timer(_AGAIN, os.kill, (process, unraisable.exc_value.number)).start()

    sys.unraisablehook = dropped
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # a shell ignores SIGINT in background
            signal.signal(number, stop)
    return heard


@contextmanager
def one_of_several() -> Iterator[None]:
    """The work of this process, if it is one of several that a launcher ends when one has failed.

    All of them find the same mistake, and losing another process is none of its own: process 0
    fails at once, the others if the launcher does not end them for `_OTHERS` seconds, and those
    that lost another one last. So it is said once, by one that knows what happened.

    Raises:
        Stopped: the launcher has ended this process after an error of its own.
    """
    try:
        yield
    except Exception as error:
        if of_several_processes():
            if isinstance(error, LostProcess):
                time.sleep(_LOST)
            elif not is_first_process():
                time.sleep(_OTHERS)
        raise


def end_processes(
    processes: Sequence[int], number: int, patience: float, *, to_leaders: int | None = None
) -> None:
    """Ask processes to end, wait until they have, and kill those that have not.

    A process that leads a group stands for all of it. The caller then reaps its children.

    Args:
        processes: their ids.
        number: of the signal that asks.
        patience: seconds until they are killed.
        to_leaders: another signal for the processes themselves; the rest of their groups get
            ``number``.
    """
    end = time.monotonic() + patience
    for leader in processes:
        for process in _living(leader):
            to_leader = to_leaders if process == leader else None
            with suppress(ProcessLookupError):
                os.kill(process, to_leader or number)
    while (left := [p for p in processes if _living(p)]) and time.monotonic() < end:
        time.sleep(_POLL)
    for leader in left:
        with suppress(ProcessLookupError):  # it leads no group
            os.killpg(leader, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.kill(leader, signal.SIGKILL)


def _living(leader: int) -> list[int]:
    """What has not ended of a process and the group that it leads."""
    import psutil

    living = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            belongs = leader in (process.pid, os.getpgid(process.pid))
            if belongs and process.status() != psutil.STATUS_ZOMBIE:
                living.append(process.pid)
    return living


def killed_by(number: int) -> str:
    """What happened to a process that a signal ended, to follow its name."""
    hint = ", perhaps for lack of memory" if number == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(number).name}{hint}"


def run_then_exit(command: Callable[[], None]) -> None:
    """Run ``command``, then end the process as soon as its threads and exit handlers are done.

    Python would go on to free the millions of objects that torch and transformers create, which
    takes about two seconds and releases nothing that the system does not. Exit codes, tracebacks
    and exit handlers registered by ``command`` or its imports are as usual.
    """
    status = 1  # an uncaught exception, unless something else is known
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who began this process
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))

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
