"""One worker process per device of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from pipeline.cache.worker import Worker
from pipeline.extract.account import SetSummary
from pipeline.extract.engine import Work
from pipeline.extract.group import Ended, Group
from pipeline.extract.reporting import Message, Sent
from pipeline.extract.runner import Invocation
from sightline.devices import pick_device
from sightline.quick_exit import run_then_exit
from sightline.signals import Stopped, stop_on_signals

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_POLL = 1.0  # seconds
_LEAVE = 60.0  # seconds that stopped workers have for saving


@dataclass(frozen=True)
class _Child:
    name: str
    process: SpawnProcess
    receiver: Connection


def run_on_devices(work: Work, how: Invocation, devices: Sequence[str]) -> SetSummary:
    """Do ``work`` with one process per device, as workers that share the set.

    A signal is forwarded to all of them. If one dies, the others take over its blocks, and the
    run ends with an error when they have finished.

    Args:
        how: if it is itself worker i of n, these are workers i·k to i·k + k − 1 of n·k.

    Raises:
        SightlineError: as ``work``, or a device is absent, or a worker died.
        Stopped: by a signal, after the workers have saved.
    """
    for device in devices:
        pick_device(device)
    with Group() as group:
        children: list[_Child] = []
        try:
            for index in range(len(devices)):
                children.append(_start(work, how, devices, index))  # noqa: PERF401  (one may fail)
            _collect(group, children)
        except Stopped as stop:
            _end(children, stop.number)
            for child in children:
                _take(group, child)
            stop.add_note(group.kept())
            raise
        finally:
            _end(children, signal.SIGTERM)
        return group.summary()


def _start(work: Work, how: Invocation, devices: Sequence[str], index: int) -> _Child:
    outer = how.worker or Worker(0, 1)
    worker = Worker(outer.index * len(devices) + index, outer.count * len(devices))
    device = devices[index]
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    given = replace(how, worker=worker, device=device)
    process = context.Process(target=_work, args=(work, given, sender), name=str(worker))
    with _signals_wait():  # the child inherits this, until it can handle them
        process.start()
    sender.close()
    return _Child(f"{worker} on {device}", process, receiver)


def _work(work: Work, how: Invocation, sender: Connection) -> None:
    """A worker process."""
    run_then_exit(partial(_run, work, how, sender))


def _run(work: Work, how: Invocation, sender: Connection) -> None:
    heard = stop_on_signals()
    threading.Thread(target=_stop_with_the_parent, daemon=True).start()

    def send(message: Message | Ended) -> None:
        with suppress(BrokenPipeError):  # the parent is gone, which stops this process
            sender.send(message)

    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        ended = Ended.of(lambda: work(replace(how, reporter=Sent(send))))
        heard.ignored = True
        send(ended)
    except Stopped as stop:
        sys.exit(128 + stop.number)


def _stop_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _collect(group: Group, children: Sequence[_Child]) -> None:
    """Take the messages of all children until each has ended."""
    left = list(children)
    while left:
        wait([child.receiver for child in left], _POLL)
        for child in list(left):
            running = child.process.is_alive()  # its decode processes may hold the pipe open
            ended = _take(group, child)
            if ended is None and not running:
                ended = Ended(error=_death(child))
            if ended is not None:
                left.remove(child)
                group.end(child.name, ended)
        if left:
            group.announce_failures()


def _take(group: Group, child: _Child) -> Ended | None:
    """Pass on the messages that a child has sent; returns the last one, once it is there."""
    try:
        while child.receiver.poll():
            message = child.receiver.recv()
            if isinstance(message, Ended):
                return message
            group.take(message)
    except (EOFError, OSError):
        child.process.join()
    return None


def _end(children: Sequence[_Child], number: int) -> None:
    """Signal the children that still run, and wait for them."""
    for child in children:
        if child.process.is_alive():
            assert child.process.pid is not None
            os.kill(child.process.pid, number)
    for child in children:
        child.process.join(_LEAVE)
        if child.process.is_alive():
            child.process.kill()  # which loses its current block
            child.process.join()


def _death(child: _Child) -> str:
    code = child.process.exitcode or 0
    if code >= 0:
        stopped = code - 128 in {int(each) for each in _SIGNALS}
        why = (
            f"was stopped by {signal.Signals(code - 128).name}" if stopped else f"ended with {code}"
        )
        return f"{child.name} (process {child.process.pid}) {why}"
    hint = ", perhaps for lack of memory" if -code == signal.SIGKILL else ""
    name = signal.Signals(-code).name
    return f"{child.name} (process {child.process.pid}) was killed by {name}{hint}"


@contextmanager
def _signals_wait() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
