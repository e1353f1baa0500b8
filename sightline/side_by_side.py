"""Calls that run at the same time, each in a process forked from this one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

from sightline.errors import SightlineError, message_of
from sightline.signals import Stopped, killed_by, stop_on_signals

_LEAVE = 30.0  # seconds that the processes have to end after a signal

Send = Callable[[Any], None]


@dataclass(frozen=True)
class Call:
    """One of the calls.

    Attributes:
        name: what it does, as the subject of a sentence.
        function: gets what sends values to `side_by_side`.
        environment: variables that it sees changed.
    """

    name: str
    function: Callable[[Send], None]
    environment: Mapping[str, str]


def side_by_side(calls: Sequence[Call]) -> Iterator[tuple[int, Any]]:
    """Make all ``calls`` at once; yields the index of a call with each value that it sends.

    They share what this process has read and imported so far, and end with it. It must not have
    used CUDA, which does not survive a fork.

    Raises:
        SightlineError: calls failed, or were killed; after the others have ended.
        Stopped: by a signal, after all have ended.
    """
    context = multiprocessing.get_context("fork")
    running: dict[Connection, tuple[int, ForkProcess]] = {}
    errors: dict[int, str] = {}
    try:
        for index, call in enumerate(calls):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_child, args=(call, sender))
            process.start()
            sender.close()
            running[receiver] = index, process
        while running:
            for receiver in wait(list(running)):
                assert isinstance(receiver, Connection)
                index, process = running[receiver]
                try:
                    value, error = receiver.recv()
                except (EOFError, OSError):
                    del running[receiver]
                    process.join()
                    if process.exitcode and index not in errors:
                        errors[index] = f"{calls[index].name} {_death(process.exitcode)}"
                    continue
                if error:
                    errors[index] = error
                else:
                    yield index, value
    except BaseException as error:
        _end([process for _, process in running.values()], getattr(error, "number", signal.SIGTERM))
        raise
    if errors:
        raise SightlineError("\n".join(errors[index] for index in sorted(errors)))


def _child(call: Call, sender: Connection) -> None:
    heard = stop_on_signals()
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    os.environ.update(call.environment)
    try:
        call.function(lambda value: sender.send((value, "")))
    except Stopped as stop:
        os._exit(128 + stop.number)
    except Exception as error:
        heard.ignored = True
        message = message_of(error)
        if message is None:
            raise  # a bug: multiprocessing prints its traceback
        sender.send((None, message))
        os._exit(1)


def _end_with_the_parent() -> None:
    parent: Any = multiprocessing.parent_process()
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _death(code: int) -> str:
    if code > 0:
        return f"ended with status {code}; rerun the same command"
    return f"{killed_by(-code)}; rerun the same command"


def _end(processes: Sequence[ForkProcess], number: int) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid or 0, number)
    for process in processes:
        process.join(_LEAVE)
        if process.is_alive():
            process.kill()
            process.join()
