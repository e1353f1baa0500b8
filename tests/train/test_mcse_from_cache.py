"""examples/mcse_from_cache.py: the trainer's losses from the same weights, and a scored model."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import torch
from cases import Features, case_of
from conftest import World, silent
from test_released_loops import Recorder

from train.run_spec import TrainConfig
from train.train_run import train_run

SOURCE = Path(__file__).parents[2] / "examples/mcse_from_cache.py"
STEPS = 20


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("mcse_from_cache", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = TrainConfig(batch_size=6, learning_rate=1e-3, max_steps=STEPS, eval_steps=10)
    monkeypatch.setattr(module, "CONFIG", config)
    monkeypatch.setattr(module, "STEPS", STEPS)
    return module


def test_its_losses_are_those_of_the_trainer(
    features: Features, tmp_path: Path, example: ModuleType
) -> None:
    spec = case_of(features, "mcse", weight=example.WEIGHT).spec(tmp_path / "run", max_steps=STEPS)
    recorder = Recorder(torch.float32)
    train_run(spec, say=silent, callbacks=[recorder])
    world = features.world
    data = example.Data(world.root, features.root / "image/clip", world.root / "tokens")
    model = example.MCSE(Path(spec.student.model), data.features.dim)
    assert list(model.state_dict()) == list(recorder.start)
    model.load_state_dict(recorder.start)
    losses = [loss for _, loss in example.train(model, data, STEPS)]
    assert losses == pytest.approx([entry["loss"] for entry in recorder.losses], abs=1e-5)
    assert {data.schedule.draw(k).stream for k in range(STEPS)} == {"pairs", "text"}


def test_it_trains_and_scores_what_the_demo_leaves(
    world: World, tmp_path: Path, example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = tmp_path / "datasets/scenes"
    (tables / "similarity").mkdir(parents=True)
    for name in ("images", "captions", "sentences"):
        shutil.copy(world.root / f"{name}.parquet", tables)
    shutil.copytree(world.student, tables / "student")
    for name in ("dev", "test"):
        shutil.copy(world.root / "dev.tsv", tables / f"similarity/{name}.tsv")
    shutil.copytree(world.root / "features", tmp_path / "features/scenes/image/resnet")
    shutil.copytree(world.root / "tokens", tmp_path / "tokens/scenes-bert")
    example.main(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    best = max(float(line.split()[-1]) for line in lines if "dev" in line)
    assert lines[-1] == f"test {best:.2f}"  # the same file


def test_it_is_about_150_lines() -> None:
    assert len(SOURCE.read_text().splitlines()) <= 160
