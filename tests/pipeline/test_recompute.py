"""`cache verify --recompute` in the graph: encoder and inputs come from params.yaml."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from command_line import sightline
from demo_params import demo_params
from tiny_scenes import TINY

ROOT = Path(__file__).parents[2]
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


def test_rows_of_every_kind_are_re_encoded_from_the_inputs_of_the_graph(graph, capsys):
    assert sightline("cache", "verify", "data/features", "--recompute", 3) == 0
    said = capsys.readouterr().out
    for kind in ("image/resnet", "object/clip", "text/clip", "teacher/similarity"):
        assert f"data/features/scenes/{kind}: 3 rows re-encoded: 3 with identical bytes" in said
        assert f"data/features/scenes/{kind}: sound" in said


def test_objects_made_with_rules_that_differ_from_the_record_are_a_fault(graph, capsys):
    params = yaml.safe_load((graph / "params.yaml").read_text())
    params["extract"]["cutouts"] = {"margin": 0.4}
    (graph / "params.yaml").write_text(yaml.safe_dump(params))
    words = ["data/features/scenes/object/clip", "--recompute", 3]
    assert sightline("cache", "verify", *words) == 1
    said = capsys.readouterr().err
    assert "differs from its record" in said
    assert "margin" in said
