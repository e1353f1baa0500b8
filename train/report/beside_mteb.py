"""Runs beside results that MTEB itself wrote: the same tasks, splits and means for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sightline.errors import SightlineError
from train.evaluate.mteb import MtebTask
from train.report.find_runs import FoundRun
from train.report.mteb_results import NAME, MtebFolder
from train.report.results import RunResult, TaskRecord


def beside_mteb(runs: Sequence[FoundRun]) -> tuple[list[FoundRun], list[str]]:
    """Reduce runs to what MTEB's results among them can have.

    MTEB's results get the tasks, splits, subsets and means of the first other run. Without another
    run, they are reduced to the tasks that all of them have.

    Returns:
        The runs in their order, and notes on what was left out. Runs without any result of MTEB
        are returned as they are.

    Raises:
        SightlineError: a run was not scored on MTEB's tasks, results have no task in common, or a
            task was evaluated on different revisions.
    """
    folders = [run.mteb for run in runs if run.mteb is not None]
    if not folders:
        return list(runs), []
    record, notes = None, []
    others = [run for run in runs if run.mteb is None]
    if others:
        name, record = _record(others[0], 0, folders[0])
        tasks = {
            key: MtebTask.model_validate(each) for key, each in record.settings["tasks"].items()
        }
        versions = {str(record.settings["mteb"])}
        if any(len(result.tasks) > 1 for run in others for result in run.results):
            notes.append(f"only the scores of {name} are compared: MTEB's results have no others")
    else:
        shared = [key for key in folders[0].files if all(key in each.files for each in folders)]
        if not shared:
            raise SightlineError(
                f"{' and '.join(str(each.path) for each in folders)} have no task in common"
            )
        tasks = {key: folders[0].files[key].about for key in shared}
        versions = set()
        if any(len(each.files) > len(shared) for each in folders):
            notes.append("only the tasks that all of MTEB's results have are compared")
    for folder in folders:
        versions |= folder.versions
    if len(versions) > 1:
        notes.append(f"MTEB's tasks were evaluated by its versions {', '.join(sorted(versions))}")
    found = []
    for run in runs:
        if run.mteb is None:
            results = [_reduced(run, index, folders[0]) for index in range(len(run.results))]
        else:
            results = [run.mteb.result(tasks, record).model_copy(update={"run": run.name})]
        found.append(replace(run, results=tuple(results)))
    return found, notes


def _record(run: FoundRun, index: int, folder: MtebFolder) -> tuple[str, TaskRecord]:
    """The entry of MTEB's tasks in a result."""
    for name, record in run.results[index].tasks.items():
        if record.task == NAME:
            return name, record
    raise SightlineError(
        f"{run.files[index]}: not scored on MTEB's tasks, but {folder.path} holds only those; run "
        f"sightline evaluate {NAME} with --tasks {','.join(folder.files)}"
    )


def _reduced(run: FoundRun, index: int, folder: MtebFolder) -> RunResult:
    """A result with its scores on MTEB's tasks alone."""
    name, record = _record(run, index, folder)
    old, metrics = run.results[index], record.metrics
    where = {key: why for key, why in old.reasons.items() if key.partition("/")[0] in metrics}
    return old.model_copy(
        update={
            "scores": {metric: old.scores[metric] for metric in metrics},
            "subsets": {m: old.subsets[m] for m in metrics if m in old.subsets},
            "reasons": where,
            "evaluated_on": {metric: old.evaluated_on[metric] for metric in metrics},
            "tasks": {name: record},
        }
    )
