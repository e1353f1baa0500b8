"""The student: which files it was, from a folder or the hub, and what a run records of them."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from huggingface_hub import ModelCard
from pydantic import ValidationError
from training_world import silent

from sightline.errors import SightlineError
from sightline.models.sentence_transformers_folder import pin
from train.evaluate.evaluation import Evaluation, evaluate_model
from train.evaluate.models import EvaluatedModel
from train.records import RunSummary
from train.run_inputs import RunInputs
from train.run_spec import StudentConfig
from train.train_run import train_run

COMMIT = "c" * 40


@pytest.fixture
def on_hub(world, tmp_path, monkeypatch):
    """The student in a cache as the hub model ``papers/student``."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "cache/models--papers--student"
    (place / "refs").mkdir(parents=True)
    (place / "refs/main").write_text(COMMIT)
    shutil.copytree(world.student, place / "snapshots" / COMMIT)
    card = "---\nlicense: apache-2.0\n---\n\n# A student\n"
    (place / "snapshots" / COMMIT / "README.md").write_text(card)
    return place


def spec_of(world, out, model):
    student = {"model": model, "max_length": 16}
    base = world.spec(out, train={"max_steps": 2})
    return base.model_copy(update={"student": StudentConfig.model_validate(student)})


def test_a_name_may_have_its_revision(tmp_path):
    config = StudentConfig.model_validate({"model": f"papers/student@{COMMIT}"})
    assert (config.model, config.revision, config.name) == ("papers/student", COMMIT, "student")
    assert config.source == f"papers/student@{COMMIT}"
    (tmp_path / "a@b").mkdir()
    config = StudentConfig.model_validate({"model": str(tmp_path / "a@b")})
    assert (config.source, config.revision) == (str(tmp_path / "a@b"), "")


def test_a_revision_in_the_name_is_never_overruled():
    model = f"papers/student@{COMMIT}"
    for revision in ("", COMMIT):
        config = StudentConfig.model_validate({"model": model, "revision": revision})
        assert config.source == model
    with pytest.raises(ValidationError, match=f"revision is main, but model names {COMMIT}"):
        StudentConfig.model_validate({"model": model, "revision": "main"})


def test_a_run_records_the_files_of_its_student_wherever_they_came_from(world, tmp_path, on_hub):
    of_folder = RunInputs.open(spec_of(world, tmp_path / "a", str(world.student)))
    by_branch = RunInputs.open(spec_of(world, tmp_path / "b", "papers/student"))
    by_commit = RunInputs.open(spec_of(world, tmp_path / "c", f"papers/student@{COMMIT}"))
    assert (of_folder.student.revision, by_branch.student.revision) == ("", COMMIT)
    assert by_branch.student == by_commit.student
    for name in ("weights_sha256", "tokenizer_sha256"):
        assert getattr(of_folder.student, name) == getattr(by_branch.student, name) != ""
    assert of_folder.digest == by_branch.digest == by_commit.digest
    summary = train_run(spec_of(world, tmp_path / "c", f"papers/student@{COMMIT}"), say=silent)
    assert summary.pinned == by_commit.student
    assert (summary.base_model, summary.student["revision"]) == ("papers/student", COMMIT)
    card = (tmp_path / "c/model/README.md").read_text()
    data = ModelCard.load(tmp_path / "c/model/README.md").data
    assert (data.base_model, data.license) == ("papers/student", "apache-2.0")
    assert f"commit {COMMIT}, weights SHA-256 `{summary.pinned.weights_sha256[:12]}`" in card


@pytest.mark.parametrize(
    ("front", "expected"),
    [
        ("license: [mit, apache-2.0]", (("mit", "apache-2.0"), "", "")),
        (
            "license: other\nlicense_name: lake\nlicense_link: LICENSE",
            ("other", "lake", f"https://huggingface.co/papers/student/resolve/{COMMIT}/LICENSE"),
        ),
        (
            "license: other\nlicense_name: lake\nlicense_link: https://example.org/lake",
            ("other", "lake", "https://example.org/lake"),
        ),
        ("tags: [boat]", ("", "", "")),
    ],
)
def test_a_licence_travels_as_it_is_stated(world, tmp_path, on_hub, front, expected):
    card = on_hub / "snapshots" / COMMIT / "README.md"
    card.write_text(f"---\n{front}\n---\n\n# A student\n")
    train_run(spec_of(world, tmp_path / "run", f"papers/student@{COMMIT}"), say=silent)
    data = ModelCard.load(tmp_path / "run/model/README.md").data.to_dict()
    licence, name, link = expected
    stated = [*licence] if isinstance(licence, tuple) else licence or None
    found = [data.get(key) for key in ("license", "license_name", "license_link")]
    assert found == [stated, name or None, link or None]
    summary = RunSummary.read(tmp_path / "run")
    assert (summary.licence, summary.licence_name, summary.licence_link) == expected


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_other_files_under_the_same_name_are_another_student(world, tmp_path, file, on_hub):
    before = RunInputs.open(spec_of(world, tmp_path / "run", "papers/student"))
    path = on_hub / "snapshots" / COMMIT / file
    path.write_bytes(path.read_bytes() + b" ")
    after = RunInputs.open(spec_of(world, tmp_path / "run", "papers/student"))
    assert before.digest != after.digest
    assert before.student != after.student


def test_a_folder_has_no_revision(world, tmp_path):
    base = world.spec(tmp_path / "run")
    student = base.student.model_copy(update={"revision": COMMIT})
    with pytest.raises(SightlineError, match=r"there is no such folder|has no revision"):
        train_run(base.model_copy(update={"student": student}), say=silent)


def test_a_result_records_which_model_of_the_hub_was_scored(world, on_hub):
    model = EvaluatedModel.load(f"papers/student@{COMMIT}", "cls", "cpu")
    tasks = Evaluation.load({"similarity": {"data": world.root / "dev.tsv"}})
    result = evaluate_model(model, tasks)
    assert result.pinned == replace(pin(world.student), revision=COMMIT)
