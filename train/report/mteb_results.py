"""Scores that MTEB wrote, <model>/<revision>/<task>.json, as results of ours; needs no mteb."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, TypeAdapter

from sightline.errors import SightlineError
from sightline.user_files import read_json
from train.evaluate.results import RunResult, TaskResult
from train.evaluate.task import add_mean, mean

if TYPE_CHECKING:
    from train.report.comparison import FoundRun

META = "model_meta.json"
TITLE = "MTEB"
"""Heading of their table."""
AVERAGE = "MTEB Avg"
"""Mean over all tasks. "MTEB Avg STS" is the mean over those of type STS."""
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
"""Type → its tasks in MTEB(eng, v1), of the types in DALR's table 5: files of MTEB name no type."""
CQADUPSTACK, PARTS = "CQADupstackRetrieval", "CQADupstack"
"""The mean of twelve tasks, and how their names begin: MTEB leaves their results beside it."""


class _Subset(BaseModel):
    hf_subset: str
    main_score: float | None


class TaskFile(BaseModel):
    """One of MTEB's files, since its version 1.11; only what is used of it.

    Attributes:
        scores: split → main score of each subset.
    """

    task_name: str
    dataset_revision: str
    mteb_version: str | None = None
    scores: dict[str, list[_Subset]]

    @property
    def parts(self) -> dict[str, float | None]:
        """Main score × 100 of each subset of the test split, or of every split without that one.

        Such as "test" or "test en"; None where MTEB's score is not a finite number.
        """
        splits = {"test": self.scores["test"]} if "test" in self.scores else self.scores
        parts: dict[str, float | None] = {}
        for split, subsets in splits.items():
            for subset in subsets:
                part = split if subset.hf_subset == "default" else f"{split} {subset.hf_subset}"
                score = subset.main_score
                parts[part] = None
                if score is not None and math.isfinite(score):
                    parts[part] = 100 * score
        return parts


@dataclass(frozen=True)
class MtebFolder:
    """MTEB's results of one model.

    Attributes:
        path: the folder with a file for each task.
        model: its name.
        files: task → its file.
    """

    path: Path
    model: str
    files: dict[str, TaskFile]

    @classmethod
    def read(cls, path: Path) -> MtebFolder | None:
        """The results in a folder, or in the only revision below the folder of a model.

        Returns:
            None if MTEB wrote nothing there.
        """
        places = places_of_results(path)
        if not places:
            return None
        if len(places) > 1:
            raise SightlineError(
                f"{path}: holds MTEB's results of {len(places)} revisions "
                f"({', '.join(place.name for place in places)}); name the folder of one"
            )
        folder = places[0]
        files = {file.task_name: file for file in map(_read, _json_files(folder))}
        if CQADUPSTACK in files:
            whole = files.pop(CQADUPSTACK)
            files = {name: file for name, file in files.items() if not name.startswith(PARTS)}
            files[CQADUPSTACK] = whole
        return cls(folder, _model_name(folder), files)

    @property
    def versions(self) -> set[str]:
        """Of the package mteb."""
        return {file.mteb_version or "unknown" for file in self.files.values()}

    def result(self, run: str, tasks: Mapping[str, Sequence[str]] | None = None) -> RunResult:
        """As a result of ours.

        Args:
            run: its name there.
            tasks: task → the parts that its score is the mean of; None: everything here. The mean
                of a type is there if all of its tasks are.
        """
        if tasks is None:
            tasks = {name: list(file.parts) for name, file in self.files.items()}
        scores: dict[str, float | None] = {}
        reasons: dict[str, str] = {}
        for name, counted in tasks.items():
            parts, metric = self.files[name].parts, metric_of(name)
            scores[metric] = mean([parts[part] for part in counted])
            if scores[metric] is None:
                undefined = ", ".join(part for part in counted if parts[part] is None)
                file = self.path / f"{name}.json"
                reasons[metric] = f"{file} has no score of {undefined or 'any split'}"
        means = {f"{AVERAGE} {kind}": names for kind, names in TYPES.items()}
        for average, names in {**means, AVERAGE: tuple(tasks)}.items():
            if tasks.keys() >= set(names):
                add_mean(average, [metric_of(name) for name in names], scores, reasons)
        settings = {"mteb": sorted(self.versions)}
        task = TaskResult(
            task="mteb", title=TITLE, scores=scores, reasons=reasons, settings=settings
        )
        return RunResult(run=run, tasks={"mteb": task})


def metric_of(task: str) -> str:
    """Name of the metric of a task. Our own task `sts` has a metric "STS12" too."""
    return f"MTEB {task}"


def on_shared_tasks(runs: Sequence[FoundRun]) -> tuple[list[FoundRun], list[str]]:
    """Reduce MTEB's results to the tasks, splits and languages that all of them have.

    Returns:
        The runs in their order, and notes on what was left out. Runs without any result of MTEB
        are returned as they are.
    """
    folders = [run.mteb for run in runs if run.mteb is not None]
    if not folders:
        return list(runs), []
    for run in runs:
        if run.mteb is None:
            raise SightlineError(
                f"{run.files[0]}: has no scores by MTEB, but {folders[0].path} has only those; "
                "score that model with mteb too, as docs/evaluation.md shows, and name the folder "
                "of its results"
            )
    tasks = {
        name: [part for part in file.parts if all(_has(folder, name, part) for folder in folders)]
        for name, file in folders[0].files.items()
    }
    tasks = {name: parts for name, parts in tasks.items() if parts}
    if not tasks:
        raise SightlineError(
            f"{' and '.join(str(folder.path) for folder in folders)} have no task in common"
        )
    for name in tasks:
        _check_revisions(name, folders)
    notes = []
    files = [(name, file) for folder in folders for name, file in folder.files.items()]
    if any(len(file.parts) > len(tasks.get(name, ())) for name, file in files):
        notes.append("only tasks, splits and languages that all of MTEB's results have count")
    versions = sorted({version for folder in folders for version in folder.versions})
    if len(versions) > 1:
        notes.append(f"MTEB's tasks were evaluated by its versions {', '.join(versions)}")
    reduced = [
        replace(run, results=(run.mteb.result(run.name, tasks),))
        for run in runs
        if run.mteb is not None
    ]
    return reduced, notes


def _has(folder: MtebFolder, task: str, part: str) -> bool:
    return task in folder.files and part in folder.files[task].parts


def _check_revisions(task: str, folders: Sequence[MtebFolder]) -> None:
    """Refuse scores of one task on different data."""
    expected = folders[0].files[task].dataset_revision
    for folder in folders:
        if (revision := folder.files[task].dataset_revision) != expected:
            raise SightlineError(
                f"{folder.path / task}.json: evaluated on revision {revision} of the data set, "
                f"the others on {expected}; scores of different data cannot be compared: "
                "evaluate it again with the same version of mteb"
            )


def places_of_results(path: Path) -> list[Path]:
    """``path`` and the folders in it, as far as MTEB wrote results there."""
    return [place for place in (path, *sorted(path.glob("*"))) if _has_results(place)]


def _json_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*.json") if file.name != META)


def _has_results(folder: Path) -> bool:
    """Whether MTEB describes its model there, or the first file is one of its results."""
    files = _json_files(folder)
    if not files:
        return False
    return (folder / META).is_file() or '"task_name"' in files[0].read_text(errors="replace")


def _read(file: Path) -> TaskFile:
    return read_json(file, TypeAdapter(TaskFile), "a result of MTEB 1.11 or later; remove it")


def _model_name(folder: Path) -> str:
    """From MTEB's description of the model, or the name of its folder."""
    try:
        name = json.loads((folder / META).read_text(encoding="utf-8")).get("name")
    except (OSError, ValueError, AttributeError):
        name = None
    return name or folder.absolute().parent.name.replace("__", "/")
