"""Every score of one model on a list of tasks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sightline.errors import SightlineError
from train.evaluate.evaluation_set import EvaluationSet
from train.evaluate.found_neighbours import ModelNeighbours
from train.evaluate.task import Metric, Task, TaskScores, make_task
from train.report.results import TaskRecord

if TYPE_CHECKING:
    from train.evaluate.models import EvaluatedModel


@dataclass(frozen=True)
class Scores:
    """A model's scores, with the names of metrics that a result has (see `TaskScores`).

    Attributes:
        notes: name of a task → its notes.
        neighbours: name of a task → what it found nearest.
    """

    scores: dict[str, float | None] = field(default_factory=dict)
    subsets: dict[str, dict[str, float | None]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    references: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    neighbours: dict[str, ModelNeighbours] = field(default_factory=dict)


class Evaluation:
    """Tasks with their data, read once for all models.

    Attributes:
        tasks: name → task.
    """

    def __init__(self, tasks: Mapping[str, Task[Any]]) -> None:
        """
        Args:
            tasks: name → task. If the name is not that of the task, as when a task appears twice,
                its metrics are called "name: metric".

        Raises:
            SightlineError: two tasks have a metric of the same name.
        """
        self.tasks = dict(tasks)
        self._metrics: dict[str, dict[str, Metric]] = {}
        owners: dict[str, str] = {}
        for name, task in self.tasks.items():
            self._metrics[name] = {_titled(name, task, each.name): each for each in task.metrics}
            for metric in self._metrics[name]:
                if metric in owners:
                    raise SightlineError(
                        f"the evaluation tasks {owners[metric]!r} and {name!r} both have a metric "
                        f"{metric!r}; give one of them another name, with its `task`"
                    )
                owners[metric] = name

    @classmethod
    def load(cls, given: Mapping[str, Mapping[str, Any]], where: str = "") -> Evaluation:
        """The tasks of a mapping name → settings.

        Args:
            given: settings of each task; `task` names it if it is not the name itself.
            where: what precedes the name in errors, such as "evaluation.tasks.".

        Raises:
            SightlineError: an unknown task or setting, or data that is missing or malformed.
        """
        tasks = {}
        for name, settings in given.items():
            rest = {key: value for key, value in settings.items() if key != "task"}
            tasks[name] = make_task(settings.get("task", name), rest, f"{where}{name}")
        return cls(tasks)

    def without(self, names: Collection[str]) -> Evaluation:
        """The other tasks."""
        return Evaluation({name: task for name, task in self.tasks.items() if name not in names})

    @property
    def evaluated_on(self) -> dict[str, EvaluationSet]:
        """Metric → what it is measured on."""
        return {
            name: metric.data
            for metrics in self._metrics.values()
            for name, metric in metrics.items()
        }

    @property
    def records(self) -> dict[str, TaskRecord]:
        """Task → what a result says about it."""
        return {name: self._record(name) for name in self.tasks}

    @property
    def warnings(self) -> list[str]:
        """About the data of all tasks."""
        return list(dict.fromkeys(each for task in self.tasks.values() for each in task.warnings))

    def score(
        self,
        model: EvaluatedModel,
        names: Sequence[str] | None = None,
        failed: dict[str, SightlineError] | None = None,
    ) -> Scores:
        """Score a model on some tasks (None: all); each distinct sentence is encoded once.

        Args:
            failed: gets the error of each task that fails, whose scores are then not defined; None:
                the first error ends the evaluation.
        """
        chosen = {name: self.tasks[name] for name in (self.tasks if names is None else names)}
        model.encode_once(_sentences(chosen.values()))
        found = Scores()
        for name, task in chosen.items():
            try:
                each = task.score(model)
            except SightlineError as error:
                if failed is None:
                    raise
                failed[name] = error
                lost = self._metrics[name]
                found.scores.update(dict.fromkeys(lost))
                found.reasons.update(dict.fromkeys(lost, f"the task failed: {error}"))
                continue
            _check(name, task, [each.name for each in self._metrics[name].values()], each)
            titles = {metric.name: title for title, metric in self._metrics[name].items()}
            found.scores.update((titles[metric], value) for metric, value in each.scores.items())
            found.subsets.update((titles[metric], part) for metric, part in each.subsets.items())
            for where, why in each.reasons.items():
                metric, slash, part = where.partition("/")
                found.reasons[f"{titles[metric]}{slash}{part}"] = why
            for reference, values in each.references.items():
                own = found.references.setdefault(reference, {})
                own.update((titles[metric], value) for metric, value in values.items())
            if each.notes:
                found.notes[name] = each.notes
            if each.neighbours is not None:
                found.neighbours[name] = each.neighbours
        return found

    def _record(self, name: str) -> TaskRecord:
        task, metrics = self.tasks[name], self._metrics[name]
        return TaskRecord(
            task=task.name,
            title=task.title if name == task.name else f"{name}: {task.title or task.name}",
            settings=task.settings_of_result(),
            metrics=tuple(metrics),
            lower_is_better=tuple(m for m, each in metrics.items() if not each.higher_is_better),
            hidden=tuple(m for m, each in metrics.items() if not each.shown),
        )


def _titled(name: str, task: Task[Any], metric: str) -> str:
    return metric if name == task.name else f"{name}: {metric}"


def _sentences(tasks: Iterable[Task[Any]]) -> Iterable[str]:
    return (sentence for task in tasks for sentence in task.sentences())


def _check(name: str, task: Task[Any], expected: list[str], found: TaskScores) -> None:
    """A task of another package may forget a metric; that is its error, not the reader's."""
    if list(found.scores) != expected:
        raise SightlineError(
            f"the evaluation task {name!r} returned {', '.join(found.scores) or 'nothing'}, but "
            f"its metrics are {', '.join(expected)}; fix {type(task).__module__}"
        )
