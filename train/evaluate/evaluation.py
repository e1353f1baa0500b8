"""Score models on a list of tasks, and the model of a run only on what has no current score."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.errors import SightlineError
from sightline.machine.hardware import versions
from sightline.plugins import expect, expect_valid, wrong
from sightline.wording import counted
from train.evaluate.result_files import alone_with
from train.evaluate.results import EvaluationSet, RunResult, TaskResult, load_result, save_result
from train.evaluate.task import TASKS, Task, make_task
from train.evaluate.task_code import code_of_task
from train.records import RunSummary, digest_of_run

if TYPE_CHECKING:
    from train.evaluate.models import EvaluatedModel


class Evaluation:
    """Tasks with their data, read once for all models.

    Attributes:
        tasks: name → task.
        measured: name → the result of the task without scores: what will be measured.
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
        self.measured: dict[str, TaskResult] = {}
        owners: dict[str, str] = {}
        for name, task in self.tasks.items():
            self.measured[name] = _measured(name, task)
            for metric in self.measured[name].evaluated_on:
                if metric in owners:
                    raise SightlineError(
                        f"the evaluation tasks {owners[metric]!r} and {name!r} both have a metric "
                        f"{metric!r}; give one of them another name, with its `task`"
                    )
                owners[metric] = name

    @classmethod
    def load(cls, settings: Mapping[str, Mapping[str, Any]], where: str = "") -> Evaluation:
        """The tasks of a mapping name → settings.

        Args:
            settings: settings of each task; `task` names it if it is not the name itself.
            where: what precedes the name in errors, such as "evaluation.tasks.".

        Raises:
            SightlineError: an unknown task or setting, or data that is missing or malformed.
        """
        return cls({name: make_task(name, about, where + name) for name, about in settings.items()})

    @property
    def warnings(self) -> list[str]:
        """About the data of all tasks."""
        return list(dict.fromkeys(text for task in self.tasks.values() for text in task.warnings))

    @property
    def evaluated_on(self) -> dict[str, EvaluationSet]:
        """Metric → what it is measured on."""
        measured = self.measured.values()
        return {metric: data for task in measured for metric, data in task.evaluated_on.items()}

    def score(
        self,
        model: EvaluatedModel,
        names: Sequence[str] | None = None,
        failed: dict[str, SightlineError] | None = None,
    ) -> dict[str, TaskResult]:
        """The results of a model on some tasks (None: all); encodes each distinct sentence once.

        Args:
            failed: gets the error of each task that fails, whose scores are then not defined; None:
                the first error ends the evaluation.
        """
        chosen = {name: self.tasks[name] for name in (self.tasks if names is None else names)}
        model.encode_once(text for task in chosen.values() for text in _sentences(task))
        results = {}
        for name, task in chosen.items():
            try:
                scored = _scored(name, task, task.score(model))
                scored["notes"] = (*scored["notes"], *_cut(model, task))
            except SightlineError as error:
                if failed is None:
                    raise
                failed[name] = error
                why = f"the task failed: {error}"
                lost = dict.fromkeys(self.measured[name].evaluated_on, why)
                scored = {"scores": dict.fromkeys(lost), "reasons": lost}
            scored["versions"] = versions()
            results[name] = self.measured[name].model_copy(update=scored)
        return results


def unscored(model: EvaluatedModel, run: str | None = None) -> RunResult:
    """The result of any model, without tasks.

    Args:
        run: name of the result's row; None for the model's own.
    """
    of_run: dict[str, Any] = {"pinned": model.pinned, "recipe": model.recipe}
    if (precision := model.embedder.precision) != "fp32":
        of_run["precision"] = precision
    if model.folder is not None and model.summary is not None:
        of_run |= {"training": model.summary, "run_sha256": digest_of_run(model.folder)}
    return RunResult(run=run or model.name, pooling=model.pooling or "", **of_run)


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
    tasks = evaluation.score(model, failed=failed)
    return unscored(model, run).model_copy(update={"tasks": tasks})


def evaluate_run(
    folder: Path,
    evaluation: Evaluation,
    out: Path,
    device: str = "auto",
    *,
    shows_progress: bool = False,
) -> tuple[RunResult, list[str]]:
    """Score the model that a run exported and write its result.

    Tasks that the result in ``out`` already has, of the same run, data and settings, are kept, and
    so are the run's scores on tasks that the evaluation has not. If a task fails, the result is
    written without it, so the next call scores only that.

    Args:
        folder: the run, as `train.train_run.train_run` left it.
        out: file of the result (JSON).
        shows_progress: see `EvaluatedModel`.

    Returns:
        The result, and the names of the tasks that were scored now.

    Raises:
        SightlineError: the run is not finished, or tasks failed (names them).
    """
    from train.evaluate.models import EvaluatedModel

    if (current := current_result(folder, evaluation, out)) is not None:
        return current, []
    summary, failed = RunSummary.read(folder), dict[str, SightlineError]()
    previous = _previous(folder, out)
    kept = {} if previous is None else _kept(previous, evaluation)
    missing = [name for name in evaluation.tasks if name not in kept]
    if missing:
        model = EvaluatedModel.load(str(folder), device=device)
        model.shows_progress = shows_progress
        kept |= evaluation.score(model, missing, failed)
    tasks = {name: kept[name] for name in evaluation.tasks if name not in failed}
    with alone_with(out):
        if (previous := _previous(folder, out)) is not None:  # it may have gained tasks since
            earlier = previous.tasks.keys() - evaluation.tasks.keys()
            tasks |= {name: task for name, task in previous.tasks.items() if name in earlier}
        result = RunResult(
            run=summary.run, tasks=tasks, training=summary, run_sha256=digest_of_run(folder)
        )
        if tasks or not evaluation.tasks:
            save_result(result, out)
    if failed:
        raise SightlineError("\n".join(f"{task} failed: {why}" for task, why in failed.items()))
    return result, missing


def current_result(folder: Path, evaluation: Evaluation, out: Path) -> RunResult | None:
    """The result in ``out`` if `evaluate_run` has nothing to do.

    Raises:
        SightlineError: the run is not finished.
    """
    RunSummary.read(folder)
    if (previous := _previous(folder, out)) is None:
        return None
    names = list(evaluation.tasks)  # all of them as they are now, in their order, before others
    first = list(previous.tasks)[: len(names)]
    return previous if first == names == list(_kept(previous, evaluation)) else None


def _previous(folder: Path, out: Path) -> RunResult | None:
    """The result in ``out`` if it is of the run in ``folder`` as exported; else it is replaced."""
    try:
        result = load_result(out)
    except SightlineError:
        return None
    return result if result.is_of(folder) else None


def _kept(result: RunResult, evaluation: Evaluation) -> dict[str, TaskResult]:
    """Those of a run's earlier results that are of the tasks, and their code, as they are now."""
    return {
        name: earlier
        for name, measured in evaluation.measured.items()
        if (earlier := result.tasks.get(name)) is not None
        if earlier.measures_as(measured) and earlier.is_of(measured.code)
    }


def accept_code(file: Path) -> list[str]:
    """Record that the code of today scores as that behind the result in ``file`` did.

    Returns:
        The tasks whose code had changed.
    """
    with alone_with(file):
        result, accepted = load_result(file), dict[str, TaskResult]()
        for name, task in result.tasks.items():
            if task.task in TASKS and not task.is_of(code := code_of_task(task.task)):
                codes = (*task.accepted_code, code)
                accepted[name] = task.model_copy(update={"accepted_code": codes})
        if accepted:
            save_result(result.model_copy(update={"tasks": {**result.tasks, **accepted}}), file)
    return list(accepted)


def accept_run(file: Path, folder: Path, before: str) -> None:
    """Let the result in ``file`` be of the run in ``folder``, whose record has been rewritten.

    Args:
        before: `digest_of_run` until then; a result of any other run stays as it is.
    """
    with alone_with(file):
        result = load_result(file)
        if result.run_sha256 == before:
            update = {"training": RunSummary.read(folder), "run_sha256": digest_of_run(folder)}
            save_result(result.model_copy(update=update), file)


def _sentences(task: Task[Any]) -> Sequence[str]:
    """All that a task has encoded; what is none is an error of its package."""
    sentences = task.sentences()
    if isinstance(sentences, str) or not isinstance(sentences, Iterable):
        raise wrong(task, "sentences", sentences, "an iterable of str")
    sentences = [*sentences]
    expect_valid(sentences, list[str], task, "sentences")
    return sentences


def _cut(model: EvaluatedModel, task: Task[Any]) -> list[str]:
    """A note on the sentences of a task that are longer than the model reads."""
    sentences = list(dict.fromkeys(_sentences(task)))
    cut = model.embedder.count_cut(sentences)
    if not cut:
        return []
    most, verb = model.embedder.max_length, "is" if len(sentences) == 1 else "are"
    amount = counted(len(sentences), "distinct sentence")
    return [f"{task.name}: {cut:,} of {amount} {verb} longer than {most} tokens and cut"]


def _measured(name: str, task: Task[Any]) -> TaskResult:
    """What a task measures, under the names that its metrics have in a result."""
    metrics = {_prefix(name, task) + metric.name: metric for metric in task.metrics}
    return TaskResult(
        task=task.name,
        title=task.title if name == task.name else f"{name}: {task.title or task.name}",
        settings={**task.identity, **task.settings_of_result()},
        evaluated_on={metric: about.data for metric, about in metrics.items()},
        lower_is_better=tuple(m for m, about in metrics.items() if not about.higher_is_better),
        hidden=tuple(metric for metric, about in metrics.items() if not about.shown),
        code=code_of_task(task.name) if task.name in TASKS else "",
    )


def _scored(name: str, task: Task[Any], result: TaskResult) -> dict[str, Any]:
    """What a task filled in, under the names that its metrics have in a result."""
    expect(result, TaskResult, task, "score")
    expected = [metric.name for metric in task.metrics]
    if list(result.scores) != expected:
        raise SightlineError(
            f"the evaluation task {name!r} returned {', '.join(result.scores) or 'nothing'}, but "
            f"its metrics are {', '.join(expected)}; fix {type(task).__module__}"
        )
    prefix = _prefix(name, task)

    def named(values: Mapping[str, Any]) -> dict[str, Any]:
        return {prefix + metric: value for metric, value in values.items()}

    return {
        "scores": named(result.scores),
        "subsets": named(result.subsets),
        "reasons": named(result.reasons),
        "references": {name_of: named(values) for name_of, values in result.references.items()},
        "notes": result.notes,
        "neighbours": result.neighbours,
    }


def _prefix(name: str, task: Task[Any]) -> str:
    return "" if name == task.name else f"{name}: "
