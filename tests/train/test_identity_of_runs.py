"""Every setting of a run is in its digest, unless it is declared; copies elsewhere are the same."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import FIVE, Case
from pydantic import Field

from sightline.identity import Elsewhere, Outside, declared
from sightline.settings import Settings
from train.objectives import OBJECTIVES, Objective, make_objective, objective_class
from train.run_inputs import RunInputs, _digest
from train.run_spec import RunSpec, StudentConfig, TrainConfig

ANOTHER: Any = "another value"  # of any field: what is tested is that it is looked at


@pytest.fixture(scope="module")
def inputs(world, tmp_path_factory) -> RunInputs:
    """The opened inputs of a run."""
    return RunInputs.open(world.spec(tmp_path_factory.mktemp("unused") / "run"))


def digest_of(inputs: RunInputs, spec: RunSpec, objective: Objective | None = None) -> str:
    """The digest of a run with other settings over the same inputs."""
    opened = inputs.data, inputs.dev, inputs.student, inputs.recipe
    return _digest(spec, objective or inputs.objective, *opened)


def changes(model: type[Settings]) -> dict[str, bool]:
    """Field → whether the settings name a run by it themselves."""
    return {field: field not in declared(model) for field in model.model_fields}


@pytest.mark.parametrize("part", ["", "student", "train"])
def test_every_setting_of_a_run_is_in_its_digest_or_declared(inputs, part):
    spec = inputs.spec
    model = {"": RunSpec, "student": StudentConfig, "train": TrainConfig}[part]
    before, nested = digest_of(inputs, spec), {"student", "train", "pairs", "sentences"}
    for field, counts in changes(model).items():
        if field in nested:
            continue  # `pairs` and `sentences`: the content below; the others have their own turn
        changed: Any = spec
        if part:
            inner = getattr(spec, part).model_copy(update={field: ANOTHER})
            changed = spec.model_copy(update={part: inner})
        else:
            changed = spec.model_copy(update={field: ANOTHER})
        assert (digest_of(inputs, changed) != before) == counts, field


@pytest.mark.parametrize("name", [*OBJECTIVES.built_in])
def test_every_parameter_of_an_objective_is_in_the_digest(inputs, name):
    objective = make_objective(name, FIVE[name])
    assert not declared(type(objective))
    before = digest_of(inputs, inputs.spec, objective)
    for field in type(objective).model_fields:
        changed = objective.model_copy(update={field: ANOTHER})
        assert digest_of(inputs, inputs.spec, changed) != before, field


def test_what_is_declared_is_a_label_a_place_of_this_machine_or_named_otherwise():
    """The whole list: a new exception belongs here too."""
    names = {
        (model, field): type(mark)
        for model in (RunSpec, StudentConfig, TrainConfig)
        for field, mark in declared(model).items()
    }
    outside = {(model, field) for (model, field), mark in names.items() if mark is Outside}
    assert outside == {
        *((RunSpec, field) for field in ("run", "out", "device")),
        (StudentConfig, "name"),
        *((TrainConfig, f) for f in ("device_cache", "eval_batch_size", "logging_steps")),
        (TrainConfig, "save_steps"),
    }
    elsewhere = {(model, field) for (model, field), mark in names.items() if mark is Elsewhere}
    assert elsewhere == {
        *((RunSpec, f) for f in ("parameters", "pairs", "sentences", "tokens", "phrases")),
        *((RunSpec, f) for f in ("features", "dev")),
        *((StudentConfig, field) for field in ("model", "revision", "pooling", "prompt")),
    }


@pytest.mark.parametrize(
    "student",
    [{"layers": 1}, {"lora_rank": 4}, {"lora_rank": 4, "lora_alpha": 8.0}, {"pooling": "mean"}],
)
def test_a_run_with_another_student_is_another_run(world, inputs, tmp_path, student):
    assert RunInputs.open(world.spec(tmp_path / "run", student=student)).digest != inputs.digest


@pytest.mark.parametrize("used", [{"pooling": "mean"}, {"prompt": "a "}, {"normalize": True}])
def test_a_student_that_is_used_otherwise_is_another_run(inputs, used):
    other = replace(inputs, recipe=replace(inputs.recipe, **used))
    assert digest_of(other, other.spec) != digest_of(inputs, inputs.spec)


@pytest.fixture
def copied(world, tmp_path) -> Path:
    """The world at another place."""
    return Path(shutil.copytree(world.root, tmp_path / "copy"))


def test_a_copy_of_the_inputs_elsewhere_is_the_same_run(world, copied, tmp_path):
    before = RunInputs.open(world.spec(tmp_path / "run", "mcse")).digest
    elsewhere = type(world)(copied, copied / "student", world.image_keys)
    assert RunInputs.open(elsewhere.spec(tmp_path / "other", "mcse")).digest == before


@pytest.mark.parametrize("file", ["captions.parquet", "images.parquet", "sentences.parquet"])
def test_other_content_is_another_run(world, copied, tmp_path, file):
    elsewhere = type(world)(copied, copied / "student", world.image_keys)
    before = RunInputs.open(elsewhere.spec(tmp_path / "run", "mcse")).digest
    table = pq.read_table(copied / file)
    if "images" in file:
        wider = pa.array([9] * len(table), table.schema.field("width").type)
        table = table.set_column(table.schema.get_field_index("width"), "width", wider)
    pq.write_table(table.slice(0, len(table) - ("images" not in file)), copied / file)
    assert RunInputs.open(elsewhere.spec(tmp_path / "run", "mcse")).digest != before


def test_another_dev_set_is_another_run(world, copied, tmp_path):
    elsewhere = type(world)(copied, copied / "student", world.image_keys)
    before = RunInputs.open(elsewhere.spec(tmp_path / "run")).digest
    lines = (copied / "dev.tsv").read_text().splitlines()
    (copied / "dev.tsv").write_text("\n".join(lines[:-1]) + "\n")
    assert RunInputs.open(elsewhere.spec(tmp_path / "run")).digest != before


class Own(Objective):
    """Of another package."""

    name: ClassVar[str] = "own"
    source: ClassVar[str] = "a package"
    version: ClassVar[str] = "1"

    gamma: float = Field(default=1.0, gt=0)
    words: Path | None = None

    @property
    def weights(self) -> dict[str, float]:
        return {"text": 1.0}


def test_the_fields_files_and_version_of_a_packages_objective_are_in_the_digest(
    features, inputs, tmp_path, monkeypatch
):
    places = {**OBJECTIVES.places, "own": f"{__name__}:Own"}
    monkeypatch.setattr(OBJECTIVES, "places", places)
    assert objective_class("own") is Own
    here, there = tmp_path / "here.txt", tmp_path / "there.txt"
    for file in (here, there):
        file.write_text("a\nb\n")

    def digest(**parameters: Any) -> str:
        return RunInputs.open(Case(features, "own", parameters).spec()).digest

    before = digest(words=str(here))
    assert digest(words=str(there)) == before
    assert digest(words=str(here), gamma=3.0) != before
    monkeypatch.setattr(Own, "version", "2")
    assert digest(words=str(here)) != before
    monkeypatch.undo()
    monkeypatch.setattr(OBJECTIVES, "places", places)
    there.write_text("a\nc\n")
    assert digest(words=str(there)) != before
