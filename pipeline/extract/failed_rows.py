"""Rows that failed: which a run names, and when they are too many."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from sightline.cache.storable import NOT_FINITE, UNDERFLOW
from sightline.cache.writer import SetWriter
from sightline.errors import SightlineError
from sightline.files.output import FAILURES

if TYPE_CHECKING:
    from pipeline.extract.runner import SetSummary

WRONG_SIZE = "wrong_size"
"""The code of an image whose mask has another size than it."""
_ABSENT = frozenset({"missing", "outside"})
"""Codes of rows whose file is not here, or not whole."""
_OF_MODELS = frozenset({NOT_FINITE, UNDERFLOW, WRONG_SIZE})
"""Codes of rows whose photograph is none of the fault."""


def named_failures(writer: SetWriter) -> tuple[str, ...]:
    """Up to three failed rows with their reasons, and where all of them are listed."""
    # a pulled set comes without the list
    failures = sorted(writer.failures.items())
    lines = [f"  {row['path'] or key.hex()[:16]}: {row['reason']}" for key, row in failures[:3]]
    further = f"{len(failures) - 3:,} more in " if len(failures) > 3 else ""
    return (*lines, f"  {further}{writer.run_folder / FAILURES}") if lines else ()


def check_failures(
    summary: SetSummary, total: int, max_failed: float, codes: Collection[str], *, of_service: bool
) -> None:
    """Raise SightlineError, with examples, if more failed than ``max_failed`` allows, or all did.

    Args:
        codes: of the failures, for what to do about them.
        of_service: a service was asked, which may answer otherwise the next time.
    """
    out, unit, failed = summary.folder, summary.unit, summary.failed
    if not total:
        raise SightlineError(
            f"{out}: none failed, but there are no {unit}; look at what the step before it found "
            "and dropped"
        )
    good = total - failed
    if good and failed <= max_failed * total:
        return
    outcome = f"all {total:,} {unit} failed"
    remedies: list[str] = []
    if absent := _ABSENT.intersection(codes):
        remedies.append("put back what is missing and rerun with --retry-failed")
    if of_service:
        remedies.append("ask again for the failed ones alone, with --retry-failed")
    if WRONG_SIZE in codes:
        remedies.append("let masks have the size of their images, and rerun with --retry-failed")
    if set(codes) - absent - _OF_MODELS or not codes:
        remedies.append(
            "fix or remove these files (and rerun `sightline prepare` for a prepared data set)"
        )
    if good:
        outcome = (
            f"{failed:,} of {total:,} {unit} failed, more than max_failed = {max_failed:g} allows; "
            f"the {good:,} good ones are published"
        )
        remedies.append("raise max_failed")
    lines = [f"{out}: {outcome}.", *summary.failures]
    if remedies:
        remedy = ", or ".join(remedies)
        lines.append(f"  {remedy[0].upper()}{remedy[1:]}.")
    raise SightlineError("\n".join(lines))
