"""Runs against a baseline: means over seeds, differences with their tests, subset by subset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sightline.errors import SightlineError
from train.evaluate.results import RunResult
from train.report.beside_mteb import beside_mteb
from train.report.differences import Difference, differences_from
from train.report.find_runs import FoundRun, check_comparable
from train.report.gains import AVERAGE, Comparison, Gain, compute_gains
from train.report.notes import notes_on_data, notes_on_published, notes_on_tests
from train.report.published import PublishedRow
from train.report.significance import ALPHA
from train.report.table import Table, make_table
from train.report.training_cost import TrainingCost, notes_on_training, training_costs

SCHEMA = "sightline.comparison/1"


@dataclass(frozen=True)
class RunComparison:
    """The content of a comparison, in any format.

    Attributes:
        baseline: name of the run that the others are tested against.
        table: the measured rows in the requested order, then the published ones.
        subsets: the measured rows again, with subsets such as "STS12 MSRpar" as tasks; None if
            no result has any.
        training: what the training of each run took, if the results hold it.
        notes: what a reader must know before trusting a figure.
        results: what was compared.
        gains: of a treatment and its control, where they are named.
    """

    baseline: str
    table: Table
    differences: tuple[Difference, ...]
    subsets: Table | None
    subset_differences: tuple[Difference, ...]
    training: tuple[TrainingCost, ...]
    notes: tuple[str, ...]
    results: tuple[RunResult, ...] = ()
    gains: tuple[Gain, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, unrounded."""
        body = self.table.to_json()
        return {
            "schema": SCHEMA,
            "baseline": self.baseline,
            "alpha": ALPHA,
            "tasks": body["tasks"],
            "rows": body["rows"],
            "differences": [each.to_json() for each in self.differences],
            "subsets": self.subsets.to_json()["rows"] if self.subsets else [],
            "subset_differences": [each.to_json() for each in self.subset_differences],
            "training": [each.to_json() for each in self.training],
            "notes": list(self.notes),
        }


def compare_runs(
    runs: Sequence[FoundRun], baseline: str, published: Sequence[PublishedRow] = ()
) -> RunComparison:
    """Compare `runs` with the one named `baseline`.

    Published rows are shown beside them but not tested, because their scores per seed are unknown.

    Raises:
        SightlineError: a run and seed given twice, different tasks or test sets, a published row
            that shares no task with these runs, or see `beside_mteb`.
    """
    runs, reduced = beside_mteb(runs)
    check_comparable(runs)
    results = [result for run in runs for result in run.results]
    return compare_results(results, baseline, published, notes=reduced)


def compare_results(
    results: Sequence[RunResult],
    baseline: str | None = None,
    published: Sequence[PublishedRow] = (),
    comparisons: Sequence[Comparison] = (),
    notes: Sequence[str] = (),
) -> RunComparison:
    """As `compare_runs`, of results without their files, which are not checked.

    Args:
        baseline: None: the first run.
        comparisons: gains to compute, each by the names of its runs.
        notes: to put first.

    Raises:
        SightlineError: no result, one seed of a run twice, a name without a result, or a published
            row that shares no task with the results.
    """
    tasks = tuple(dict.fromkeys(task for result in results for task in result.scores))
    table = make_table(results, [_fitted(row, tasks) for row in published])
    measured = [row.name for row in table.rows if row.measured]
    baseline = measured[0] if baseline is None else baseline
    if baseline not in measured:
        raise SightlineError(
            f"the baseline {baseline!r} has no result; there are {', '.join(measured)}"
        )
    parts = [_subsets_as_tasks(result) for result in results]
    subsets = make_table(parts) if any(part.scores for part in parts) else None
    differences = differences_from(baseline, table)
    training = training_costs(results)
    said = [
        *notes,
        *notes_on_tests(table, differences),
        *notes_on_data(results),
        *notes_on_published(results, published),
        *table.notes,
        *notes_on_training(training),
    ]
    subset_differences = differences_from(baseline, subsets) if subsets else ()
    return RunComparison(
        baseline,
        table,
        differences,
        subsets,
        subset_differences,
        training,
        tuple(said),
        tuple(results),
        tuple(compute_gains(table, comparisons)),
    )


def _subsets_as_tasks(result: RunResult) -> RunResult:
    scores, reasons = {}, {}
    for task, parts in result.subsets.items():
        for name, value in parts.items():
            scores[f"{task} {name}"] = value
            if value is None:
                reasons[f"{task} {name}"] = result.reasons[f"{task}/{name}"]
    return result.model_copy(update={"scores": scores, "reasons": reasons})


def _fitted(row: PublishedRow, tasks: Sequence[str]) -> PublishedRow:
    """`row` as comparable with `tasks`: its average only if it is over the same tasks."""
    if not set(row.scores) & set(tasks) - {AVERAGE}:
        raise SightlineError(
            f"{row.title}: {row.source} has {', '.join(row.scores)}, but these runs were scored on "
            f"{', '.join(tasks)}; they share no task: remove --published"
        )
    if set(row.scores) <= set(tasks):
        return row
    scores = {task: score for task, score in row.scores.items() if task != AVERAGE}
    return row.model_copy(update={"scores": scores})
