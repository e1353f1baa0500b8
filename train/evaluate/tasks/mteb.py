"""The tasks of MTEB, evaluated by the package `mteb`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import constants
from pydantic import Field

from sightline.errors import SightlineError
from sightline.progress import progress
from train.evaluate.evaluation_set import EvaluationSet
from train.evaluate.mteb_scores import TITLE, averages, mean, metric_of
from train.evaluate.task import Metric, Task, TaskScores, TaskSettings

if TYPE_CHECKING:
    from train.evaluate.evaluated_model import EvaluatedModel

MOST_COLUMNS = 12
"""Reports show the means alone if there are more tasks than this."""


def datasets_cache() -> Path:
    """Where the library `datasets` caches data sets on this machine."""
    return Path(os.environ.get("HF_DATASETS_CACHE") or Path(constants.HF_HOME) / "datasets")


class MtebSettings(TaskSettings):
    """
    Attributes:
        data: the Hugging Face cache of data sets.
        tasks: see `train.evaluate.mteb_data.find_tasks`.
        types: keep only tasks of these types, separated by commas.
        languages: three-letter codes, separated by commas, for tasks named themselves.
    """

    data: Path = Field(
        default_factory=datasets_cache, description="the Hugging Face cache of data sets"
    )
    tasks: str = Field(
        default="MTEB(eng, v2)", description="names of tasks and benchmarks, separated by commas"
    )
    types: str | None = Field(
        default=None, description="only tasks of these types, such as STS,Reranking"
    )
    languages: str = Field(
        default="eng", description="languages of tasks that no benchmark chose, separated by commas"
    )


class Mteb(Task[MtebSettings]):
    """Main score × 100 of each task, as MTEB defines it, and the means over types and tasks."""

    about = "tasks of MTEB: their main scores ×100, from the package mteb"
    needs = "the Hugging Face cache of data sets (docs/mteb.md); default: this machine's"
    title = TITLE
    Settings = MtebSettings

    def __init__(self, settings: MtebSettings) -> None:
        try:
            import mteb

            from train.evaluate.mteb_data import find_tasks, read_tasks
        except ModuleNotFoundError as error:
            raise SightlineError(
                f"the task 'mteb' needs the package mteb ({error}); run: pip install "
                "'sightline[mteb]'"
            ) from error
        self.version = mteb.__version__
        self.cache = settings.data
        tasks = find_tasks(settings.tasks, settings.types, settings.languages)
        self.tasks = {each.task.metadata.name: each for each in read_tasks(tasks, self.cache)}
        self.averages = averages({name: each.about.type for name, each in self.tasks.items()})

    @property
    def metrics(self) -> tuple[Metric, ...]:
        shown = len(self.tasks) <= MOST_COLUMNS
        sets = {name: each.about.test_set(name, each.examples) for name, each in self.tasks.items()}
        return (
            *(Metric(metric_of(name), data, shown=shown) for name, data in sets.items()),
            *(
                Metric(name, _together([sets[task] for task in tasks]))
                for name, tasks in self.averages.items()
            ),
        )

    def sentences(self) -> Iterable[str]:
        """None in advance: MTEB prepares the texts of each task when it evaluates it."""
        return ()

    def score(self, model: EvaluatedModel) -> TaskScores:
        from train.evaluate.mteb_run import evaluate

        scores: dict[str, float | None] = {}
        subsets: dict[str, dict[str, float | None]] = {}
        reasons: dict[str, str] = {}
        with progress(f"MTEB {model.name}", len(self.tasks), "tasks") as done:
            for name, read in self.tasks.items():
                parts, metric = evaluate(model, read, self.cache), metric_of(name)
                scores[metric] = mean(list(parts.values()))
                if len(parts) > 1:
                    subsets[metric] = parts
                for part, value in parts.items():
                    if value is None:
                        why = f"MTEB's main score of {part} is not a number"
                        reasons[metric] = reasons[f"{metric}/{part}"] = why
                done(1)
        for average, tasks in self.averages.items():
            scores[average] = mean([scores[metric_of(task)] for task in tasks])
            if scores[average] is None:
                without = next(task for task in tasks if scores[metric_of(task)] is None)
                reasons[average] = f"{metric_of(without)} is not defined"
        return TaskScores(scores, subsets, reasons)

    def settings_of_result(self) -> dict[str, object]:
        """MTEB's version, what was evaluated of each task, and a digest of its contents."""
        return {
            "mteb": self.version,
            "tasks": {
                name: each.about.model_dump(mode="json") for name, each in self.tasks.items()
            },
            "contents": {name: each.sha256 for name, each in self.tasks.items()},
        }


def _together(sets: list[EvaluationSet]) -> EvaluationSet:
    return EvaluationSet.of(
        sum(each.examples or 0 for each in sets), *(each.sha256 for each in sets)
    )
