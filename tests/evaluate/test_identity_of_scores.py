"""Every setting of a task is part of what its score depends on, unless it is declared."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import Field

from sightline.errors import SightlineError
from sightline.identity import Elsewhere, declared, identity
from sightline.user_files import read_lines
from train.evaluate.evaluation import Evaluation
from train.evaluate.results import EvaluationSet, TaskResult
from train.evaluate.task import TASKS, Metric, Task, TaskSettings, task_class

ANOTHER: Any = "another value"  # of any field: what is tested is that it is looked at
DECLARED = {
    "sts": {"data", "subsets"},
    "similarity": {"data"},
    "geometry": {"data", "split"},
    "transfer": {"data", "subsets"},
    "retrieval": {"data", "features"},
    "neighbours": {"data", "features"},
}
"""The whole list: a new exception belongs here too."""


@pytest.mark.parametrize("name", [*TASKS.built_in])
def test_every_setting_of_a_task_counts_or_is_declared(name, tmp_path):
    settings = task_class(name).Settings.model_construct()
    settings = settings.model_copy(update={"data": tmp_path, "features": tmp_path})
    model, before = type(settings), identity(settings)
    assert declared(model).keys() == DECLARED[name]
    assert all(isinstance(mark, Elsewhere) for mark in declared(model).values())
    for field in model.model_fields:
        changed = identity(settings.model_copy(update={field: ANOTHER}))
        assert (changed != before) == (field not in declared(model)), field


class CountingSettings(TaskSettings):
    """
    Attributes:
        rounds: the score.
    """

    rounds: int = Field(default=2, ge=1)
    words: Path | None = None


class Counting(Task[CountingSettings]):
    """A task whose score is one of its settings, and which says nothing of them."""

    about = "its setting `rounds`"
    needs = "a file of sentences"
    Settings = CountingSettings
    further: ClassVar[dict[str, object]] = {}

    def __init__(self, settings: CountingSettings) -> None:
        self.lines, self.rounds = read_lines(settings.data, self.needs), settings.rounds

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return (Metric("rounds", EvaluationSet.of(len(self.lines), "0" * 64)),)

    def sentences(self) -> list[str]:
        return self.lines

    def score(self, model: Any) -> TaskResult:
        return TaskResult(scores={"rounds": float(self.rounds)})

    def settings_of_result(self) -> dict[str, object]:
        return self.further


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """What a result of the task would say that it measured."""
    places = {**TASKS.places, "counting": f"{__name__}:Counting"}
    monkeypatch.setattr(TASKS, "places", places)
    monkeypatch.setattr("train.evaluate.evaluation.code_of_task", lambda name: "0" * 64)
    (tmp_path / "lines.txt").write_text("a red box\n")

    def measure(**settings: Any) -> TaskResult:
        given = {"counting": {"data": tmp_path / "lines.txt", **settings}}
        return Evaluation.load(given).measured["counting"]

    return measure


def test_the_settings_files_and_version_of_a_packages_task_count(measured, tmp_path, monkeypatch):
    here, there = tmp_path / "here.txt", tmp_path / "there.txt"
    for file in (here, there):
        file.write_text("a\n")
    before = measured(rounds=3, words=here)
    assert before.settings["rounds"] == 3
    assert before.measures_as(measured(rounds=3, words=there))
    assert not before.measures_as(measured(rounds=7, words=here))
    monkeypatch.setattr(Counting, "version", "2", raising=False)
    assert not before.measures_as(measured(rounds=3, words=here))
    monkeypatch.delattr(Counting, "version")
    there.write_text("b\n")
    assert not before.measures_as(measured(rounds=3, words=there))


def test_what_a_task_adds_has_names_of_its_own(measured, monkeypatch):
    monkeypatch.setattr(Counting, "further", {"of the images": "0"})
    assert measured(rounds=3).settings == {"rounds": 3, "words": None, "of the images": "0"}
    monkeypatch.setattr(Counting, "further", {"rounds": 3})
    assert measured(rounds=3).settings["rounds"] == 3
    with pytest.raises(SightlineError, match="settings_of_result: found 'rounds'"):
        measured(rounds=7)
