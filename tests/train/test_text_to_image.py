"""Sentences and images in the grounded space of finished runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import World, make_world, silent

from pipeline.cache import FeatureSet
from pipeline.cli import main
from sightline.errors import SightlineError
from train.evaluate.evaluated_model import EvaluatedModel, NoHeadsError
from train.evaluate.grounded_space import GroundedSpace, rows_of_images
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
    space = GroundedSpace.of(model)
    heads = model.heads().modules
    prefix = "" if name == "mcse" else "mcse-"
    rows, kept = rows_of_images(space.open_features(world.root / "features"), world.image_keys)
    assert kept.tolist() == list(range(20))
    embeddings = model.encode(["a red circle", "one ring painted blue on the left"])
    with torch.inference_mode():
        for head, given, found in (
            ("grounding", embeddings, space.sentences(embeddings)),
            ("image", rows, space.images(rows)),
        ):
            expected = heads[prefix + head](torch.from_numpy(given.astype(np.float32))).numpy()
            assert found == pytest.approx(expected, abs=1e-6)
            assert found.shape == (len(given), 256)


def test_a_run_without_images_has_no_grounded_space(runs: Path) -> None:
    with pytest.raises(NoHeadsError, match="did not learn from images"):
        GroundedSpace.of(EvaluatedModel.load(str(runs / "simcse"), device="cpu"))


def test_features_of_another_encoder_are_refused(world: World, runs: Path, tmp_path: Path) -> None:
    space = GroundedSpace.of(EvaluatedModel.load(str(runs / "mcse"), device="cpu"))
    with pytest.raises(SightlineError, match="no such|no feature set|does not"):
        space.open_features(tmp_path)


def test_failed_images_are_left_out(tmp_path: Path) -> None:
    world = make_world(tmp_path, failed=3)
    features = FeatureSet.open(world.root / "features")
    rows, kept = rows_of_images(features, world.image_keys)
    assert kept.tolist() == list(range(3, 20))
    assert rows == pytest.approx(features.gather(features.rows(world.image_keys[3:])))
    with pytest.raises(SightlineError, match="all 3 images failed"):
        rows_of_images(features, world.image_keys[:3])


def test_the_command_finds_images(
    world: World, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sightline", "neighbours", "a red circle", "--json", "--k", "20", "--to-images"]
    words += ["--model", str(runs / "simcse"), "--model", str(runs / "mcse"), "--device", "cpu"]
    words += ["--captions", str(world.root / "captions.parquet")]
    words += ["--images-manifest", str(world.root / "images.parquet")]
    words += ["--features", str(world.root / "features")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as caught:
        main()
    assert not caught.value.code
    found = json.loads(capsys.readouterr().out)
    (query,) = found["queries"]
    assert query["nearest_images"]["simcse"] is None
    assert "simcse, images: it did not learn from images" in " ".join(found["notes"])
    images = query["nearest_images"]["mcse"]
    assert sorted(each["images"][0] for each in images) == [f"{i:02d}.png" for i in range(20)]
    assert [each["images"][0] for each in images if each["own_image"]] == ["00.png"]

    model = EvaluatedModel.load(str(runs / "mcse"), device="cpu")
    space = GroundedSpace.of(model)
    text = space.sentences(model.encode(["a red circle"]))[0]
    rows, _ = rows_of_images(space.open_features(world.root / "features"), world.image_keys)
    grounded = space.images(rows)
    norms = np.linalg.norm(grounded, axis=1) * np.linalg.norm(text)
    expected = np.sort(grounded @ text / norms)[::-1]
    assert [each["cosine"] for each in images] == pytest.approx(expected.tolist(), abs=1e-5)
