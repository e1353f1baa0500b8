"""Results that tests make up: a training with a result of its model on one task, or on several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from train.evaluate.results import RunResult, TaskResult
from train.records import FeatureUse, RunSummary


def made_training(run: str = "run", seed: int = 0, **changes: Any) -> RunSummary:
    """A finished run; `changes` replace its fields."""
    values: dict[str, Any] = {
        **{"run": run, "objective": run.split("-")[0], "seed": seed, "dropped_pairs": 0},
        **{name: {} for name in ("parameters", "train", "data", "features", "code")},
        **{"dev": None, "best_step": None, "steps": 20, "stopped_early": False},
        **{"sentences": 1280, "seconds": 60.0, "sentences_per_second": 21.3, "spec_digest": "0"},
    }
    student = {"name": "bert", "model": "bert", "pooling": "cls", **changes.pop("student", {})}
    return RunSummary.model_validate({**values, **changes, "student": student})


def made_result(
    run: str,
    seed: int = 0,
    *,
    parameters: Mapping[str, Any] | None = None,
    features: Iterable[FeatureUse] = (),
    training: Mapping[str, Any] | RunSummary | None = None,
    tasks: Mapping[str, TaskResult] | None = None,
    **of_task: Any,
) -> RunResult:
    """The result of a training.

    Args:
        parameters: nested as `RunResult.parameters` has them.
        training: replaces fields of the training, or all of it.
        tasks: name → result; None: one task with the fields ``of_task``.
    """
    given = parameters or {}
    names = {"parameters": "objective", "student": "student", "train": "train"}
    fields = {name: given.get(part, {}) for name, part in names.items()}
    if not isinstance(training, RunSummary):
        used = {use.name: use for use in features}
        training = made_training(run, seed, **{**fields, "features": used, **(training or {})})
    own = {"own": TaskResult.model_validate(of_task)}
    return RunResult(run=run, tasks=dict(tasks or own), training=training, run_sha256="1" * 64)


def untrained_result(run: str, **of_task: Any) -> RunResult:
    """The result of a model that Sightline did not train."""
    return RunResult(run=run, tasks={"own": TaskResult.model_validate(of_task)})


def with_task(result: RunResult, **changes: Any) -> RunResult:
    """``result`` with `changes` in its first task."""
    (name, task), *rest = result.tasks.items()
    changed = TaskResult.model_validate({**task.model_dump(), **changes})
    return result.model_copy(update={"tasks": {name: changed, **dict(rest)}})
