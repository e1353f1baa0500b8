"""`sightline plan`: commands stop where they would begin to compute, and say what there is to do.

A command is planned by running it inside `Planning.of`. Whatever computes for long asks `asked`
first; if it is being planned, it adds its `WorkPlan` and writes nothing.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

from sightline.errors import SightlineError

PROBE_PIECES = 16
"""Pieces of work, such as batches, that a probe does at most."""
PROBE_SECONDS = 10.0
"""A probe ends after this long, once it has done two pieces."""
_WARM = 5
"""Pieces after which decoding ahead, caches and memory have settled, where there are as many."""


@dataclass(frozen=True)
class Timing:
    """What a probe measured.

    Attributes:
        marks: seconds since the start of the probe when each piece was done, and its weight.
    """

    marks: tuple[tuple[float, float], ...]

    @property
    def _warm(self) -> int:
        """Pieces that are not counted in the rate, of at least two."""
        return max(1, min(_WARM, len(self.marks) // 2))

    @property
    def per_weight(self) -> float:
        """Seconds for a weight of one, after the first pieces; a single piece counts whole."""
        if len(self.marks) == 1:
            end, weight = self.marks[0]
            return end / weight
        warm = self._warm
        weight = sum(weight for _, weight in self.marks[warm:])
        return (self.marks[-1][0] - self.marks[warm - 1][0]) / weight

    @property
    def start_up(self) -> float:
        """Seconds that the first pieces took longer than their weight."""
        if len(self.marks) == 1:
            return 0.0
        first = self.marks[: self._warm]
        return max(0.0, first[-1][0] - self.per_weight * sum(weight for _, weight in first))

    def seconds(self, weight: float) -> float:
        """Seconds for all pieces, whose weights add up to ``weight``."""
        return self.start_up + self.per_weight * weight


def measure(
    pieces: Iterable[float],
    *,
    most: float = PROBE_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> Timing:
    """Do ``pieces`` of work, and note when each was done.

    Args:
        pieces: does a piece for each item, which is its weight.
        most: seconds after which no further piece begins, once two are done.
        clock: seconds.

    Raises:
        SightlineError: there are none.
    """
    begin, marks = clock(), []
    for weight in pieces:
        marks.append((clock() - begin, weight))
        if len(marks) > 1 and marks[-1][0] >= most:
            break
    if not marks:
        raise SightlineError("there is nothing to compute, so a probe has nothing to time")
    return Timing(tuple(marks))


def spread(count: int, most: int = PROBE_PIECES) -> list[int]:
    """Up to ``most`` of ``count`` positions, evenly spread, so that any first few are spread too.

    Texts are computed in order of their length: the first batches alone would tell too little.
    """
    chosen = min(count, most)
    bits = max(chosen - 1, 0).bit_length()
    numbers = (int(f"{i:0{bits}b}"[::-1], 2) if bits else 0 for i in range(1 << bits))
    return [(2 * i + 1) * count // (2 * chosen) for i in numbers if i < chosen]


@dataclass(frozen=True)
class WorkPlan:
    """What one set or run still needs.

    Attributes:
        out: its folder.
        unit: name of its rows, in the plural.
        there: rows that need no computing.
        left: rows to compute.
        write_bytes: bytes that are added to the output; None: not known.
        room_bytes: bytes that the disk needs while it is written; None: not known.
        device: where it would be computed.
        seconds: expected; None: not known.
        remarks: what else there is to say.
    """

    out: str
    unit: str
    there: int
    left: int
    write_bytes: int | None
    room_bytes: int | None
    device: str
    seconds: float | None
    remarks: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        seconds = None if self.seconds is None else round(self.seconds, 3)
        return {**asdict(self), "seconds": seconds, "remarks": list(self.remarks)}

    def __str__(self) -> str:
        if not self.left and not self.write_bytes:
            parts = [f"all {self.there:,} {self.unit} are there"]
        else:
            parts = [f"{self.there:,} {self.unit} there", f"{self.left:,} to compute"]
            if self.write_bytes is not None:
                parts.append(f"{in_bytes(self.write_bytes)} to write")
            parts.append(self.device)
            if self.seconds is not None:
                parts.append(f"about {in_time(self.seconds)}")
        return f"{self.out}: {' · '.join([*parts, *self.remarks])}"


class Planned(Exception):
    """Ends a command that is being planned where it would begin to compute."""


@dataclass
class Planning:
    """Collects the plans of commands.

    Attributes:
        probe: time the first batches; None: where there is something to compute.
        clock: seconds.
        found: the plans so far.
    """

    probe: bool | None = None
    clock: Callable[[], float] = time.perf_counter
    found: list[WorkPlan] = field(default_factory=list)
    timings: dict[str, Timing] = field(default_factory=dict)

    def of(self, command: Callable[[], object]) -> list[WorkPlan]:
        """The plans of one command, which is run up to where it would compute."""
        before = len(self.found)
        token = _ASKED.set(self)
        try:
            with redirect_stdout(io.StringIO()), suppress(Planned):  # of a result it does not have
                command()
        finally:
            _ASKED.reset(token)
        return self.found[before:]

    def probes(self, out: object, left: int) -> bool:
        """Whether to time the first batches of ``left`` rows.

        Raises:
            SightlineError: a probe was asked for, and there is nothing to compute.
        """
        if self.probe and not left:
            raise SightlineError(
                f"{out}: there is nothing to compute, so a probe has nothing to time; leave out "
                "--probe"
            )
        return self.probe is not False and left > 0


_ASKED: ContextVar[Planning | None] = ContextVar("planning", default=None)


def asked() -> Planning | None:
    """The planning that this command is part of; None if it is to compute."""
    return _ASKED.get()


def in_bytes(count: float) -> str:
    """Bytes for reading: ``1.2 GB``."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def in_time(seconds: float) -> str:
    """Seconds for reading: ``1 day, 2:03:04``."""
    return str(timedelta(seconds=round(seconds))) if seconds >= 1 else f"{seconds:.1f} s"
