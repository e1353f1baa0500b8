"""Results that MTEB itself wrote, <model>/<revision>/<task>.json, beside ours; needs no mteb."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ValidationError

from sightline.errors import SightlineError
from train.evaluate.mteb import TITLE, MtebTask, averages, mean, metric_of
from train.evaluate.results import EvaluationSet, RunResult, TaskResult

if TYPE_CHECKING:
    from train.report.comparison import FoundRun

META = "model_meta.json"
NAME = "mteb"
"""The evaluation task whose metrics these results have."""


class _Part(BaseModel):
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
    scores: dict[str, list[_Part]]

    @property
    def about(self) -> MtebTask:
        """All that it has of the test split, or of every split if it has no such split."""
        splits = {
            split: tuple(part.hf_subset for part in parts) for split, parts in self.scores.items()
        }
        tested = {split: subsets for split, subsets in splits.items() if split == "test"}
        return MtebTask(revision=self.dataset_revision, splits=tested or splits)


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

        Raises:
            SightlineError: several revisions, or a file that is not one of MTEB's results.
        """
        places = [each for each in (path, *sorted(path.iterdir())) if _has_results(each)]
        if not places:
            return None
        if len(places) > 1:
            raise SightlineError(
                f"{path}: holds MTEB's results of {len(places)} revisions "
                f"({', '.join(each.name for each in places)}); name the folder of one"
            )
        folder = places[0]
        files = [_read(file) for file in _json_files(folder)]
        return cls(folder, _model_name(folder), {each.task_name: each for each in files})

    @property
    def versions(self) -> set[str]:
        """Of the package mteb."""
        return {each.mteb_version or "unknown" for each in self.files.values()}

    def result(
        self, tasks: Mapping[str, MtebTask] | None = None, beside: TaskResult | None = None
    ) -> RunResult:
        """As a result of ours.

        Args:
            tasks: what is scored; None: everything here. What is missing has no score.
            beside: of a run beside which the result is shown, whose metrics it gets.

        Raises:
            SightlineError: a task was evaluated on another revision of its data set.
        """
        if tasks is None:
            tasks = {name: file.about for name, file in self.files.items()}
        scores: dict[str, float | None] = {}
        sets: dict[str, EvaluationSet] = {}
        reasons: dict[str, str] = {}
        for name, about in tasks.items():
            scores[name], reasons[name] = self._score(name, about)
            sets[name] = about.test_set(name, None)
        for average, of in averages({name: each.type for name, each in tasks.items()}).items():
            scores[average] = mean([scores[task] for task in of])
            reasons[average] = next((reasons[task] for task in of if scores[task] is None), "")
            sets[average] = EvaluationSet.of(None, *(sets[task].sha256 for task in of))
        names = [metric_of(name) if name in tasks else name for name in scores]
        named = dict(zip(scores, names if beside is None else beside.scores, strict=True))
        like = beside or TaskResult(title=TITLE)
        task = TaskResult(
            scores={named[name]: value for name, value in scores.items()},
            reasons={named[name]: why for name, why in reasons.items() if scores[name] is None},
            task=NAME,
            title=like.title,
            settings={"mteb": sorted(self.versions)},
            evaluated_on={named[name]: data for name, data in sets.items()},
            lower_is_better=like.lower_is_better,
            hidden=like.hidden,
        )
        return RunResult(run=self.model, tasks={NAME: task})

    def _score(self, name: str, about: MtebTask) -> tuple[float | None, str]:
        """The score of a task, or why there is none."""
        file = self.files.get(name)
        if file is None:
            return None, f"{self.path} has no {name}.json"
        if file.dataset_revision != about.revision:
            raise SightlineError(
                f"{self.path / name}.json: evaluated on revision {file.dataset_revision} of the "
                f"data set, the others on {about.revision}; scores of different data cannot be "
                "compared: evaluate it again with the same version of mteb"
            )
        parts = about.parts(file.model_dump()["scores"])
        missing = [part for part, value in parts.items() if value is None]
        return mean(list(parts.values())), f"{self.path / name}.json has no score of " + ", ".join(
            missing
        )


def beside_mteb(runs: Sequence[FoundRun]) -> tuple[list[FoundRun], list[str]]:
    """Reduce runs to what MTEB's results among them can have.

    MTEB's results get the tasks, splits, subsets and means of the first other run. Without another
    run, they are reduced to the tasks that all of them have.

    Returns:
        The runs in their order, and notes on what was left out. Runs without any result of MTEB
        are returned as they are.

    Raises:
        SightlineError: a run was not scored on MTEB's tasks, results have no task in common, or a
            task was evaluated on different revisions.
    """
    folders = [run.mteb for run in runs if run.mteb is not None]
    if not folders:
        return list(runs), []
    beside, notes = None, []
    others = [run for run in runs if run.mteb is None]
    if others:
        name, beside = _task(others[0], 0, folders[0])
        tasks = {
            key: MtebTask.model_validate(each) for key, each in beside.settings["tasks"].items()
        }
        versions = {str(beside.settings["mteb"])}
        if any(len(result.tasks) > 1 for run in others for result in run.results):
            notes.append(f"only the scores of {name} are compared: MTEB's results have no others")
    else:
        shared = [key for key in folders[0].files if all(key in each.files for each in folders)]
        if not shared:
            raise SightlineError(
                f"{' and '.join(str(each.path) for each in folders)} have no task in common"
            )
        tasks = {key: folders[0].files[key].about for key in shared}
        versions = set()
        if any(len(each.files) > len(shared) for each in folders):
            notes.append("only the tasks that all of MTEB's results have are compared")
    for folder in folders:
        versions |= folder.versions
    if len(versions) > 1:
        notes.append(f"MTEB's tasks were evaluated by its versions {', '.join(sorted(versions))}")
    reduced = []
    for run in runs:
        if run.mteb is None:
            results = [
                each.model_copy(update={"tasks": dict([_task(run, index, folders[0])])})
                for index, each in enumerate(run.results)
            ]
        else:
            results = [run.mteb.result(tasks, beside).model_copy(update={"run": run.name})]
        reduced.append(replace(run, results=tuple(results)))
    return reduced, notes


def _json_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*.json") if file.name != META)


def _has_results(folder: Path) -> bool:
    """Whether MTEB describes its model there, or the first file is one of its results."""
    files = _json_files(folder)
    if not files:
        return False
    return (folder / META).is_file() or '"task_name"' in files[0].read_text(errors="replace")


def _read(file: Path) -> TaskFile:
    try:
        return TaskFile.model_validate(json.loads(file.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except (OSError, ValueError) as error:
        what = str(error)
    raise SightlineError(
        f"{file}: not a result of MTEB 1.11 or later ({what}); remove it, or evaluate it again"
    )


def _model_name(folder: Path) -> str:
    """From MTEB's description of the model, or the name of its folder."""
    try:
        name = json.loads((folder / META).read_text(encoding="utf-8")).get("name")
    except (OSError, ValueError, AttributeError):
        name = None
    return name or folder.absolute().parent.name.replace("__", "/")


def _task(run: FoundRun, index: int, folder: MtebFolder) -> tuple[str, TaskResult]:
    """The scores of MTEB's tasks in a result, with their name there."""
    for name, task in run.results[index].tasks.items():
        if task.task == NAME:
            return name, task
    raise SightlineError(
        f"{run.files[index]}: not scored on MTEB's tasks, but {folder.path} holds only those; run "
        f"sightline evaluate {NAME} with --tasks {','.join(folder.files)}"
    )
