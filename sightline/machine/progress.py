"""Progress with rate and time left: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

Say = Callable[[str], None]

SILENT = "SIGHTLINE_SILENT"
"""Variable of the environment of workers whose progress another process shows."""
_SECONDS_BETWEEN_LINES = 10.0
_SETTLED = 2.0
"""Seconds after which a rate without the first piece of work is worth saying."""


class FirstLine:
    """What a long run says first: where it computes, and how long it is expected to take.

    The time is that of the first pieces of its work, so a run that ends within two seconds, or in
    one piece, says nothing.

    Args:
        title, unit: as `progress`.
        left: how many there are to do.
        device: where.
        without: what the time leaves out, if anything.
    """

    def __init__(self, title: str, left: int, unit: str, device: str, without: str = "") -> None:
        self._title, self._left, self._unit, self._device = title, left, unit, device
        self._without = f" without {without}" if without else ""
        self._start = time.monotonic()
        self._first: tuple[float, int] | None = None
        self.announced = False

    def __call__(self, count: int) -> str:
        """The line, once, after ``count`` of them are done; empty before and afterwards."""
        time_now = time.monotonic()
        if self.announced or not count:
            return ""
        if self._first is None:
            self._first = time_now, count
        since, before = self._first
        if count == before and time_now - self._start >= _SECONDS_BETWEEN_LINES:
            since, before = self._start, 0  # slow work: better with the start than not at all
        if time_now - self._start < _SETTLED or count == before:
            return ""
        self.announced = True
        per_second = (count - before) / max(time_now - since, 1e-9)
        whole = time_now - self._start + (self._left - count) / per_second
        return (
            f"{self._title}: {self._left:,} {self._unit} to do on {self._device}, "
            f"{_rate(per_second, self._unit)}, {timedelta(seconds=round(whole))} expected"
            f"{self._without}"
        )


def to_stderr(line: str) -> None:
    """Print one line of progress."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def progress(
    title: str, total: int, unit: str, done: int = 0, device: str = ""
) -> Iterator[Callable[[int], None]]:
    """Yield a function to call, from any thread, with how many more ``unit`` are done.

    Args:
        title: what is being done, such as ``image-features scenes/clip``.
        total: how many there are in all.
        unit: what they are called, such as ``images``.
        done: how many an earlier run had already done.
        device: where they are computed; the first line then says so (`FirstLine`).
    """
    if os.environ.get(SILENT):
        yield lambda _: None
        return
    first = FirstLine(title, total - done, unit, device) if device else None
    start = last = time.monotonic()
    count, lock = 0, threading.Lock()
    with bar_of(title, total, done) if sys.stderr.isatty() else nullcontext() as bar:

        def told(step: int) -> None:
            nonlocal count, last
            count += step
            clock = time.monotonic()
            per_second = count / max(clock - start, 1e-9)
            rate = _rate(per_second, unit)
            line = "" if first is None else first(count)
            if bar is not None:
                bar.update(bar.task_ids[0], advance=step, rate=rate)
                if line:
                    bar.console.print(line, markup=False, highlight=False)
                return
            if not line and clock - last >= _SECONDS_BETWEEN_LINES:
                left = timedelta(seconds=round((total - done - count) / max(per_second, 1e-9)))
                line = f"{title}: {done + count:,} of {total:,} {unit}, {rate}, {left} left"
            if line:
                to_stderr(line)
                last = clock

        def advance(step: int) -> None:
            with lock:
                told(step)

        yield advance


def bar_of(title: str, total: int, done: int) -> Progress:
    """A bar with one task, whose fields are its ``rate`` and a ``note``; not started."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}", markup=False),  # a path, which may look like markup
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=Console(stderr=True),
    )
    bar.add_task(title, total=total, completed=done, rate="", note="")
    return bar


def _rate(per_second: float, unit: str) -> str:
    digits = 0 if per_second >= 10 else 1  # a large model does less than one a second
    return f"{per_second:,.{digits}f} {unit}/s"


@contextmanager
def phase_progress() -> Iterator[Callable[[str, int, int, str], None]]:
    """`progress` for code that reports ``(phase, done, total, unit)``: a bar for each ``phase``."""
    current, before = "", 0
    advance: Callable[[int], None]
    with ExitStack() as bar:

        def tell(phase: str, done: int, total: int, unit: str) -> None:
            nonlocal current, before, advance
            if phase != current:
                bar.close()
                current, before = phase, 0
                advance = bar.enter_context(progress(phase, total, unit))
            advance(done - before)
            before = done
            if done >= total:
                bar.close()
                current = ""

        yield tell
