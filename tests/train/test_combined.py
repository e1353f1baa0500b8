"""Combinations: totals are those of the parts, heads are shared, bad combinations are refused."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from cases import TEACHERS, Case, paired
from conftest import silent

from sightline.errors import SightlineError
from train.model import GroundedModel
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
    found = model(batch)
    found["total"].backward()
    expected, gradients, total = {}, {}, 0.0
    for name, weight, parameters in (("dalr", 1.0, DALR), ("mcseo", 0.5, OBJECT)):
        objective = make_objective(name, parameters)
        dims = {need.name: data.dims[need.name] for need in objective.features}
        part = GroundedModel(copy.deepcopy(model.encoder), objective, "cls", dims).train()
        part.zero_grad()
        for kind, module in part.heads.items():
            module.load_state_dict(model.heads[f"dalr-{kind}"].state_dict())
        terms = part(dataclasses.replace(batch, features={n: batch.features[n] for n in dims}))
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
        "mcse": {"parameters": CLIP},
        "kdmcse": {"parameters": {**CLIP, "text": "clip", "text_weight": 0}},
        "resnet": {"objective": "mcse", "parameters": {"image": "resnet", "text_weight": 0}},
    }
    model, _ = combined(features, parts).build()
    heads = {
        *("mcse-text", "mcse-grounding", "mcse-image"),
        *("kdmcse-teacher_text", "resnet-image"),
    }
    assert set(model.heads) == heads
    # encoders of one width are still two
    objective = model.objective
    assert set(objective.heads(8, {need.name: 5 for need in objective.features})) == heads


def test_each_part_sees_the_heads_by_its_own_names(features):
    narrow = {**CLIP, "text_weight": 0, "projection_dim": 32}
    parts = {
        "dalr": {"parameters": DALR},
        "mcseo": {"parameters": {**OBJECT, "image_weight": 0.1}},
        "narrow": {"objective": "mcse", "parameters": narrow},
    }
    model, _ = combined(features, parts).build()
    (_, dalr), (_, mcseo), (_, narrow) = model.objective.parts(model.heads)
    for head in ("grounding", "image"):
        assert dalr[head] is mcseo[head] is model.heads[f"dalr-{head}"]
        assert narrow[head] is model.heads[f"narrow-{head}"]
    with pytest.raises(KeyError):
        narrow["teacher_text"]
    again = make_objective("combined", model.objective.describe())  # it made no heads itself
    assert again.parts(model.heads)[1][1]["image"] is model.heads["dalr-image"]


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
    assert again.describe() == one.describe()
    assert again.weights == one.weights
    assert again.objectives["dalr"].params == one.objectives["dalr"].params
    assert again.objectives["dalr"].params.caption == "longest"


def test_a_part_of_weight_zero_is_dropped(features):
    parts = {"mcse": {"parameters": CLIP}, "dalr": {"weight": 0, "parameters": DALR}}
    model, data = combined(features, parts).build()
    assert data.dims.keys() == {"image-clip"}
    assert set(model(paired(data))) == {"mcse.text", "mcse.image", "total"}


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
    with pytest.raises(SightlineError, match="temperature is a parameter of each part"):
        make_objective("combined", {"parts": {"simcse": {}}, "temperature": 0.1})
