"""examples/mcse_from_cache.py: the trainer's losses from the same weights, and a scored model."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from conftest import World, silent
from feature_sets import Features
from step_oracle import Case, Recorder

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
    world: World, tmp_path: Path, example: ModuleType
) -> None:
    features = Features(world, tmp_path / "sets")
    features.add("cnn", "image", dim=7)
    parameters = {"image": "cnn", "weight": example.WEIGHT, "caption": "all"}
    case = Case(world, features, "mcse", parameters, {"image-cnn": "cnn"})
    spec = case.spec(tmp_path / "run", max_steps=STEPS)
    recorder = Recorder()
    train_run(spec, say=silent, callbacks=[recorder])
    data = example.Data(world.root, tmp_path / "sets/cnn", world.root / "tokens")
    model = example.MCSE(Path(spec.student.model), data.features.dim)
    assert list(model.state_dict()) == list(recorder.start)
    model.load_state_dict(recorder.start)
    losses = [loss for _, loss in example.train(model, data, STEPS)]
    assert losses == pytest.approx([entry["loss"] for entry in recorder.logs], abs=1e-5)
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
