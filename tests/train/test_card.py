"""The model card: what hubs read, what people read, and that its examples load the model."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from command_line import sightline
from huggingface_hub import ModelCard
from made_results import with_task
from training_world import silent

from sightline.cache.prepared import SCHEMA, hub_datasets
from train.card import model_card
from train.evaluate.evaluation import Evaluation, evaluate_model
from train.evaluate.models import EvaluatedModel
from train.evaluate.results import save_result
from train.evaluate.sts import load_graded_pairs
from train.objectives.mcse import MCSE
from train.train_run import train_run

TAGS = {"sentence-transformers", "feature-extraction", "sentence-similarity", "sightline", "mcse"}


@pytest.fixture(scope="module")
def result(trained, world):
    tasks = Evaluation.load({"similarity": {"data": world.spec(trained[0]).dev}})
    return evaluate_model(EvaluatedModel.load(str(trained[0])), tasks)


def card_of(summary, *results):
    return ModelCard(model_card(summary, MCSE.source, "cls", *results))


def test_hubs_read_it(trained, world):
    out, summary = trained
    card = ModelCard.load(out / "model/README.md")
    data = card.data
    assert data.library_name == "sentence-transformers"
    assert data.pipeline_tag == "sentence-similarity"
    assert set(data.tags) == TAGS | {"untrained-features"}
    assert data.get("base_model") is None  # a folder of this machine is no name on a hub
    assert data.get("datasets") is None
    (found,) = data.eval_results
    best = max(score for _, score in summary.dev_history)
    dev = load_graded_pairs(world.spec(out).dev)
    assert found.metric_value == pytest.approx(best, abs=1e-4)
    assert found.dataset_args == {"sha256": dev.sha256}
    assert found.dataset_split == "dev"
    assert dev.sha256 in card.text
    assert "Imported features" not in card.text  # computed here


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_its_examples_load_the_model(world, tmp_path, pooling):
    spec = world.spec(tmp_path / "run", train={"max_steps": 1})
    student = spec.student.model_copy(update={"pooling": pooling})
    train_run(spec.model_copy(update={"student": student}), say=silent)
    folder = tmp_path / "run/model"
    blocks = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.S)
    rows = []
    for block in blocks:
        names: dict = {}
        exec(block.replace("path/to/this/folder", str(folder)), names)
        rows.append(np.asarray(names["embeddings"]))
    first, second = rows
    assert first.shape == (1, 16)
    np.testing.assert_allclose(first, second, atol=1e-5)


def test_names_on_a_hub_and_doubts_are_said(trained):
    summary = trained[1]
    imported = dict.fromkeys(["provenance", "doubt"], "imported, not checked")
    used = summary.features["image-tiny-cnn"].model_copy(update={"untrained": False, **imported})
    more = {
        "base_model": "bert-base-uncased",
        "hub_datasets": ("somebody/captions",),
        "features": {"image": used},
        "run": 'a: "run" # of\tmine',
    }
    card = card_of(summary.model_copy(update=more))
    assert card.data.base_model == "bert-base-uncased"
    assert card.data.datasets == ["somebody/captions"]
    assert set(card.data.tags) == TAGS | {"imported-not-checked"}
    assert card.data.model_name == 'a: "run" # of\tmine, seed 0'
    assert "**Imported features**: `image` is imported, not checked." in card.text
    assert "Untrained" not in card.text


def test_every_score_of_a_result_is_there_with_the_digest_of_its_data(trained, result):
    summary = trained[1]
    by_name = {each.metric_name: each for each in card_of(summary, result).data.eval_results}
    assert set(by_name) == {"Spearman × 100", *result.scores}
    for name, data in result.evaluated_on.items():
        assert by_name[name].dataset_args == {"sha256": data.sha256}
        assert by_name[name].metric_value == pytest.approx(result.scores[name], abs=1e-4)
    undefined = with_task(result, scores={"similarity": None}, reasons={"similarity": "none"})
    card = card_of(summary, undefined)
    assert "similarity" not in {each.metric_name for each in card.data.eval_results}
    assert "| similarity | not defined |" in card.text


def test_without_a_dev_set_the_last_weights_are_exported_and_there_is_no_metric(world, tmp_path):
    summary = train_run(world.spec(tmp_path, dev=None, train={"max_steps": 1}), say=silent)
    assert summary.best_step is None
    assert summary.dev_history == []
    assert (tmp_path / "model/model.safetensors").is_file()
    assert not (tmp_path / "checkpoints").exists()
    card = ModelCard.load(tmp_path / "model/README.md")
    assert not card.data.eval_results
    assert "model-index" not in card.content
    assert "without a dev set" in card.text


def test_a_run_of_before_has_no_digest_and_says_none(trained):
    summary = trained[1].model_copy(update={"dev_sha256": ""})
    (found,) = card_of(summary).data.eval_results
    assert found.dataset_args is None


def test_data_sets_of_a_hub_are_found_beside_the_manifests(tmp_path):
    for name, text in {
        "one": json.dumps({"schema": SCHEMA, "hub_dataset": "a/b"}),
        "two": json.dumps({"schema": SCHEMA, "hub_dataset": "c,a/b"}),
        "none": json.dumps({"schema": SCHEMA, "kind": "pairs"}),
        "broken": "{",
        "list": "[]",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "dataset.json").write_text(text)
    names = ["one", "two", "none", "broken", "list", "absent"]
    assert hub_datasets(tmp_path / name for name in names) == ("a/b", "c")


def test_scores_of_another_training_are_refused(trained, result, tmp_path, capsys):
    (out, summary), file = trained, tmp_path / "result.json"
    save_result(result, file)
    assert sightline("evaluate", "--model", str(out), "--card", str(file)) == 0
    assert capsys.readouterr().out == model_card(summary, MCSE.source, "cls", result)
    save_result(result.model_copy(update={"run_sha256": "0" * 64}), file)
    assert sightline("evaluate", "--model", str(out), "--card", str(file)) == 1
    assert "its scores are of another training" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("asked", [{"precision": "bf16"}, {"pooling": "mean"}])
def test_scores_of_another_arithmetic_or_pooling_are_refused(
    trained, result, tmp_path, asked, capsys
):
    out, file = trained[0], tmp_path / "result.json"
    save_result(result.model_copy(update=asked), file)
    assert sightline("evaluate", "--model", str(out), "--card", str(file)) == 1
    assert "of another pooling or precision" in " ".join(capsys.readouterr().err.split())
    save_result(result.model_copy(update={"pooling": "cls"}), file)  # which is its own
    assert sightline("evaluate", "--model", str(out), "--card", str(file)) == 0


def test_it_holds_no_path_of_this_machine(trained, world):
    out, summary = trained
    assert str(world.root) in json.dumps(summary.model_dump(mode="json"))  # the record may
    for file in (out / "model").rglob("*"):
        if file.suffix in (".md", ".json"):
            assert str(world.root) not in file.read_text(), file.name
    card = (out / "model/README.md").read_text()
    assert f"`{world.student.name}` (weights SHA-256" in card
