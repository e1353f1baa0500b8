"""What an extraction did, in one line; how it goes on where it was ended; when too much failed."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.cache import FeatureSetRecord, FeatureSetWriter
from pipeline.cache.failures import FailureList
from sightline.errors import SightlineError
from sightline.signals import Stopped

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class ExtractSummary:
    """What a run did.

    Attributes:
        record: the published commit point.
        computed: rows computed by this run.
        copied: rows taken from another feature set, or from what this one had dropped.
        resumed: rows taken over from an interrupted run.
        failed: rows in error in the whole set.
        seconds: wall time, model loading excluded.
    """

    record: FeatureSetRecord
    computed: int
    copied: int
    resumed: int
    failed: int
    seconds: float
    unit: str

    def __str__(self) -> str:
        rate = self.computed / max(self.seconds, 1e-9)
        parts = [f"{self.record.rows:,} rows"]
        if self.computed:
            parts.append(
                f"{self.computed:,} computed in {self.seconds:.1f} s ({rate:,.0f} {self.unit}/s)"
            )
        else:
            parts.append("nothing to compute")
        if self.copied:
            parts.append(f"{self.copied:,} copied from what is on the disk")
        if self.resumed:
            parts.append(f"{self.resumed:,} taken over from an interrupted run")
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        if self.record.spec.encoder.untrained:
            parts.append("untrained weights")
        return " · ".join(parts)


def say_why(writer: FeatureSetWriter) -> None:
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
def account(writer: FeatureSetWriter, unit: str) -> Iterator[None]:
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
