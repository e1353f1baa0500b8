"""Sentences and images in the grounded space of finished runs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import World, make_world, silent

from sightline.cache import FeatureSet
from sightline.errors import SightlineError
from train.evaluate.models import (
    EvaluatedModel,
    image_space,
    open_features,
    project,
    rows_of_images,
)
from train.objectives import make_objective
from train.records import RunSummary
from train.train_run import train_run


@pytest.fixture(scope="module")
def runs(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name in ("simcse", "mcse"):
        train_run(world.spec(folder / name, name), say=silent)
    combined = {
        "parts": {
            "simcse": {},
            "mcse": {"parameters": {"image": "tiny-cnn", "weight": 0.5, "text_weight": 0}},
        }
    }
    features = {"image-tiny-cnn": world.root / "features"}
    train_run(
        world.spec(folder / "combined", "combined", parameters=combined, features=features),
        say=silent,
    )
    return folder


@pytest.mark.parametrize("name", ["mcse", "combined"])
def test_both_heads_are_those_of_the_run(world: World, runs: Path, name: str) -> None:
    model = EvaluatedModel.load(str(runs / name), device="cpu")
    space, heads = image_space(model), model.heads().modules
    prefix = "" if name == "mcse" else "mcse-"
    for head, found in (("grounding", space.sentences), ("image", space.images)):
        expected = heads[prefix + head].state_dict()
        assert all(torch.equal(value, expected[key]) for key, value in found.state_dict().items())


def test_the_parameters_of_a_finished_combination_make_it_again(runs: Path) -> None:
    summary = RunSummary.read(runs / "combined")
    again = make_objective("combined", summary.parameters)
    assert again.describe() == summary.parameters
    assert again.describe()["parts"]["mcse"]["parameters"]["weight"] == 0.5


def test_features_are_found_by_name_and_checked(world: World, runs: Path, tmp_path: Path) -> None:
    model = EvaluatedModel.load(str(runs / "mcse"), device="cpu")
    space = image_space(model)
    assert model.summary is not None
    name = model.summary.features["image-tiny-cnn"].name
    below = tmp_path / name
    below.parent.mkdir(parents=True)
    below.symlink_to(world.root / "features")
    for place in (below, tmp_path):
        assert open_features(space, model, place).fingerprint == space.fingerprint
    with pytest.raises(SightlineError, match=re.escape(str(tmp_path / "no" / name))):
        open_features(space, model, tmp_path / "no")
    other = replace(space, fingerprint="0" * 64)
    with pytest.raises(SightlineError, match="expected 0000"):
        open_features(other, model, world.root / "features")


def test_failed_images_are_left_out(tmp_path: Path) -> None:
    world = make_world(tmp_path, failed=3)
    features = FeatureSet.open(world.root / "features")
    rows, kept = rows_of_images(features, world.image_keys)
    assert kept.tolist() == list(range(3, 20))
    assert rows == pytest.approx(features.gather(features.rows(world.image_keys[3:])))
    with pytest.raises(SightlineError, match="all 3 images failed"):
        rows_of_images(features, world.image_keys[:3])


def test_the_command_finds_images(
    world: World, runs: Path, said: Callable[..., tuple[int, str, str]]
) -> None:
    words = ["look", "neighbours", "a red circle", "--json", "--k", "20", "--to-images"]
    words += ["--model", str(runs / "simcse"), "--model", str(runs / "mcse"), "--device", "cpu"]
    words += ["--data", str(world.root)]
    words += ["--features", str(world.root / "features")]
    code, out, err = said(*words)
    assert code == 0, err
    found = json.loads(out)
    assert found["models"]["mcse"]["queries"] == ["a red circle"]
    assert found["models"]["simcse"]["pictures"]["neighbours"] == []
    assert "simcse, images: its objective, simcse, projects no image features" in " ".join(
        found["notes"]
    )
    (images,) = found["models"]["mcse"]["pictures"]["neighbours"]
    assert sorted(each["images"][0] for each in images) == [f"{i:02d}.png" for i in range(20)]
    assert [each["images"][0] for each in images if each["own"]] == ["00.png"]

    model = EvaluatedModel.load(str(runs / "mcse"), device="cpu")
    space = image_space(model)
    text = project(space.sentences, model.encode(["a red circle"]))[0]
    rows, _ = rows_of_images(FeatureSet.open(world.root / "features"), world.image_keys)
    grounded = project(space.images, rows)
    norms = np.linalg.norm(grounded, axis=1) * np.linalg.norm(text)
    expected = np.sort(grounded @ text / norms)[::-1]
    assert [each["cosine"] for each in images] == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_run_of_an_older_version_is_one_clear_error(
    world: World, runs: Path, tmp_path: Path, said: Callable[..., tuple[int, str, str]]
) -> None:
    old = tmp_path / "old"
    shutil.copytree(runs / "mcse", old)
    summary = json.loads((old / "run.json").read_text())
    summary["features"] = {"image": summary["features"].pop("image-tiny-cnn")}
    (old / "run.json").write_text(json.dumps(summary))
    words = ["look", "neighbours", "a red circle", "--to-images", "--model", str(old)]
    words += ["--data", str(world.root), "--features", str(world.root / "features")]
    code, out, err = said(*words, "--device", "cpu")
    assert (code, out) == (1, "")
    assert f"{old}: its objective reads image-tiny-cnn, but the run learned from image" in err
    assert "train it again" in err
