"""A layer between a writer and the system: it names every write and can break any of them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Act = Callable[[str], None]
"""Called with each point as it is reached, e.g. ``half write shard 2``; may raise or hang."""

_ROLES = [
    (re.compile(r"shard-.*"), "shard"),
    (re.compile(r"index-.*"), "index"),
    (re.compile(r"part-.*"), "part"),
    (re.compile(r"set\.json"), "record"),
    (re.compile(r"(failures|plan|lock|checked).*"), r"\1"),
    (re.compile(r".*\.json\.next"), "next record"),
]
_UNFINISHED = re.compile(r"\.(.+)\.[0-9a-f]{16}\.tmp")


def role(path: str | Path) -> str:
    """The role of a run's file: ``shard``, ``index``, ``record``, ``part``, … or ``folder``."""
    name = Path(path).name
    if unfinished := _UNFINISHED.fullmatch(name):
        name = unfinished[1]
    for pattern, what in _ROLES:
        if found := pattern.fullmatch(name):
            return found.expand(what)
    return "folder"


def by_name(points: Iterable[str]) -> dict[str, list[str]]:
    """Points by their name without number, in order."""
    named: dict[str, list[str]] = {}
    for point in points:
        named.setdefault(re.sub(r" \d+$", "", point), []).append(point)
    return named


def middle_of_each(points: Iterable[str]) -> list[str]:
    """The middle point of every name: what differs in its number alone is alike."""
    return [some[len(some) // 2] for some in by_name(points).values()]


def ends_and_middle_of_each(points: Iterable[str]) -> list[str]:
    """The first, the middle and the last point of every name."""
    named = by_name(points).values()
    return [p for some in named for p in dict.fromkeys((some[0], some[len(some) // 2], some[-1]))]


def _path(handle: int) -> Path:
    return Path(f"/proc/self/fd/{handle}").readlink()


class FaultLayer:
    """Replaces the system calls with which a run writes, and calls ``act`` for each.

    Syncing is left out, since no test cuts the power. Names are counted: the third shard that is
    renamed is ``rename shard 3``.
    """

    def __init__(self, act: Act) -> None:
        self._act = act
        self._counts: Counter[str] = Counter()
        self._real: dict[str, Any] = {}

    def install(self) -> None:
        """From now on, in this process."""
        for name in ("pwrite", "fsync", "replace", "rename", "unlink", "ftruncate"):
            self._real[name] = getattr(os, name)
            setattr(os, name, getattr(self, f"_{name}"))

    @contextmanager
    def _around(self, what: str):
        self._counts[what] += 1
        point = f"{what} {self._counts[what]}"
        self._act(f"before {point}")
        yield point
        self._act(f"after {point}")

    def _pwrite(self, handle: int, data: Any, offset: int) -> int:
        with self._around(f"write {role(_path(handle))}") as point:
            half = len(data) // 2
            self._real["pwrite"](handle, data[:half], offset)
            self._act(f"half {point}")
            return half + self._real["pwrite"](handle, data[half:], offset + half)

    def _fsync(self, handle: int) -> None:
        with self._around(f"sync {role(_path(handle))}"):
            pass

    def _replace(self, source: Any, target: Any, **options: Any) -> None:
        with self._around(f"rename {role(target)}"):
            self._real["replace"](source, target, **options)

    def _rename(self, source: Any, target: Any, **options: Any) -> None:
        with self._around(f"rename {role(target)}"):
            self._real["rename"](source, target, **options)

    def _unlink(self, path: Any, **options: Any) -> None:
        if not os.path.lexists(path):  # nothing to break
            return self._real["unlink"](path, **options)
        with self._around(f"remove {role(path)}"):
            return self._real["unlink"](path, **options)

    def _ftruncate(self, handle: int, length: int) -> None:
        with self._around(f"cut {role(_path(handle))}"):
            self._real["ftruncate"](handle, length)
