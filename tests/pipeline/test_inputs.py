"""The stage `inputs`: what it writes of files that settings name, of code, of what is not here."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from demo_params import demo_params
from installed_package import forget, forget_sources, install

from pipeline import layout
from pipeline.encoders.config import EncoderConfig
from pipeline.grounding.settings import GrounderSettings
from pipeline.inputs import SCHEMA, Inputs
from pipeline.params import Params, validate_params

OF_FEATURES = {"tasks/retrieval", "tasks/neighbours"}
"""The tasks that read features, and so what any encoder reads."""
PACKAGE = {
    "__init__.py": "",
    "cells.py": """
from pathlib import Path
from typing import Literal
from pipeline.encoders.config import EncoderConfig

class Cells(EncoderConfig):
    family: Literal["cells"]
    words: Path | None = None
    table: str = "none"
""",
    "words.py": """
from pathlib import Path
from typing import Literal
from pipeline.grounding.settings import GrounderSettings

class Words(GrounderSettings):
    family: Literal["words"]
    lists: dict[str, list[Path]] = {}

    def build(self, device, precision):
        return None
""",
}


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """The installed package `addon` with an encoder and a grounder."""
    folder = tmp_path / "site/addon"
    folder.mkdir(parents=True)
    for name, text in PACKAGE.items():
        (folder / name).write_text(text)
    points = {
        "sightline.encoders": {"cells": "addon.cells:Cells"},
        "sightline.grounders": {"words": "addon.words:Words"},
    }
    install(tmp_path / "site", "addon", points)
    monkeypatch.syspath_prepend(tmp_path / "site")
    registries = [EncoderConfig.families, GrounderSettings.families]
    forget(registries)
    yield folder
    forget(registries, "addon")


@pytest.fixture
def project(tmp_path, monkeypatch, package) -> Callable[..., Params]:
    """Parameters whose settings name files, in the folder of a project."""
    folder = tmp_path / "project"
    (folder / ".dvc/tmp").mkdir(parents=True)
    monkeypatch.chdir(folder)
    for name in ("weights.pt", "words.txt", "table.csv", "nouns.txt", "splits/train.txt"):
        write(f"raw/{name}", name)
    for name in ("model.safetensors", "config.json", "tokenizer.json", "README.md", ".cache/x"):
        write(f"raw/student/{name}", name)
        write(f"raw/teacher/{name}", name)

    def given() -> Params:
        cells = {"family": "cells", "model": "cells", "weights": "file:raw/weights.pt"}
        cells |= {"words": "raw/words.txt", "table": "raw/table.csv"}
        teacher = {"family": "transformers", "model": "raw/teacher", "weights": "pretrained"}
        params = demo_params()
        params["encoders"]["image"]["cells"] = cells
        params["encoders"]["teacher"]["bert"] = teacher
        lists = {"nouns": ["raw/nouns.txt"]}
        params["grounding"]["grounder"] = {"family": "words", "lists": lists}
        params["student"]["model"] = "raw/student"
        pairs = {"kind": "pairs", "source": "raw/album", "images": "photographs"}
        pairs |= {"captions": "captions.csv", "splits": {"train": f"{folder}/raw/splits/train.txt"}}
        params["datasets"]["album"] = pairs
        return validate_params(params, "params.yaml")

    return given


def write(path: Path | str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
    os.utime(path, (1, 1))  # settled long ago, so that it is remembered


def changed(before: Inputs, after: Inputs) -> set[str]:
    assert before.bodies.keys() == after.bodies.keys()
    return {name for name in before.bodies if before.bodies[name] != after.bodies[name]}


@pytest.mark.parametrize(
    ("file", "read_by"),
    [
        ("weights.pt", {"encoders/image/cells", *OF_FEATURES}),
        ("words.txt", {"encoders/image/cells", *OF_FEATURES}),
        ("table.csv", {"encoders/image/cells", *OF_FEATURES}),
        ("teacher/model.safetensors", {"encoders/teacher/bert", *OF_FEATURES}),
        ("teacher/tokenizer.json", {"encoders/teacher/bert", *OF_FEATURES}),
        ("nouns.txt", {"grounding"}),
        ("student/model.safetensors", {"student/weights"}),
        ("student/config.json", {"student/weights"}),
        ("student/tokenizer.json", {"student/weights", "student/tokenizer"}),
        ("student/1_Pooling/config.json", {"student/weights"}),
        ("student/README.md", set()),
        ("student/.cache/x", set()),
        ("splits/train.txt", {"datasets/album"}),
    ],
)
def test_another_file_in_place_of_one_is_seen_by_what_reads_it_alone(project, file, read_by):
    first = Inputs(project())
    first.write()
    assert changed(first, Inputs(project())) == set()
    write(f"raw/{file}", "other")
    second = Inputs(project())
    assert changed(first, second) == read_by
    assert second.changed() == {layout.inputs_file(name) for name in read_by}


def test_a_file_of_the_same_size_and_time_is_read_again(project):
    first = Inputs(project())
    first.write()
    text = Path("raw/words.txt").read_text()
    write("raw/words.txt", text[::-1])
    assert changed(first, Inputs(project())) == {"encoders/image/cells", *OF_FEATURES}


def test_what_is_not_on_this_machine_keeps_its_identity_and_is_named(project):
    first = Inputs(project())
    first.write()
    assert first.kept == []
    shutil.rmtree("raw")
    second = Inputs(project())
    assert changed(first, second) == set()
    assert "encoders/image/cells: raw/weights.pt is not here, and keeps its identity" in second.kept
    assert {line.split()[1] for line in second.kept} >= {"raw/student", "raw/teacher"}
    second.write()
    write("raw/weights.pt", "other")
    assert changed(first, Inputs(project())) == {"encoders/image/cells", *OF_FEATURES}


def test_the_identity_of_a_file_under_another_name_is_not_kept(project):
    first = Inputs(project())
    first.write()
    shutil.move("raw/student", "raw/another")
    params = project()
    moved = params.student.model_copy(update={"model": "raw/absent"})
    absent = Inputs(params.model_copy(update={"student": moved}))
    assert absent.bodies["student/weights"]["files"] == {}


def test_names_of_the_hub_and_words_are_no_files(project):
    params = project()
    student = params.student.model_copy(update={"model": "bert-base-uncased"})
    params = params.model_copy(update={"student": student})
    assert Inputs(params).bodies["student/weights"]["files"] == {}
    assert set(Inputs(params).bodies["encoders/image/cells"]["files"]) == {
        *("weights", "words", "table"),
    }
    write("none", "a file with the name of a word")
    Path("clip").mkdir()
    assert changed(Inputs(project()), Inputs(params)) == {"student/weights", "student/tokenizer"}


def test_files_within_the_source_of_a_data_set_are_left_to_dvc(project):
    write("raw/album/captions.csv", "image,caption\n")
    write("raw/album/photographs/1.png", "")
    files = Inputs(project()).bodies["datasets/album"]["files"]
    assert list(files) == ["splits.train"]


def test_what_the_graph_makes_is_known_by_what_it_is_made_from(project):
    def student(settings: dict[str, Any]) -> Inputs:
        params = demo_params()
        params["datasets"]["scenes"] |= settings
        return Inputs(validate_params(params, "params.yaml"))

    before = student({})
    student_files = before.bodies["student/weights"]["files"]["model"]
    assert student_files.keys() == {"place", "made_from"}
    write("data/datasets/scenes/student/model.safetensors", "made")
    assert changed(before, student({})) == set()
    after = changed(before, student({"seed": 9}))
    assert after >= {"student/weights", "student/tokenizer", "encoders/image/clip", "grounding"}
    assert "systems/simcse" not in after
    tower = {"family": "torchvision", "model": "resnet18", "weights": "random:1"}
    params = demo_params()
    params["encoders"]["image"]["resnet"] = tower
    other = Inputs(validate_params(params, "params.yaml"))
    assert changed(before, other) == {"encoders/image/resnet", *OF_FEATURES}


def test_the_code_of_a_package_is_that_of_what_it_makes_alone(project, package):
    first = Inputs(project())
    assert set(first.bodies["encoders/image/cells"]["code"]) == {
        *("addon", "addon.cells", "addon.words"),
    }
    assert first.bodies["grounding"]["code"] == first.bodies["encoders/image/cells"]["code"]
    assert "code" not in first.bodies["encoders/image/clip"]
    (package / "cells.py").write_text(f"{PACKAGE['cells.py']}\nMORE = 1  # a comment\n")
    forget_sources()
    assert changed(first, Inputs(project())) == {
        *("encoders/image/cells", "grounding"),
        *OF_FEATURES,
    }


def test_files_of_what_the_parameters_no_longer_name_go_and_others_stay(project):
    write(layout.inputs_file("tasks/gone"), json.dumps({"schema": SCHEMA}))
    write(layout.inputs_file("tasks/mine"), "{}")
    write(layout.INPUTS / "notes.txt", "mine")
    inputs = Inputs(project())
    assert layout.inputs_file("tasks/gone") in inputs.changed()
    inputs.write()
    assert not layout.inputs_file("tasks/gone").exists()
    assert layout.inputs_file("tasks/mine").read_text() == "{}"
    assert (layout.INPUTS / "notes.txt").exists()
    assert Inputs(project()).changed() == set()


def test_a_file_that_did_not_change_is_not_written_again(project):
    Inputs(project()).write()
    times = {path: path.stat().st_mtime_ns for path in layout.INPUTS.rglob("*.json")}
    Inputs(project()).write()
    assert {path: path.stat().st_mtime_ns for path in layout.INPUTS.rglob("*.json")} == times
