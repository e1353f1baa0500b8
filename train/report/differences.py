"""Each run's difference from a baseline, task by task, with its significance test."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from train.report.significance import ALPHA, t_test
from train.report.table import Row, Table


@dataclass(frozen=True)
class Difference:
    """One run against the baseline on one task or subset.

    Attributes:
        difference: mean of the run − mean of the baseline, in the task's unit.
        p_value: from `significance.t_test`.
        reason: why a figure is None.
    """

    run: str
    task: str
    difference: float | None
    p_value: float | None = None
    reason: str = ""

    @property
    def significant(self) -> bool:
        """Whether the run differs from the baseline, in either direction."""
        return self.p_value is not None and self.p_value < ALPHA

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, unrounded."""
        return {**asdict(self), "significant": self.significant}


def differences_from(baseline: str, table: Table) -> tuple[Difference, ...]:
    """Each measured row against the one named `baseline`, on the tasks that both have."""
    rows = [row for row in table.rows if row.measured]
    reference = next(row for row in rows if row.name == baseline)
    return tuple(
        _difference(row, reference, task)
        for row in rows
        if row is not reference
        for task in table.tasks
        if task in row.cells and task in reference.cells
    )


def _difference(row: Row, reference: Row, task: str) -> Difference:
    one, other = row.cells[task], reference.cells[task]
    p_value, reason = t_test(one, other)
    if one.mean is None or other.mean is None:
        return Difference(row.name, task, None, reason=one.reason or other.reason)
    return Difference(row.name, task, one.mean - other.mean, p_value, reason)
