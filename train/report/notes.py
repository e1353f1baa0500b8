"""What a reader must know before trusting a comparison of runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from train.evaluate.results import RunResult
from train.evaluate.sts import EXPECTED_PAIRS, SUBSETS
from train.report.differences import Difference
from train.report.gains import AVERAGE
from train.report.published import PublishedRow
from train.report.table import Table


def notes_on_tests(table: Table, differences: Sequence[Difference]) -> list[str]:
    """Why a deviation, a test or a score is missing."""
    rows = [row for row in table.rows if row.measured]
    single = [row for row in rows if len(row.seeds) == 1]
    notes = []
    if len(single) == 1:
        notes.append(
            f"{single[0].name} has one seed ({single[0].seeds[0]}): no deviation and no test; "
            "train it with at least two"
        )
    elif single:
        who = "all runs" if len(single) == len(rows) else ", ".join(row.name for row in single)
        notes.append(f"{who} have one seed: no deviation and no test; train them with at least two")
    if len(rows) == 1:
        notes.append(f"{rows[0].name} is the only run: no difference to test")
    notes += [
        f"{row.name}, {', '.join(tasks)}: not defined: {reason}"
        for row in rows
        for reason, tasks in row.undefined.items()
    ]
    if not single:
        notes += [
            f"{each.run}, {each.task}: no test: {each.reason}"
            for each in differences
            if each.difference is not None and each.p_value is None
        ]
    return notes


def notes_on_data(results: Sequence[RunResult]) -> list[str]:
    """What the results lack, and for which of their scores lower is better."""
    notes = []
    records = [record for result in results for record in result.tasks.values()]
    if lower := dict.fromkeys(metric for record in records for metric in record.lower_is_better):
        notes.append(f"lower is better: {', '.join(lower)}")
    silent = _runs(each for each in results if not each.evaluated_on)
    if silent:
        notes.append(
            f"the results of {silent} do not say which test sets they were scored on, so this is "
            "not checked; evaluate them again"
        )
    lacking = _runs(each for each in results if not each.subsets)
    if lacking and SUBSETS.keys() & results[0].scores.keys():
        notes.append(
            f"the results of {lacking} have no scores of the subsets; evaluate them again to "
            "compare those"
        )
    return notes


def notes_on_published(
    results: Sequence[RunResult], published: Sequence[PublishedRow]
) -> list[str]:
    """Where a published row and the measured ones do not measure the same thing."""
    if not published:
        return []
    tasks = {task for row in published for task in row.scores}
    notes = ["published rows are copied from the papers named and are not tested"]
    missing = [task for task in EXPECTED_PAIRS if task in tasks - results[0].scores.keys()]
    if missing and AVERAGE in tasks:
        notes.append(
            f"{AVERAGE} of published rows is left out: it is over {', '.join(missing)} too"
        )
    measured = {
        task: found.examples for each in results for task, found in each.evaluated_on.items()
    }
    notes += [
        f"{task}: scored on {measured[task]} pairs, the published results on {expected}: not "
        "comparable"
        for task, expected in EXPECTED_PAIRS.items()
        if task in tasks and measured.get(task, expected) != expected
    ]
    return notes


def _runs(results: Iterable[RunResult]) -> str:
    return ", ".join(dict.fromkeys(each.run for each in results))
