"""Progress with rate and time left: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

_SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress(title: str, total: int, unit: str, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with how many more ``unit`` are done.

    Args:
        title: what is being done, such as ``image-features scenes/clip``.
        total: how many there are in all.
        unit: what they are called, such as ``images``.
        done: how many an earlier run had already done.
    """
    show = _bar if sys.stderr.isatty() else _lines
    with show(title, total, unit, done) as advance:
        yield advance


@contextmanager
def _bar(title: str, total: int, unit: str, done: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),  # a path, which may look like markup
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total, completed=done, rate="")
        start, count = time.monotonic(), 0

        def advance(more: int) -> None:
            nonlocal count
            count += more
            per_second = count / max(time.monotonic() - start, 1e-9)
            bar.update(task, advance=more, rate=_rate(per_second, unit))

        yield advance


@contextmanager
def _lines(title: str, total: int, unit: str, done: int) -> Iterator[Callable[[int], None]]:
    start = last = time.monotonic()
    count = 0

    def advance(more: int) -> None:
        nonlocal count, last
        count += more
        now = time.monotonic()
        if now - last < _SECONDS_BETWEEN_LINES:
            return
        last = now
        per_second = count / (now - start)
        left = (total - done - count) / max(per_second, 1e-9)
        print(
            f"{title}: {done + count:,} of {total:,} {unit}, "
            f"{_rate(per_second, unit)}, {timedelta(seconds=round(left))} left",
            file=sys.stderr,
            flush=True,
        )

    yield advance


def _rate(per_second: float, unit: str) -> str:
    digits = 0 if per_second >= 10 else 1  # a large model does less than one a second
    return f"{per_second:,.{digits}f} {unit}/s"


class PhaseProgress:
    """`progress` for code that reports ``(what, done, total, unit)``: a bar for each ``what``."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._what = ""
        self._done = 0

    def __call__(self, what: str, done: int, total: int, unit: str) -> None:
        if what != self._what:
            self._stack.close()
            self._what, self._done = what, 0
            self._advance = self._stack.enter_context(progress(what, total, unit))
        self._advance(done - self._done)
        self._done = done
        if done >= total:
            self._stack.close()
            self._what = ""
