"""Evaluation tasks: data that is read once and scores any number of models. Imports no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, TypeVar

import numpy as np
from pydantic import BeforeValidator, Field, ValidationError

from sightline.errors import SightlineError
from sightline.identity import Elsewhere, identity, version_of
from sightline.plugins import expect, expect_class, expect_seam, expect_valid, wrong
from sightline.settings import Registry, Settings, explain
from train.evaluate.results import EvaluationSet, TaskResult

if TYPE_CHECKING:
    from train.evaluate.models import EvaluatedModel


TASKS = Registry(
    "evaluation task",
    "sightline.tasks",
    {
        "sts": "train.evaluate.sts:Sts",
        "similarity": "train.evaluate.sts:Similarity",
        "geometry": "train.evaluate.geometry:GeometryTask",
        "transfer": "train.evaluate.transfer:Transfer",
        "retrieval": "train.evaluate.retrieval:RetrievalTask",
        "neighbours": "train.evaluate.neighbours:NeighboursTask",
    },
)
"""Name → `Task`."""


def _split(value: object) -> object:
    if not isinstance(value, str | list | tuple):
        return value
    texts = [value] if isinstance(value, str) else value
    return [name.strip() for text in texts for name in str(text).split(",")]


Names = Annotated[tuple[str, ...], BeforeValidator(_split)]
"""Names, in YAML a list, on a command line separated by commas."""


MEASURED = Elsewhere("the metrics, and what each is measured on")
"""Of a setting that only chooses these."""
CONTENT = Elsewhere("what `settings_of_result` says of its content")


class TaskSettings(Settings):
    """Settings of a task; each field is an option of `sightline evaluate`.

    Attributes:
        data: the file or folder that the task reads.
    """

    data: Annotated[Path, MEASURED] = Field(description="file or folder with the task's data")


class SubsetSettings(TaskSettings):
    """Settings of a task that has several data sets, with a mean over all of them.

    Attributes:
        subsets: names of the data sets to score; empty: all.
    """

    subsets: Annotated[Names, MEASURED] = Field(
        default=(), description="score only these data sets, such as STS-B,SICK-R, and no mean"
    )


@dataclass(frozen=True)
class Metric:
    """One figure of a task.

    Attributes:
        name: as tables show it, unique among all tasks: "STS12".
        data: what it is measured on.
        higher_is_better: False for distances.
        shown: whether tables of reports have a column for it; results always hold it.
    """

    name: str
    data: EvaluationSet
    higher_is_better: bool = True
    shown: bool = True


S = TypeVar("S", bound=TaskSettings)


class Task(ABC, Generic[S]):
    """A task with its data. A new one is a file and a line in `TASKS`.

    Attributes:
        name: the one it is registered under, set by `make_task`.
        identity: its settings as scores depend on them, and the ``version`` of a task or settings
            that declare one; set by `make_task`.
        about: what it measures, in one line.
        needs: what its data is and where to get it, in one line.
        title: heading of its table in a report; tasks with an empty one share the main table.
        Settings: the type of its settings.
        warnings: about the data, set by the constructor.
    """

    name: str = ""
    identity: Mapping[str, object] = {}
    about: ClassVar[str]
    needs: ClassVar[str]
    title: ClassVar[str] = ""
    Settings: ClassVar[type[TaskSettings]]
    warnings: tuple[str, ...] = ()

    @abstractmethod
    def __init__(self, settings: S) -> None:
        """Read the data.

        Raises:
            SightlineError: it is missing or malformed.
        """

    @property
    @abstractmethod
    def metrics(self) -> tuple[Metric, ...]:
        """Its figures, in the order of the columns."""

    @abstractmethod
    def sentences(self) -> Iterable[str]:
        """Every sentence that `score` will encode; repeats are allowed."""

    @abstractmethod
    def score(self, model: EvaluatedModel) -> TaskResult:
        """Scores of every metric of one model; its `encode` has all `sentences` at hand."""

    def settings_of_result(self) -> dict[str, object]:
        """What else, besides its settings and data, a score depends on; results record it."""
        return {}


def mean(scores: Sequence[float | None]) -> float | None:
    """The mean of scores; None if one is not defined, never a mean over the others."""
    values = [score for score in scores if score is not None]
    return float(np.mean(values)) if values and len(values) == len(scores) else None


def add_mean(
    name: str, of: Sequence[str], scores: dict[str, float | None], reasons: dict[str, str]
) -> None:
    """Add to ``scores`` the mean of the metrics ``of``; the first undefined one is its reason."""
    scores[name] = mean([scores[metric] for metric in of])
    undefined = [metric for metric in of if scores[metric] is None]
    if undefined:
        reasons[name] = reasons[undefined[0]]


def unlike_published(
    counts: Mapping[str, int], published: Mapping[str, int], unit: str
) -> tuple[str, ...]:
    """A warning for each of ``counts`` that differs from that behind ``published`` results."""
    return tuple(
        f"{name}: {count} {unit}, but published results have {published[name]}; scores are not "
        "comparable with them"
        for name, count in counts.items()
        if count != published[name]
    )


def task_class(name: str) -> type[Task[Any]]:
    """The task of that name."""
    kind = TASKS.subclass(name, Task)
    for attribute in ("about", "needs", "title"):
        expect(getattr(kind, attribute, None), str, kind, attribute)
    expect_class(getattr(kind, "Settings", None), TaskSettings, kind, "Settings")
    return kind


def make_task(name: str, settings: Mapping[str, Any], where: str = "") -> Task[Any]:
    """The task ``name``, or the one that the setting `task` names, with its data.

    Args:
        where: what the settings are called in errors, such as "evaluation.tasks.sts".

    Raises:
        SightlineError: there is no such task or setting, or its data is missing or malformed.
    """
    values = dict(settings)
    kind = task_class(registered := values.pop("task", name))
    try:
        checked = kind.Settings.model_validate(values)
    except ValidationError as error:
        raise SightlineError("\n".join(explain(error, where or name))) from error
    task = kind(checked)
    task.name = registered
    task.identity = {**identity(checked), **version_of(kind)}
    expect_valid(task.metrics, Sequence[Metric], task, "metrics")
    expect_valid(tuple(task.warnings), tuple[str, ...], task, "warnings")
    (further,) = expect_seam(task, Task, "settings_of_result")
    for key in further.keys() & task.identity.keys():
        if further[key] != task.identity[key]:
            expected = "names that its settings do not have"
            raise wrong(task, "settings_of_result", key, expected)
    return task
