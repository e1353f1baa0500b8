"""Evaluation tasks, one file each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from sightline.errors import SightlineError
from sightline.settings import explain
from train.evaluate.task import Task
from train.evaluate.task_registry import TASKS


def task_class(name: str) -> type[Task[Any]]:
    """The task of that name.

    Raises:
        SightlineError: there is none (suggests the nearest), or that of another package cannot be
            used.
    """
    return TASKS.subclass(name, Task)


def make_task(name: str, settings: Mapping[str, Any], where: str = "") -> Task[Any]:
    """The task ``name`` with its data.

    Args:
        where: what the settings are called in errors, such as "evaluation.tasks.sts".

    Raises:
        SightlineError: there is no such task or setting, or its data is missing or malformed.
    """
    found = task_class(name)
    try:
        given = found.Settings.model_validate(dict(settings))
    except ValidationError as error:
        raise SightlineError("\n".join(explain(error, where or name))) from error
    task = found(given)
    task.name = name
    return task
