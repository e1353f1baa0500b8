"""DVC's experiments on the real graph: run, queued, compared, applied; a tracker changes none."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from clones import Clone, path_with, repository
from demo_params import demo_params
from tiny_scenes import TINY

pytestmark = pytest.mark.slow

REAL = (sys.executable, "-c", "from pipeline.cli import main; main()")
WEIGHT = "systems.mcse-clip.parameters.weight"
RUNS = {"simcse": {"simcse": {"label": "SimCSE"}}, "mcse-clip": {"mcse-clip": {"label": "MCSE"}}}


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Clone:
    """A repository with two tiny runs, scored and reported, all committed."""
    place, params = tmp_path_factory.mktemp("experiments"), demo_params()
    systems = {
        name: {**system, "runs": RUNS.get(name, {})} for name, system in params["systems"].items()
    }
    pairs = "data/datasets/scenes/similarity/test.tsv"
    changes: dict[str, Any] = {
        "datasets": {"scenes": params["datasets"]["scenes"] | TINY},
        "train": {"batch_size": 4, "max_steps": 12, "eval_steps": 12, "learning_rate": 1e-2},
        "systems": systems,
        "graph": {key: [] for key in ("grounded", "object_encoders", "text_encoders", "teachers")},
        "machine": {"track": "tensorboard"},
        "evaluation": {"tasks": {"similarity": {"data": pairs}}},
        "report": {"control": None},
    }
    real = path_with(place / "bin", *REAL)
    owner = repository(place / "owner", real, place / "remote", changes)
    owner.run("dvc", "repro", "-q", "report")
    owner.run("git", "add", ".")
    owner.run("git", "commit", "-qm", "Scores")
    return owner


def told(project: Clone, *words: str) -> Any:
    """What `dvc WORDS --json` prints; as a process, for DVC keeps the first stdout that it sees."""
    return json.loads(project.run(sys.executable, "-m", "dvc", *words, "--json"))


def shown(project: Clone) -> Any:
    """What `dvc metrics show` says of the workspace."""
    return told(project, "metrics", "show")[""]["data"]["report/metrics.json"]["data"]


def weight(project: Clone) -> float:
    params = yaml.safe_load((project.folder / "params.yaml").read_text())
    return params["systems"]["mcse-clip"]["parameters"]["weight"]


def test_experiments_run_wait_in_a_queue_and_are_compared_and_applied(project):
    def ready() -> bool:
        """Whether nothing but the stage that always runs is to do."""
        return told(project, "status").keys() <= {"inputs"}

    before = shown(project)
    curves = Path("runs/mcse-clip/seed-0.run/tensorboard")
    assert any((project.folder / curves).glob("events.*"))
    assert ready()

    project.run("dvc", "exp", "run", "-q", "-n", "heavy", "-S", f"{WEIGHT}=50", "report")
    assert weight(project) == 50
    heavy = shown(project)
    assert heavy != before
    assert ready()
    project.run("git", "checkout", "-q", ".")
    project.run("dvc", "checkout", "-q")
    assert shown(project) == before

    project.run(
        "dvc", "exp", "run", "-q", "--queue", "-n", "light", "-S", f"{WEIGHT}=0.5", "report"
    )
    project.run("dvc", "exp", "run", "-q", "--run-all")
    assert shown(project) == before  # it ran in a folder of its own
    for name, number in (("heavy", 50), ("light", 0.5)):
        changed = told(project, "exp", "diff", "main", name)
        assert changed["params"]["params.yaml"][WEIGHT]["new"] == number
        assert changed["metrics"]["report/metrics.json"]

    project.run("dvc", "exp", "apply", "-q", "light")
    assert weight(project) == 0.5
    light = shown(project)
    assert light not in (before, heavy)
    assert ready()
    project.run("dvc", "repro", "-q", "report")
    assert shown(project) == light
