"""Score a finished training run, and save the scores with their full provenance."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from sightline.cache.keys import key_of_file
from sightline.errors import SightlineError
from train.evaluate.evaluation import Evaluation, Scores
from train.evaluate.models import EvaluatedModel
from train.records import FILE_NAME, RunSummary
from train.report.results import (
    NOT_TRAINED,
    RunResult,
    TrainingSummary,
    load_result,
    save_result,
)

T = TypeVar("T")


def evaluate_model(
    model: EvaluatedModel,
    evaluation: Evaluation,
    run: str | None = None,
    failed: dict[str, SightlineError] | None = None,
) -> RunResult:
    """The result of any model.

    Args:
        run: name of the result's row; None for the model's own.
        failed: see `Evaluation.score`.
    """
    found = evaluation.score(model, list(evaluation.tasks), failed)
    name = run or model.name
    if model.folder is None or model.summary is None:
        scored = _scored(evaluation, found)
        pooling = model.pooling or ""
        return RunResult(run=name, objective=NOT_TRAINED, seed=0, pooling=pooling, **scored)
    result = _result_of_run(name, model.folder, model.summary, evaluation, found)
    return result.model_copy(update={"pooling": model.pooling or ""})


def evaluate_run(
    folder: Path, evaluation: Evaluation, out: Path, device: str = "auto"
) -> tuple[RunResult, list[str]]:
    """Score the model that a run exported and write its result.

    Tasks that the result in ``out`` already has, of the same run, data and settings, are kept. If a
    task fails, the result is written without it, so the next call scores only that.

    Args:
        folder: the run, as `train.train_run.train_run` left it.
        out: file of the result (JSON).

    Returns:
        The result, and the names of the tasks that were scored now.

    Raises:
        SightlineError: the run is not finished, or tasks failed (names them).
    """
    if (current := current_result(folder, evaluation, out)) is not None:
        return current, []
    summary = RunSummary.read(folder)
    failed: dict[str, SightlineError] = {}
    old = _previous(out, _sha256(folder))
    kept = _current(old, evaluation)
    missing = [name for name in evaluation.tasks if name not in kept]
    found = Scores()
    if missing:
        model = EvaluatedModel.load(str(folder), device=device)
        found = evaluation.score(model, missing, failed)
    evaluation = evaluation.without(failed)
    if old is not None:
        found = Scores(
            {**old.scores, **found.scores},
            {**old.subsets, **found.subsets},
            {**old.reasons, **found.reasons},
            _merged_references(old, found, {m for name in kept for m in old.tasks[name].metrics}),
            _of_tasks(kept, old.notes) | found.notes,
            _of_tasks(kept, old.neighbours) | found.neighbours,
        )
    result = _result_of_run(summary.run, folder, summary, evaluation, found)
    if evaluation.tasks:
        save_result(result, out)
    if failed:
        raise SightlineError("\n".join(f"{task} failed: {why}" for task, why in failed.items()))
    return result, missing


def current_result(folder: Path, evaluation: Evaluation, out: Path) -> RunResult | None:
    """The result in ``out`` if `evaluate_run` has nothing to do.

    Raises:
        SightlineError: the run is not finished.
    """
    summary = RunSummary.read(folder)
    old = _previous(out, _sha256(folder))
    if old is None or list(old.tasks) != list(evaluation.tasks):
        return None
    of_run = (old.training, old.trained_on)  # of older versions, these may say less
    same = of_run == (_training(summary), summary.data)
    return old if same and len(_current(old, evaluation)) == len(evaluation.tasks) else None


def _scored(evaluation: Evaluation, found: Scores) -> dict[str, Any]:
    """The fields of a result that the tasks fill."""
    evaluated_on = evaluation.evaluated_on
    metrics = list(evaluated_on)
    return {
        "scores": {metric: found.scores[metric] for metric in metrics},
        "subsets": {metric: found.subsets[metric] for metric in metrics if metric in found.subsets},
        "reasons": {
            where: why for where, why in found.reasons.items() if where.partition("/")[0] in metrics
        },
        "references": found.references,
        "notes": found.notes,
        "neighbours": found.neighbours,
        "evaluated_on": evaluated_on,
        "tasks": evaluation.records,
    }


def _result_of_run(
    name: str,
    folder: Path,
    summary: RunSummary,
    evaluation: Evaluation,
    found: Scores,
) -> RunResult:
    return RunResult(
        run=name,
        objective=summary.objective,
        seed=summary.seed,
        parameters={
            "objective": summary.parameters,
            "student": summary.student,
            "train": summary.train,
        },
        trained_on=summary.data,
        run_sha256=_sha256(folder),
        code_accepted=bool(summary.accepted_code),
        features=tuple(summary.features.values()),
        training=_training(summary),
        **_scored(evaluation, found),
    )


def _sha256(folder: Path) -> str:
    """SHA-256 (hex) of run.json, which every training rewrites."""
    return key_of_file(folder / FILE_NAME).hex()


def _previous(out: Path, run_sha256: str) -> RunResult | None:
    """The result in ``out`` if it is of the run with that digest; a damaged one is replaced."""
    if not out.is_file():
        return None
    try:
        found = load_result(out)
    except SightlineError:
        return None
    return found if found.run_sha256 == run_sha256 else None


def _current(old: RunResult | None, evaluation: Evaluation) -> list[str]:
    """The tasks of ``old`` that need not be scored again."""
    if old is None:
        return []
    evaluated_on = evaluation.evaluated_on
    return [
        name
        for name, record in evaluation.records.items()
        if old.tasks.get(name) == record
        and all(old.evaluated_on.get(metric) == evaluated_on[metric] for metric in record.metrics)
    ]


def _of_tasks(names: list[str], given: dict[str, T]) -> dict[str, T]:
    return {name: given[name] for name in names if name in given}


def _merged_references(
    old: RunResult, found: Scores, kept: set[str]
) -> dict[str, dict[str, float]]:
    """References of what was scored now, and of the ``kept`` metrics of an old result."""
    merged: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys((*found.references, *old.references)):
        values = {m: v for m, v in old.references.get(name, {}).items() if m in kept}
        values.update(found.references.get(name, {}))
        if values:
            merged[name] = values
    return merged


def _training(summary: RunSummary) -> TrainingSummary:
    history = dict(summary.dev_history)
    return TrainingSummary(
        steps=summary.steps,
        seconds=summary.seconds,
        sentences_per_second=summary.sentences_per_second,
        peak_memory_bytes=summary.peak_memory.get("device", summary.peak_memory.get("host")),
        trained_parameters=summary.trained_parameters or None,
        processes=summary.processes,
        device=summary.device,
        processor=summary.processor,
        precision=summary.precision,
        dev_metric=summary.dev or "",
        best_step=summary.best_step,
        best_dev=history.get(summary.best_step) if summary.best_step is not None else None,
        log=tuple(summary.log),
    )
