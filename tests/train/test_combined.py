"""Combinations: totals are those of the parts, heads are shared, bad combinations are refused."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from cases import TEACHERS, Case, paired, terms_of
from conftest import silent

from sightline.errors import SightlineError
from train.model import Student
from train.objectives import make_objective
from train.train_run import train_run

CLIP = {"image": "clip"}
DALR = {**CLIP, "teachers": TEACHERS}
OBJECT = {**CLIP, "text_weight": 0, "image_weight": 0, "object_weight": 0.3}


def combined(features, parts, **parameters):
    return Case(features, "combined", {"caption": "all", "parts": parts, **parameters})


def test_the_total_is_that_of_the_parts_with_their_weights(features):
    parts = {"dalr": {"parameters": DALR}, "mcseo": {"weight": 0.5, "parameters": OBJECT}}
    model, data = combined(features, parts).build()
    batch = paired(data)
    found = terms_of(model, batch)
    found["total"].backward()
    expected, gradients, total = {}, {}, 0.0
    for name, weight, parameters in (("dalr", 1.0, DALR), ("mcseo", 0.5, OBJECT)):
        objective = make_objective(name, parameters)
        dims = {need.name: data.dims[need.name] for need in objective.features}
        part = Student(copy.deepcopy(model.encoder), objective, "cls", dims).train()
        part.zero_grad()
        for kind, module in part.objective.heads.items():
            module.load_state_dict(model.objective.heads[f"dalr-{kind}"].state_dict())
        of_part = dataclasses.replace(batch, features={n: batch.features[n] for n in dims})
        terms = terms_of(part, of_part)
        (weight * terms["total"]).backward()
        total += weight * terms.pop("total").item()
        expected |= {f"{name}.{term}": value for term, value in terms.items()}
        for parameter, value in part.encoder.named_parameters():
            if value.grad is not None:
                gradients[parameter] = gradients.get(parameter, 0) + value.grad
    assert set(found) == {*expected, "total"}
    for term, value in expected.items():
        torch.testing.assert_close(found[term], value, rtol=1e-5, atol=1e-6)
    assert found["total"].item() == pytest.approx(total, rel=1e-5)
    for parameter, value in model.encoder.named_parameters():
        torch.testing.assert_close(value.grad, gradients[parameter], rtol=1e-3, atol=1e-5)


def test_heads_are_shared_where_they_project_the_same(features):
    parts = {
        "dalr": {"parameters": DALR},
        "mcseo": {"parameters": {**OBJECT, "image_weight": 0.1}},
        "kdmcse": {"parameters": {**CLIP, "text": "clip", "text_weight": 0}},
        "resnet": {"objective": "mcse", "parameters": {"image": "resnet", "text_weight": 0}},
        "narrow": {
            "objective": "mcse",
            "parameters": {**CLIP, "text_weight": 0, "projection_dim": 32},
        },
        "slim": {
            "objective": "mcse",
            "parameters": {**CLIP, "text_weight": 0, "projection_dim": 32},
        },
    }
    model, _ = combined(features, parts).build()
    objective, heads = model.objective, model.objective.heads
    assert set(heads) == {
        *("dalr-text", "dalr-grounding", "dalr-image", "kdmcse-teacher_text"),
        *("resnet-image", "narrow-grounding", "narrow-image"),
    }
    # encoders of one width are still two
    one_width = {need.name: 5 for need in objective.params.features}
    assert set(objective.params.build(8, one_width).heads) == set(heads)
    # each part has them by its own names
    dalr, mcseo, kdmcse, resnet, narrow, slim = (part.heads for part in objective.parts.values())
    assert dalr["image"] is mcseo["image"] is kdmcse["image"] is heads["dalr-image"]
    for part in (dalr, mcseo, kdmcse, resnet):
        assert part["grounding"] is heads["dalr-grounding"]
    assert kdmcse["teacher_text"] is heads["kdmcse-teacher_text"]
    assert resnet["image"] is heads["resnet-image"]
    assert narrow["image"] is slim["image"] is heads["narrow-image"]
    assert narrow["grounding"] is slim["grounding"] is heads["narrow-grounding"]
    # a checkpoint has each once, and all are trained
    kept = [name for name in model.kept() if name.startswith("objective.")]
    assert {name.split(".")[2] for name in kept} == set(heads)
    assert len(kept) == len(list(objective.parameters()))


def test_a_combination_trains_and_logs_every_term(features, tmp_path):
    parts = {
        "dalr": {"parameters": {**DALR, "consistency_weight": 0}},
        "mcseo": {"parameters": OBJECT},
    }
    case = combined(features, parts, shuffle_objects=True)
    summary = train_run(case.spec(tmp_path / "run", max_steps=2), say=silent)
    needed = {"image-clip", "object-clip", "teacher-first", "teacher-second"}
    assert summary.features.keys() == needed
    assert summary.parameters["parts"]["mcseo"]["parameters"]["object_weight"] == 0.3
    assert summary.parameters["shuffle_objects"] is True
    logged = {name for entry in summary.log for name in entry}
    assert {"loss_dalr.text", "loss_dalr.ranking", "loss_mcseo.object"} <= logged
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "DALR" in card
    assert "MCSEO" in card


def test_its_description_makes_it_again():
    parts = {
        "dalr": {"parameters": {**DALR, "temperature": 0.2}},
        "mcseo": {"weight": 0.5, "parameters": OBJECT},
        "off": {"objective": "mcse", "weight": 0, "parameters": CLIP},
    }
    one = make_objective("combined", {"parts": parts, "caption": "longest", "data_seed": 3})
    again = make_objective("combined", one.describe())
    assert list(one.objectives) == ["dalr", "mcseo"]
    assert again.describe() == one.describe()
    assert again.weights == one.weights
    assert again.objectives["dalr"] == one.objectives["dalr"]
    assert again.objectives["dalr"].caption == "longest"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "parts: dictionary should have at least 1 item"),
        ({"dalr": {"weight": -1, "parameters": DALR}}, "greater than or equal to 0"),
        ({"dalr": {"weight": 0, "parameters": DALR}}, "every part has weight 0"),
        ({"nobody": {}}, "unknown objective 'nobody'"),
        ({"a.b": {"objective": "simcse"}}, "name must have no dots"),
        ({"x": {"objective": "combined"}}, "must not be a combination"),
        (
            {"simcse": {"parameters": {"caption": "all"}}},
            "parts.simcse: caption belongs to the combination",
        ),
        (
            {"simcse": {}, "mcse": {"parameters": CLIP}},
            "parts simcse and mcse both have the text term",
        ),
        (
            {"mcse": {"parameters": {**CLIP, "wieght": 1}}},
            "objective mcse: unknown key 'wieght'; did you mean 'weight'",
        ),
    ],
)
def test_bad_combinations(parts, message):
    with pytest.raises(SightlineError, match=message):
        make_objective("combined", {"parts": parts})


def test_a_temperature_belongs_to_a_part():
    with pytest.raises(
        SightlineError, match=r"temperature is a parameter of each part; give it there$"
    ):
        make_objective("combined", {"parts": {"simcse": {}}, "temperature": 0.1})
