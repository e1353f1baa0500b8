"""`--check N`: rows of a set are encoded again and compared; inputs are explicit or the graph's."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from command_line import sightline, unboxed
from demo_params import demo_params
from small_inputs import write_clip, write_photos
from tiny_scenes import TINY

from sightline.cache import FeatureSet, SetWriter, verify


def extract(folder: Path, kind: str, out: str, *more: object) -> int:
    data = folder / {"image": "photos", "text": "texts.txt"}[kind]
    words = ["--data", data, "--encoder", folder / "clip.json", "--out", folder / out]
    weights = [] if "--weights" in more else ["--weights", "random:0"]
    return sightline("extract", kind, *words, *weights, "--workers", 0, *more)


@pytest.fixture
def world(tmp_path) -> Path:
    """Photographs and texts with a feature set of each."""
    write_photos(tmp_path / "photos", 6)
    write_clip(tmp_path)
    (tmp_path / "texts.txt").write_text("a red bird\na boat on a lake\nnothing at all\n")
    for kind in ("image", "text"):
        assert extract(tmp_path, kind, kind) == 0
    return tmp_path


@pytest.mark.parametrize("kind", ["image", "text"])
def test_rows_are_encoded_again_and_nothing_is_written(capsys, world, kind):
    def written() -> dict[Path, int]:
        """When each file was; a reader may note which files it has checked."""
        files = (path for path in world.rglob("*") if path.is_file())
        return {path: path.stat().st_mtime_ns for path in files if path.name != "checked.json"}

    before = written()
    assert extract(world, kind, kind, "--check", 2) == 0
    assert "2 rows encoded again: 2 with identical bytes" in capsys.readouterr().out
    assert written() == before


def test_rows_that_the_encoder_does_not_reproduce_are_named(capsys, world):
    features = FeatureSet.open(world / "image")
    spec, keys = features.record.spec, np.array(features.keys)
    with SetWriter(world / "forged", spec) as writer:
        for batch in writer.plan(keys, batch_size=64):
            rows = np.random.default_rng(1).standard_normal((len(batch.keys), spec.dim))
            computed = features.record.shards[0].computed
            writer.add(batch.keys, rows.astype(np.float32), computed=computed)
        writer.publish()
    assert verify(world / "forged") == []
    capsys.readouterr()
    assert extract(world, "image", "forged", "--check", 6) == 1
    said = capsys.readouterr().out
    assert said.count("has cosine") == 6
    assert "0.png" in said


def test_an_encoder_that_differs_from_the_record_is_refused(capsys, world):
    assert extract(world, "image", "image", "--check", 2, "--weights", "random:1") == 1
    said = capsys.readouterr().err
    assert "differs from its record" in said
    assert "encoder.source: random:0 → random:1" in said


def test_inputs_of_another_set_are_refused(capsys, world):
    (world / "texts.txt").write_text("other\n")
    assert extract(world, "text", "text", "--check", 2) == 1
    assert "text: none of its 3 rows matches these inputs" in capsys.readouterr().err


STAGES = [
    ("prepare", "scenes"),
    ("ground", "scenes"),
    ("image-features", "scenes", "resnet"),
    ("object-features", "scenes", "clip"),
    ("text-features", "scenes", "clip"),
    ("teachers", "scenes", "similarity"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with params.yaml and the features that the graph makes from it."""
    folder = tmp_path_factory.mktemp("graph")
    (folder / ".dvc").mkdir()
    params = demo_params()
    params["datasets"]["scenes"] |= TINY
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for stage in STAGES:
            assert sightline("stage", *stage) == 0, stage
    return folder


@pytest.fixture
def graph(made, tmp_path, monkeypatch) -> Path:
    """A copy of `made`, and the current folder."""
    monkeypatch.chdir(shutil.copytree(made, tmp_path / "graph"))
    return Path()


def test_rows_of_every_kind_are_encoded_again_from_the_inputs_of_the_graph(graph, capsys):
    for stage in STAGES[2:]:
        capsys.readouterr()
        assert sightline("stage", *stage, "--check", 3) == 0
        said = capsys.readouterr().out
        assert said.startswith("data/features/scenes/")
        assert f"/{stage[2]}: 3 rows encoded again: 3 with identical bytes" in said


def test_objects_made_with_rules_that_differ_from_the_record_are_a_fault(graph, capsys):
    params = yaml.safe_load((graph / "params.yaml").read_text())
    params["extract"]["cutouts"] = {"margin": 0.4}
    (graph / "params.yaml").write_text(yaml.safe_dump(params))
    assert sightline("stage", "object-features", "scenes", "clip", "--check", 3) == 1
    said = capsys.readouterr().err
    assert "differs from its record" in said
    assert "margin" in said


@pytest.mark.parametrize("stage", [("ground", "scenes"), ("train", "simcse", "0"), ("tokens",)])
def test_only_features_can_be_checked(graph, capsys, stage):
    assert sightline("stage", *stage, "--check", 3) == 2
    assert f"the stage {stage[0]} does not take it" in unboxed(capsys.readouterr().err)
