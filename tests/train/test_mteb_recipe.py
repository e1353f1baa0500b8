"""The recipe of docs/evaluation.md gives runs to MTEB, whose results `compare` reads."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cases import case_of
from shown_commands import ROOT
from training_world import silent

from train.embed import Embedder
from train.evaluate.similarity import GradedPairs, evaluate_pairs, load_pairs
from train.report.comparison import compare_runs
from train.report.found_runs import find_runs
from train.report.mteb_results import TYPES
from train.train_run import train_run

pytest.importorskip("mteb")  # takes seconds

SHOWN = '["STS12", "STS13", "STS16"]'
"""The tasks of the page, whose data is not here."""


def offline_task(name: str, pairs: GradedPairs) -> type:
    """A task of MTEB that has its data."""
    from datasets import Dataset, DatasetDict
    from mteb.abstasks import AbsTaskSTS
    from mteb.abstasks.task_metadata import TaskMetadata

    columns = {"score": pairs.gold, "sentence1": pairs.first, "sentence2": pairs.second}

    class Offline(AbsTaskSTS):
        metadata = TaskMetadata(
            name=name,
            type="STS",
            main_score="cosine_spearman",
            description=name,
            dataset={"path": f"tests/{name}", "revision": "b" * 40},
            eval_langs=["eng-Latn"],
            eval_splits=["test"],
            category="t2t",
            modalities=["text"],
        )

        def load_data(self, **_: object) -> None:
            self.dataset = DatasetDict(test=Dataset.from_dict(columns))
            self.data_loaded = True

    return Offline


@pytest.fixture
def tasks(world, monkeypatch) -> dict[str, GradedPairs]:
    """The pairs of two tasks that MTEB knows by these names."""
    pairs = load_pairs(world.root / "dev.tsv")
    tasks = {"STS12": pairs, "STS13": replace(pairs, first=pairs.first[::-1])}
    registry = sys.modules["mteb.get_tasks"]._TASKS_REGISTRY
    for name, rows in tasks.items():
        monkeypatch.setitem(registry, name, offline_task(name, rows))
    return tasks


@pytest.fixture
def score_with_mteb(tasks, monkeypatch):
    """Runs the page's recipe on folders of runs, with these tasks in place of its own."""
    page = (ROOT / "docs/evaluation.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "mteb" in block]
    assert SHOWN in code

    def run(*folders: str) -> None:
        monkeypatch.setattr(sys, "argv", ["score_with_mteb.py", *folders])
        exec(code.replace(SHOWN, str(list(tasks))), {})

    return run


def own_scores(run: str, tasks: dict[str, GradedPairs]) -> dict[str, float]:
    """By our own evaluation."""
    encode = Embedder.load(f"{run}/model", device="cpu").encode
    return {f"MTEB {name}": evaluate_pairs(encode, pairs).spearman for name, pairs in tasks.items()}


@pytest.fixture
def runs(features, tmp_path, monkeypatch) -> list[str]:
    """Folders of two short trainings, in this test's own."""
    monkeypatch.chdir(tmp_path)
    for objective in ("simcse", "mcse"):
        spec = case_of(features, objective).spec(
            Path(f"runs/{objective}/seed-0"), max_steps=2, learning_rate=0.01
        )
        train_run(spec.model_copy(update={"run": objective}), say=silent)
    return ["runs/simcse/seed-0", "runs/mcse/seed-0"]


def test_the_second_run_does_not_get_the_scores_of_the_first(runs, tasks, score_with_mteb):
    score_with_mteb(*runs)
    folders = ["mteb-scores/results/simcse", "mteb-scores/results/mcse"]
    table = compare_runs(*find_runs(folders, Path("results"))).table
    assert [row.name for row in table.rows] == ["simcse", "mcse"]
    measured = [{metric: cell.value for metric, cell in row.cells.items()} for row in table.rows]
    for run, scores in zip(runs, measured, strict=True):
        own = own_scores(run, tasks)
        assert {metric: scores[metric] for metric in own} == pytest.approx(own, abs=1e-3)
    for metric in measured[0]:
        assert abs(measured[0][metric] - measured[1][metric]) > 0.1


@pytest.mark.slow
def test_types_of_tasks_are_those_of_mtebs_english_benchmark():
    import mteb

    english = mteb.get_benchmark("MTEB(eng, v1)").tasks
    assert {kind: set(names) for kind, names in TYPES.items()} == {
        kind: {task.metadata.name for task in english if task.metadata.type == kind}
        for kind in TYPES
    }
