"""Workers that one command has started: their reports become one, and so do their results."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType

from pipeline.cache.commit import read_record
from pipeline.cache.record import FeatureSetRecord, TableSetRecord
from pipeline.extract.account import SetSummary
from pipeline.extract.reporting import Advance, Begun, Message, Rows
from sightline.errors import SightlineError, message_of
from sightline.progress import progress

_GRACE = 10.0  # seconds in which workers that fail for one reason do so


@dataclass(frozen=True)
class Ended:
    """The end of a worker, small enough to travel: the record stays in the folder.

    Attributes:
        summary: its result, without the record; None if it failed.
        published: the worker published the set.
        error: the message of a mistake or a state that the user can fix.
        bug: traceback of any other exception.
    """

    summary: SetSummary | None = None
    published: bool = False
    error: str = ""
    bug: str = ""

    @classmethod
    def of(cls, work: Callable[[], SetSummary]) -> Ended:
        """Do ``work``, and tell how it ended."""
        try:
            summary = work()
        except Exception as error:
            message = message_of(error)
            if message is None:
                return cls(bug=traceback.format_exc())
            return cls(error=message)
        return cls(replace(summary, record=None), summary.record is not None)


class Group:
    """Collects what the workers of one command report.

    ```python
    with Group() as group:
        group.take(message)              # of any worker
        group.end("worker 0/2 on cpu", ended)
    return group.summary()
    ```

    Attributes:
        rows: computed by all workers so far.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._stack = ExitStack()
        self._advance: Advance = lambda _: None
        self._title, self._unit, self._total, self._done = "", "rows", 0, 0
        self._said: set[str] = set()
        self._ended: list[Ended] = []
        self._failed: list[tuple[float, str, Ended]] = []
        self._announced = 0

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def take(self, message: Message) -> None:
        """Show a message of a worker."""
        if isinstance(message, Begun):
            if message.title != self._title:
                self._stack.close()
                self._title, self._unit, self._total = message.title, message.unit, message.total
                self._done = message.done
                show = progress(message.title, message.total, message.unit, message.done)
                self._advance = self._stack.enter_context(show)
        elif isinstance(message, Rows):
            # a dead worker's rows that were not written yet are computed, and counted, again
            count = min(message.count, self._total - self._done)
            self.rows += message.count
            self._done += count
            self._advance(count)
        elif message.line not in self._said:
            self._said.add(message.line)
            print(message.line, file=sys.stderr, flush=True)

    def end(self, worker: str, ended: Ended) -> None:
        """Note the end of ``worker``, such as ``worker 0/2 on cuda:0``."""
        if ended.summary is None:
            self._failed.append((time.monotonic(), worker, ended))
        else:
            self._ended.append(ended)

    def announce_failures(self) -> None:
        """Say which workers failed a while ago, as the others may go on for hours."""
        for when, worker, ended in self._failed[self._announced :]:
            if time.monotonic() - when < _GRACE:
                break
            self._announced += 1
            print(
                f"{worker} failed; the others go on: {_last_line(ended)}",
                file=sys.stderr,
                flush=True,
            )

    @property
    def published(self) -> bool:
        """Whether one of the workers has published the set."""
        return any(each.published for each in self._ended)

    @property
    def failed(self) -> bool:
        """Whether one of the workers has failed."""
        return bool(self._failed)

    def kept(self) -> str:
        """How far the workers came, and how to go on; for a run that is stopped."""
        if not self._title:
            return "nothing was computed yet; rerun the same command"
        return (
            f"{self._title}: about {self._done:,} of {self._total:,} {self._unit} are done and "
            "kept; rerun the same command to resume"
        )

    def summary(self) -> SetSummary:
        """The result of all workers.

        Raises:
            SightlineError: one of them failed; what the others did is kept, or published.
        """
        if self._failed:
            raise self._failure()
        parts = [ended.summary for ended in self._ended if ended.summary is not None]
        first = next((e.summary for e in self._ended if e.published and e.summary), parts[0])
        computed = sum(part.computed for part in parts)
        halved: dict[str, int] = {}
        for part in parts:
            for name, size in part.halved_to.items():
                halved[name] = min(size, halved.get(name, size))
        return replace(
            first,
            record=self._record(first),
            holds=first.holds if self.published else f"{len(parts)} workers",
            computed=computed,
            resumed=max(first.resumed - (computed - first.computed), 0),
            seconds=max(part.seconds for part in parts),
            halved_to=halved,
        )

    def _record(self, summary: SetSummary) -> FeatureSetRecord | TableSetRecord | None:
        if not self.published:
            return None
        found = read_record(summary.folder)
        assert isinstance(found, FeatureSetRecord | TableSetRecord)
        return found

    def _failure(self) -> Exception:
        bugs = [f"{worker} failed:\n{ended.bug}" for _, worker, ended in self._failed if ended.bug]
        if bugs:
            return RuntimeError("\n".join(bugs))
        lines = list(dict.fromkeys(ended.error for _, _, ended in self._failed))
        if self._ended:
            lines.append(
                "The other workers went on, and the set is published; rerun the same command to "
                "check that nothing is left."
                if self.published
                else "What the other workers computed is kept; rerun the same command to resume."
            )
        return SightlineError("\n".join(lines))


def _last_line(ended: Ended) -> str:
    return (ended.error or ended.bug).strip().splitlines()[-1]
