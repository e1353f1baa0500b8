"""What a run did, in one line; how it goes on where it was ended; when too much failed."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.cache.failures import FailureList
from pipeline.cache.record import FeatureSetRecord, TableSetRecord
from pipeline.cache.set_writer import SetWriter
from sightline.errors import SightlineError
from sightline.signals import Stopped

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class SetSummary:
    """What a run did, and what there is now.

    Attributes:
        record: the published commit point; None where other workers are still at work, the last
            of which publishes.
        holds: what the set holds, in words.
        computed: rows computed by this run.
        copied: rows taken from another set, or from what this one had dropped.
        resumed: rows taken over from an interrupted run or from other workers.
        failed: rows in error in the whole set.
        seconds: wall time, model loading excluded.
        unit: what a row is, in the plural.
        halved_to: of each model (``""`` where there is one) the items a call that are left, where
            memory did not suffice.
        remarks: what else there is to say of the set.
    """

    record: FeatureSetRecord | TableSetRecord | None
    holds: str
    computed: int
    copied: int
    resumed: int
    failed: int
    seconds: float
    unit: str
    halved_to: dict[str, int]
    remarks: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, Any]:
        """What the record of a set of tables counts."""
        return self.record.counts if isinstance(self.record, TableSetRecord) else {}

    def __str__(self) -> str:
        parts = [self.holds] if self.holds else []
        if self.computed:
            rate = self.computed / max(self.seconds, 1e-9)
            shown = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
            parts.append(
                f"{self.computed:,} computed in {self.seconds:.1f} s ({shown} {self.unit}/s)"
            )
        else:
            parts.append("nothing to compute")
        if self.copied:
            parts.append(f"{self.copied:,} copied from what is on the disk")
        if self.resumed:
            parts.append(f"{self.resumed:,} taken over from an interrupted run or other workers")
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        if self.halved_to:
            sizes = ", ".join(f"{name} {size}".strip() for name, size in self.halved_to.items())
            parts.append(f"batches halved for memory: {sizes}")
        parts += self.remarks
        if self.record is None:
            parts.append("other workers are at work; the last of them publishes the set")
        return " · ".join(parts)


def say_why(writer: SetWriter) -> None:
    """Before hours of work: why a set that is there is not enough."""
    if writer.replaces:
        print(f"{writer.folder}: everything is computed again, since", file=sys.stderr)
    for line in [*writer.replaces, *writer.repaired]:
        print(f"  {line}", file=sys.stderr, flush=True)


def check_failures(
    out: Path, failures: FailureList, failed: int, total: int, unit: str, max_failed: float
) -> None:
    """SightlineError where more failed than ``max_failed`` (a share) allows, with an example.

    Args:
        out: what was published.
        failed, total: how many of all the ``unit`` in it are in error.
    """
    good = total - failed
    if good and failed <= max_failed * total:
        return
    found = f"all {total:,} {unit} failed"
    remedy = "Mend or remove these files and run `sightline prepare` again"
    if good:
        found = (
            f"{failed:,} of {total:,} {unit} failed, more than max_failed = {max_failed:g} allows; "
            f"the {good:,} good ones are published"
        )
        remedy += ", or raise max_failed"
    # a set that was pulled comes without the list
    first = failures.entries()[:1]
    shown = [f"  for example: {each['path']}: {each['reason']}\n" for each in first]
    raise SightlineError(
        f"{out}: {found}.\n{''.join(shown)}  all of them: {failures.path}\n  {remedy}."
    )


@contextmanager
def account(writer: SetWriter, unit: str) -> Iterator[None]:
    """Say how much is done and how to go on when a signal or the disk ends the run."""

    def kept() -> str:
        if not writer.planned_rows:
            return f"{writer.folder}: nothing was started"
        return (
            f"{writer.folder}: {writer.durable_rows:,} of {writer.planned_rows:,} {unit} are done "
            "and kept"
        )

    try:
        yield
    except Stopped as stop:
        stop.add_note(f"{kept()}; run the same command again to go on")
        raise
    except OSError as error:
        remedy = "make room" if error.errno in _DISK_FULL else "mend that"
        raise SightlineError(
            f"{kept()}, then: {error.strerror or error}. What was published before is intact; "
            f"{remedy} and run the same command again to go on"
        ) from error
