"""What a run says while it computes: to its terminal, or to the group of workers that it is in."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from sightline.progress import progress

Advance = Callable[[int], None]
_BETWEEN = 0.2  # seconds between two messages about rows


class Reporter(Protocol):
    """Where a run reports.

    Attributes:
        shared: other workers of the same set report there too, each the rows that it computes.
    """

    @property
    def shared(self) -> bool: ...

    def progress(
        self, title: str, total: int, unit: str, done: int, device: str
    ) -> AbstractContextManager[Advance]:
        """As `sightline.progress.progress`."""
        ...

    def say(self, line: str) -> None:
        """Show one line."""
        ...


@dataclass(frozen=True)
class Terminal:
    """Reports to standard error."""

    shared: bool = False

    def progress(
        self, title: str, total: int, unit: str, done: int, device: str
    ) -> AbstractContextManager[Advance]:
        return progress(title, total, unit, done, device)

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


TERMINAL = Terminal()


@dataclass(frozen=True)
class Begun:
    """A worker begins to compute: title, rows in all, their name, and rows done before."""

    title: str
    total: int
    unit: str
    done: int


@dataclass(frozen=True)
class Rows:
    """A worker has computed this many more rows."""

    count: int


@dataclass(frozen=True)
class Said:
    """A worker has something to say."""

    line: str


Message = Begun | Rows | Said


class Sent:
    """Reports by messages, a few a second, to the process that started this worker."""

    shared = True

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send

    @contextmanager
    def progress(
        self, title: str, total: int, unit: str, done: int, device: str
    ) -> Iterator[Advance]:
        self._send(Begun(title, total, unit, done))
        count, last = 0, time.monotonic()

        def advance(more: int) -> None:
            nonlocal count, last
            count += more
            if time.monotonic() - last >= _BETWEEN:
                self._send(Rows(count))
                count, last = 0, time.monotonic()

        try:
            yield advance
        finally:
            if count:
                self._send(Rows(count))

    def say(self, line: str) -> None:
        self._send(Said(line))
