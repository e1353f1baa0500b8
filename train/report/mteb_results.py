"""Main scores that MTEB wrote, <model>/<revision>/<task>.json, as results of ours.

Of the tasks that tables of the papers have; mteb's own `load_results` has all of it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, TypeAdapter

from sightline.errors import SightlineError
from sightline.user_files import read_json
from sightline.wording import counted
from train.evaluate.results import EvaluationSet, RunResult, TaskResult
from train.evaluate.task import add_mean, mean

META = "model_meta.json"
TITLE = "MTEB"
"""Heading of their table."""
TYPES: Mapping[str, Sequence[str]] = {
    "Reranking": (
        *("AskUbuntuDupQuestions", "MindSmallReranking", "SciDocsRR"),
        "StackOverflowDupQuestions",
    ),
    "Classification": (
        *("AmazonCounterfactualClassification", "AmazonPolarityClassification"),
        *("AmazonReviewsClassification", "Banking77Classification", "EmotionClassification"),
        *("ImdbClassification", "MTOPDomainClassification", "MTOPIntentClassification"),
        *("MassiveIntentClassification", "MassiveScenarioClassification"),
        *("ToxicConversationsClassification", "TweetSentimentExtractionClassification"),
    ),
    "Retrieval": (
        *("ArguAna", "CQADupstackRetrieval", "ClimateFEVER", "DBPedia", "FEVER", "FiQA2018"),
        *("HotpotQA", "MSMARCO", "NFCorpus", "NQ", "QuoraRetrieval", "SCIDOCS", "SciFact"),
        *("TRECCOVID", "Touche2020"),
    ),
    "STS": (
        *("BIOSSES", "SICK-R", "STS12", "STS13", "STS14", "STS15", "STS16", "STS17", "STS22"),
        "STSBenchmark",
    ),
}
"""Type → its tasks in MTEB(eng, v1), of the types in DALR's table 5."""


class _Subset(BaseModel):
    hf_subset: str
    main_score: float | None


class TaskFile(BaseModel):
    """One of MTEB's files, since its version 1.11; only what is used of it.

    Attributes:
        scores: split → main score of each subset.
    """

    dataset_revision: str
    scores: dict[str, list[_Subset]]

    def result(self, file: Path, notes: tuple[str, ...]) -> TaskResult:
        """Main score × 100: the mean over the subsets of the test split, or of all without one."""
        splits = {"test": self.scores["test"]} if "test" in self.scores else self.scores
        parts = {
            f"{split} {subset.hf_subset}": subset.main_score
            for split, subsets in splits.items()
            for subset in subsets
        }
        undefined = [name for name, x in parts.items() if x is None or not math.isfinite(x)]
        metric = metric_of(file.stem)
        score = None if undefined else mean([*parts.values()])
        measured_on = "\n".join([self.dataset_revision, *sorted(parts)])
        digest = hashlib.sha256(measured_on.encode()).hexdigest()
        lacking = ", ".join(undefined) or "any split"
        return TaskResult(
            task="mteb",
            title=TITLE,
            scores={metric: None if score is None else 100 * score},
            reasons={metric: f"{file} has no score of {lacking}"} if score is None else {},
            evaluated_on={metric: EvaluationSet(examples=None, sha256=digest)},
            notes=notes,
        )


def metric_of(task: str) -> str:
    """Name of the metric of a task. Our own task `sts` has a metric "STS12" too."""
    return f"MTEB {task}"


def mteb_result(path: Path, run: str = "") -> tuple[Path, RunResult] | None:
    """What MTEB wrote in a folder, or in the only revision below the folder of a model.

    A task is a metric, as "MTEB STS12"; the mean of a type, as "MTEB Avg STS", is there if all of
    its tasks are.

    Args:
        run: its name; default: the model's.

    Returns:
        The folder with a file for each task, and the scores; None if MTEB wrote nothing there.
    """
    if not (places := places_of_results(path)):
        return None
    if len(places) > 1:
        raise SightlineError(
            f"{path}: holds MTEB's results of {len(places)} revisions "
            f"({', '.join(place.name for place in places)}); name the folder of one"
        )
    (folder,) = places
    every = (folder / f"{name}.json" for names in TYPES.values() for name in names)
    files = [file for file in every if file.is_file()]
    if not files:
        raise SightlineError(
            f"{folder}: has no task of MTEB(eng, v1) that tables of the papers have "
            f"({', '.join(TYPES)}); load_results of mteb itself makes tables of the others"
        )
    left_out = len([*folder.glob("*.json")]) - len(files) - 1  # its description of the model
    notes = (f"{counted(left_out, 'file')} of MTEB's other tasks left out",) if left_out else ()
    tasks = {metric_of(file.stem): _read(file).result(file, notes) for file in files}
    scores = {name: score for task in tasks.values() for name, score in task.scores.items()}
    reasons = {name: why for task in tasks.values() for name, why in task.reasons.items()}
    for kind, names in TYPES.items():
        metrics, average = [metric_of(name) for name in names], metric_of(f"Avg {kind}")
        if tasks.keys() >= {*metrics}:
            add_mean(average, metrics, scores, reasons)
            why = {average: reasons[average]} if average in reasons else {}
            mean_of = {average: scores[average]}
            tasks[average] = TaskResult(task="mteb", title=TITLE, scores=mean_of, reasons=why)
    model = folder.absolute().parent.name.replace("__", "/")
    return folder, RunResult(run=run or model, tasks=tasks)


def places_of_results(path: Path) -> list[Path]:
    """``path`` and the folders in it, as far as MTEB described its model there."""
    return [place for place in (path, *sorted(path.glob("*"))) if (place / META).is_file()]


def _read(file: Path) -> TaskFile:
    return read_json(file, TypeAdapter(TaskFile), "a result of MTEB 1.11 or later; remove it")
