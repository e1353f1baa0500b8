"""The tasks of MTEB, evaluated by the package `mteb`; names, means and test sets of its scores.

sightline evaluate mteb --model PATH --set tasks='MTEB(eng, v2)'
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import constants
from pydantic import BaseModel, ConfigDict, Field

from sightline.optional_imports import require
from sightline.progress import progress
from train.evaluate.results import EvaluationSet, TaskResult
from train.evaluate.task import Metric, Task, TaskSettings, add_mean, mean

if TYPE_CHECKING:
    from train.evaluate.models import EvaluatedModel

TITLE = "MTEB"
"""Heading of their table."""
AVERAGE = "MTEB Avg"
"""Mean over all tasks. "MTEB Avg STS" is the mean over those of type STS."""
MOST_COLUMNS = 12
"""Reports show the means alone if there are more tasks than this."""


class MtebTask(BaseModel):
    """What is evaluated of one of MTEB's tasks.

    Attributes:
        type: MTEB's, such as "STS" or "PairClassification"; empty if not known.
        revision: of its data set on the hub.
        splits: split → subsets (MTEB's `hf_subsets`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str = ""
    revision: str
    splits: dict[str, tuple[str, ...]]

    def test_set(self, name: str, examples: int | None) -> EvaluationSet:
        """Identified by the task's name, revision, splits and subsets, as MTEB's results name them.

        MTEB pins the revision of every data set, so equal ones have equal contents.
        """
        splits = {split: sorted(subsets) for split, subsets in self.splits.items()}
        identity = json.dumps([name, self.revision, splits], sort_keys=True)
        sha256 = hashlib.sha256(identity.encode()).hexdigest()
        return EvaluationSet(examples=examples, sha256=sha256)

    def parts(self, scores: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, float | None]:
        """Main score × 100 of each split and subset, such as "test" or "test en".

        Args:
            scores: as MTEB's results have them: split → a mapping with `hf_subset` and
                `main_score` for each subset.

        Returns:
            None for a part that is missing or has no finite score.
        """
        found: dict[str, float | None] = {}
        for split, subsets in self.splits.items():
            given = {each["hf_subset"]: each["main_score"] for each in scores.get(split, ())}
            for subset in subsets:
                value = given.get(subset)
                part = split if subset == "default" else f"{split} {subset}"
                found[part] = None
                if isinstance(value, int | float) and math.isfinite(value):
                    found[part] = 100 * float(value)
        return found


def metric_of(task: str) -> str:
    """Name of the metric of a task. Our own task `sts` has a metric "STS12" too."""
    return f"MTEB {task}"


def averages(types: Mapping[str, str]) -> dict[str, list[str]]:
    """Metric → the tasks that it is the mean of; one for each type if there are several.

    Args:
        types: task → its type, or "".
    """
    groups: dict[str, list[str]] = {}
    for task, kind in types.items():
        if kind:
            groups.setdefault(f"{AVERAGE} {kind}", []).append(task)
    return {**(groups if len(groups) > 1 else {}), AVERAGE: list(types)}


def datasets_cache() -> Path:
    """Where the library `datasets` caches data sets on this machine."""
    return Path(os.environ.get("HF_DATASETS_CACHE") or Path(constants.HF_HOME) / "datasets")


class MtebSettings(TaskSettings):
    """
    Attributes:
        data: the Hugging Face cache of data sets.
        tasks: see `train.evaluate.mteb_run.find_tasks`.
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
    needs = "the Hugging Face cache of data sets (docs/evaluation.md); default: this machine's"
    title = TITLE
    Settings = MtebSettings

    def __init__(self, settings: MtebSettings) -> None:
        mteb = require("mteb", "the task 'mteb'")
        from train.evaluate.mteb_run import find_tasks, read_tasks

        self.version = mteb.__version__
        self.cache = settings.data
        tasks = find_tasks(settings.tasks, settings.types, settings.languages)
        self.tasks = {each.task.metadata.name: each for each in read_tasks(tasks, self.cache)}
        self.averages = averages({name: each.about.type for name, each in self.tasks.items()})

    @property
    def metrics(self) -> tuple[Metric, ...]:
        shown = len(self.tasks) <= MOST_COLUMNS
        sets = {name: each.about.test_set(name, each.examples) for name, each in self.tasks.items()}
        metrics = [Metric(metric_of(name), data, shown=shown) for name, data in sets.items()]
        for average, tasks in self.averages.items():
            examples = sum(self.tasks[task].examples for task in tasks)
            data = EvaluationSet.of(examples, *(sets[task].sha256 for task in tasks))
            metrics.append(Metric(average, data))
        return tuple(metrics)

    def sentences(self) -> Iterable[str]:
        """None in advance: MTEB prepares the texts of each task when it evaluates it."""
        return ()

    def score(self, model: EvaluatedModel) -> TaskResult:
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
            add_mean(average, [metric_of(task) for task in tasks], scores, reasons)
        return TaskResult(scores=scores, subsets=subsets, reasons=reasons)

    def settings_of_result(self) -> dict[str, object]:
        """MTEB's version, and what was evaluated of each task; it pins the data's revision."""
        return {
            "mteb": self.version,
            "tasks": {
                name: each.about.model_dump(mode="json") for name, each in self.tasks.items()
            },
        }
