"""Calls side by side, each in a process forked from this one, and how many have room."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

from sightline.errors import SightlineError, message_of
from sightline.machine import hardware
from sightline.machine.signals import Stopped, end_processes, killed_by, stop_on_signals

_ROOM = 2 << 30  # bytes of memory that a process with PyTorch and a small model takes
VISIBLE = "CUDA_VISIBLE_DEVICES"
JOBS = "SIGHTLINE_JOBS"
"""Variable with the number of processes among which a stage may divide its own work."""
_LEAVE = 30.0  # seconds that the processes have to end after a signal

Send = Callable[[Any], None]


def side_by_side(calls: Mapping[str, Callable[[Send], None]]) -> Iterator[tuple[str, Any]]:
    """Make all ``calls`` at once; yields the name of a call with each value that it sends.

    They share what this process has read and imported so far, and end with it. It must not have
    used CUDA, which does not survive a fork.

    Args:
        calls: what each does, as the subject of a sentence → a function of what sends its values.

    Raises:
        SightlineError: calls failed, or were killed; after the others have ended.
        Stopped: by a signal, after all have ended.
    """
    context = multiprocessing.get_context("fork")
    running: dict[Connection, tuple[str, ForkProcess]] = {}
    errors: dict[str, str] = {}
    try:
        for name, call in calls.items():
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_child, args=(call, sender))
            process.start()
            sender.close()
            running[receiver] = name, process
        while running:
            for receiver in wait(list(running)):
                assert isinstance(receiver, Connection)
                name, process = running[receiver]
                try:
                    value, error = receiver.recv()
                except (EOFError, OSError):
                    del running[receiver]
                    process.join()
                    if code := process.exitcode:
                        ended = killed_by(-code) if code < 0 else f"ended with status {code}"
                        errors.setdefault(name, f"{name} {ended}; rerun the same command")
                    continue
                if error:
                    errors[name] = error
                else:
                    yield name, value
    except BaseException as error:
        processes = [process for _, process in running.values()]
        number = getattr(error, "number", signal.SIGTERM)
        end_processes([process.pid for process in processes if process.pid], number, _LEAVE)
        for process in processes:
            process.join()
        raise
    if errors:
        raise SightlineError("\n".join(errors[name] for name in calls if name in errors))


def _child(call: Callable[[Send], None], sender: Connection) -> None:
    heard = stop_on_signals()
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    try:
        call(lambda value: sender.send((value, "")))
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


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes."""
    listed = os.environ.get(VISIBLE)
    if listed is not None:
        names = [name.strip() for name in listed.split(",")]
        return names[: names.index("-1")] if "-1" in names else [name for name in names if name]
    return [str(index) for index in range(len(hardware.driver_gpus()[1]))]


def jobs_here(gpus: list[str], threads: int | None = None) -> int:
    """One for each of ``gpus``; without, as many as this machine has cores and memory for.

    Args:
        threads: CPU threads of each; None: one.
    """
    jobs = os.environ.get(JOBS)
    if jobs:
        return int(jobs)
    if gpus:
        return len(gpus)
    return max(1, min(hardware.cores() // (threads or 1), hardware.memory().free // _ROOM))


def gpu_of(gpus: list[str], index: int) -> dict[str, str]:
    """The environment of job ``index``: one of ``gpus``, in turn; empty if there are none."""
    return {VISIBLE: gpus[index % len(gpus)]} if gpus else {}
