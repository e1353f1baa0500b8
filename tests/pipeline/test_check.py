"""`--check N`: rows of a set are encoded again and compared; inputs are explicit or the graph's."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from small_inputs import extracting

from pipeline import check
from sightline.cache import FeatureSet, SetWriter, verify


@pytest.mark.parametrize("kind", ["image", "text"])
def test_rows_are_encoded_again_and_nothing_is_written(says, world, kind):
    def written() -> dict[Path, int]:
        """When each file was; a reader may note which files it has checked."""
        files = (path for path in world.rglob("*") if path.is_file())
        return {path: path.stat().st_mtime_ns for path in files if path.name != "checked.json"}

    before = written()
    assert "2 rows encoded again: 2 with identical bytes" in says(
        *extracting(kind, kind, "--check", 2)
    )
    assert written() == before


def test_rows_are_encoded_again_with_the_threads_and_batches_of_the_record(
    says, world, monkeypatch
):
    says(*extracting("image", "own", "--batch-size", 4))  # with one thread
    used, extract = [], check.extract

    def noted(inputs, config, out, settings):
        used.append((settings.threads, settings.batch_size))
        return extract(inputs, config, out, settings)

    monkeypatch.setattr(check, "extract", noted)
    says(*extracting("image", "own", "--check", 2, "--threads", 2, "--batch-size", 8))
    assert used == [(1, 4)]


def test_rows_that_the_encoder_does_not_reproduce_are_named(said, world):
    features = FeatureSet.open("image")
    spec, keys = features.record.spec, np.array(features.keys)
    with SetWriter(Path("forged"), spec) as writer:
        for batch in writer.plan(keys, batch_size=64):
            rows = np.random.default_rng(1).standard_normal((len(batch.keys), spec.dim))
            computed = features.record.shards[0].computed
            writer.add(batch.keys, rows.astype(np.float32), computed=computed)
        writer.publish()
    assert verify(Path("forged")) == []
    code, out, _ = said(*extracting("image", "forged", "--check", 6))
    assert (code, out.count("has cosine"), "0.png" in out) == (1, 6, True)


def test_another_encoder_and_other_inputs_are_refused(fails, world):
    err = fails(*extracting("image", "image", "--check", 2, "--weights", "random:1"))
    assert "differs from its record" in err
    assert "encoder.source: random:0 → random:1" in err
    Path("texts.txt").write_text("other\n")
    assert "text: none of its 3 rows matches these inputs" in fails(
        *extracting("text", "text", "--check", 2)
    )


FEATURES = [
    "image-features scenes resnet",
    "object-features scenes clip",
    "text-features scenes clip",
    "teachers scenes similarity",
]


@pytest.fixture
def graph(finished, tmp_path, monkeypatch) -> Path:
    """A copy of the finished graph, and the current folder."""
    monkeypatch.chdir(shutil.copytree(finished, tmp_path / "graph"))
    return Path()


def test_rows_of_every_kind_are_encoded_again_from_the_inputs_of_the_graph(graph, says):
    for stage in FEATURES:
        out = says("stage", *stage.split(), "--check", 3)
        assert out.startswith("data/features/scenes/")
        assert f"/{stage.split()[2]}: 3 rows encoded again: 3 with identical bytes" in out


def test_objects_made_with_rules_that_differ_from_the_record_are_a_fault(graph, fails):
    params = yaml.safe_load((graph / "params.yaml").read_text())
    params["extract"]["cutouts"] = {"margin": 0.4}
    (graph / "params.yaml").write_text(yaml.safe_dump(params))
    err = fails("stage", "object-features", "scenes", "clip", "--check", 3)
    assert "differs from its record" in err
    assert "margin" in err


@pytest.mark.parametrize("stage", ["ground scenes", "train simcse 0", "tokens"])
def test_only_features_can_be_checked(fails, stage):
    err = fails("stage", *stage.split(), "--check", 3, code=2)
    assert f"the stage {stage.split()[0]} does not take it" in err
