"""A run's one-line summary, the messages of an interrupted run, and the failure limit."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.cache.failures import FailureList
from sightline.cache.record import FeatureSetRecord, TableSetRecord
from sightline.cache.set_writer import SetWriter
from sightline.errors import SightlineError
from sightline.progress import to_stderr
from sightline.signals import Stopped
from sightline.wording import in_bytes

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class SetSummary:
    """What a run did, and the resulting set.

    Attributes:
        folder: folder of the set.
        record: the published commit point; None while other workers are still active (the last one
            publishes it).
        holds: description of the set's content.
        computed: rows computed by this run.
        copied: rows copied from another set, or from rows this one had dropped.
        resumed: rows reused from an interrupted run or from other workers.
        failed: failed rows in the whole set.
        seconds: wall time, model loading excluded.
        unit: name of the rows, in the plural.
        halved_to: items per call by model (``""`` if there is one), after halving for lack of
            memory.
        remarks: further remarks on the set.
        failures: lines that name some of the failed rows, with their reasons, and the list of all.
        to_do: rows to compute, of a dry run; None: a run.
        bytes_to_write: of a dry run; None: not known.
    """

    folder: Path
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
    failures: tuple[str, ...] = ()
    to_do: int | None = None
    bytes_to_write: int | None = None

    def of_a_dry_run(self) -> dict[str, Any]:
        """What there is to do, as a JSON object."""
        return {
            "out": self.folder.as_posix(),
            "to_do": self.to_do,
            "copied": self.copied,
            "bytes_to_write": self.bytes_to_write,
        }

    @property
    def counts(self) -> dict[str, Any]:
        """The counts in the record of a set of tables."""
        return self.record.counts if isinstance(self.record, TableSetRecord) else {}

    def __str__(self) -> str:
        parts = [self.holds] if self.holds else []
        if self.to_do is not None:
            parts.append(f"{self.to_do:,} to compute")
            if self.bytes_to_write:
                parts.append(f"{in_bytes(self.bytes_to_write)} to write")
        elif self.computed:
            rate = self.computed / max(self.seconds, 1e-9)
            shown = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
            parts.append(
                f"{self.computed:,} computed in {self.seconds:.1f} s ({shown} {self.unit}/s)"
            )
        else:
            parts.append("nothing to compute")
        if self.copied:
            copied = "copied" if self.to_do is None else "to copy"
            parts.append(f"{self.copied:,} {copied} from disk")
        if self.resumed:
            parts.append(f"{self.resumed:,} reused from an interrupted run or other workers")
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        if self.halved_to:
            sizes = ", ".join(f"{name} {size}".strip() for name, size in self.halved_to.items())
            parts.append(f"batches halved for memory: {sizes}")
        parts += self.remarks
        if self.record is None and self.to_do is None:
            parts.append("other workers are still active; the last one publishes the set")
        return "\n".join([" · ".join(parts), *self.failures])


def say_why(writer: SetWriter) -> None:
    """Report, before hours of work, why the existing set is not enough."""
    if writer.replaces:
        to_stderr(f"{writer.folder}: recomputing everything because")
    for line in [*writer.replaces, *writer.repaired]:
        to_stderr(f"  {line}")


def named_failures(failures: FailureList) -> tuple[str, ...]:
    """Up to three failed rows with their reasons, and where all of them are listed."""
    # a pulled set comes without the list
    entries = failures.entries()
    lines = [f"  {each['path'] or each['key'][:16]}: {each['reason']}" for each in entries[:3]]
    more = f"{len(entries) - 3:,} more in " if len(entries) > 3 else ""
    return (*lines, f"  {more}{failures.path}") if lines else ()


def check_failures(
    out: Path, failures: FailureList, failed: int, total: int, unit: str, max_failed: float
) -> None:
    """Raise SightlineError, with examples, if more failed than ``max_failed`` (a fraction) allows.

    So does an empty set: nothing can be learned from it.

    Args:
        out: what was published.
        failed, total: number of failed ``unit`` in it, and of all.
    """
    if not total:
        raise SightlineError(
            f"{out}: none failed, but there are no {unit}; look at what the step before it found "
            "and dropped"
        )
    good = total - failed
    if good and failed <= max_failed * total:
        return
    found = f"all {total:,} {unit} failed"
    remedy = "Fix or remove these files and rerun `sightline prepare`"
    if good:
        found = (
            f"{failed:,} of {total:,} {unit} failed, more than max_failed = {max_failed:g} allows; "
            f"the {good:,} good ones are published"
        )
        remedy += ", or raise max_failed"
    raise SightlineError("\n".join([f"{out}: {found}.", *named_failures(failures), f"  {remedy}."]))


@contextmanager
def account(writer: SetWriter, unit: str) -> Iterator[None]:
    """Report progress and how to resume when a signal or a disk error ends the run."""

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
        stop.add_note(f"{kept()}; rerun the same command to resume")
        raise
    except OSError as error:
        remedy = "free some space" if error.errno in _DISK_FULL else "fix this"
        raise SightlineError(
            f"{kept()}, then: {error.strerror or error}. What was published before is intact; "
            f"{remedy} and rerun the same command to resume"
        ) from error
