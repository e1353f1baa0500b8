"""SimCSE and MCSE: their terms against a loop-by-loop step, both variants, terms switched off."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import World
from feature_sets import Features
from loss_oracles import info_nce
from step_oracle import (
    Case,
    OracleBatch,
    OracleStudent,
    Terms,
    check_terms_of_two_views,
    check_twenty_steps,
    check_whole_step,
    paired,
)
from torch import Tensor

from sightline.errors import SightlineError
from train.objectives import make_objective

OWN_NUMBERS = {"temperature": 0.07, "image_temperature": 0.1, "weight": 0.7, "text_weight": 0.3}


@pytest.fixture(scope="module")
def features(world: World, tmp_path_factory: pytest.TempPathFactory) -> Features:
    made = Features(world, tmp_path_factory.mktemp("mcse"))
    made.add("resnet", "image", dim=7)
    return made


def case_of(world: World, features: Features, name: str, **parameters: Any) -> Case:
    given = parameters if name == "simcse" else {"image": "resnet", **parameters}
    objective = make_objective(name, given)
    sets = dict.fromkeys((need.name for need in objective.features), "resnet")
    return Case(world, features, name, given, sets)


def oracle_of(name: str, parameters: dict[str, Any]) -> tuple[Terms, dict[str, float]]:
    """SimCSE's equation 4; MCSE's equations 3 and 4, with λ of the average over the views."""
    released = parameters.get("variant") == "released"
    weight = parameters.get("weight", 0.01) if name == "mcse" else 0
    weights = {"text": parameters.get("text_weight", 1.0)}
    weights["image"] = weight if released else weight / 2
    weights = {term: weight for term, weight in weights.items() if weight > 0}

    def terms(student: OracleStudent, given: OracleBatch) -> dict[str, Tensor]:
        views = given.first, given.second
        found: dict[str, Tensor] = {}
        if "text" in weights:
            projected = [[student.project("text", row) for row in view] for view in views]
            found["text"] = info_nce(*projected, parameters.get("temperature", 0.05))
        if "image" in weights and given.batch.stream == "pairs":
            images = [student.project("image", row) for row in given.features["image-resnet"]]
            temperature = parameters.get("image_temperature", 0.05)
            one, other = (
                info_nce([student.project("grounding", row) for row in view], images, temperature)
                for view in views
            )
            found["image"] = (one + other) / 2 if released else one + other
        return found

    return terms, weights


CASES = [
    ("simcse", {}),
    ("simcse", {"temperature": 0.2}),
    ("mcse", {}),
    ("mcse", OWN_NUMBERS),
    ("mcse", {"variant": "released", **OWN_NUMBERS}),
    ("mcse", {"weight": 0}),
]


@pytest.mark.parametrize(("name", "parameters"), CASES, ids=str)
def test_terms_and_gradients_are_those_of_the_equations(world, features, name, parameters):
    case = case_of(world, features, name, **parameters)
    terms, weights = oracle_of(name, parameters)
    check_whole_step(case, terms, weights)
    check_terms_of_two_views(case, terms, weights)


@pytest.mark.parametrize(("name", "parameters"), [CASES[0], CASES[3]], ids=str)
def test_twenty_steps_have_the_losses_of_the_equations(world, features, name, parameters, tmp_path):
    terms, weights = oracle_of(name, parameters)
    case = case_of(world, features, name, **parameters)
    check_twenty_steps(case, terms, weights, tmp_path / "released")
    check_twenty_steps(case, terms, weights, tmp_path / "torch", optimizer="torch")
    check_twenty_steps(case, terms, weights, tmp_path / "epsilon", epsilon=1e-8)


def test_both_variants_of_mcse_train_the_same_way(world, features):
    totals, logged = [], []
    for variant in ("paper", "released"):
        model, data = case_of(world, features, "mcse", variant=variant, weight=0.5).build()
        terms = model(paired(data))
        totals.append(float(terms["total"].detach()))
        logged.append(float(terms["image"].detach()))
    assert totals[0] == pytest.approx(totals[1], rel=1e-6)
    assert logged[0] == pytest.approx(2 * logged[1], rel=1e-6)


def test_defaults_are_the_papers():
    simcse, mcse = (
        make_objective(name, {"image": "x"} if name == "mcse" else {}).describe()
        for name in ("simcse", "mcse")
    )
    assert simcse["temperature"] == mcse["temperature"] == mcse["image_temperature"] == 0.05
    assert (mcse["weight"], mcse["text_weight"], mcse["caption"]) == (0.01, 1.0, "random")
    assert (mcse["variant"], mcse["projection_dim"]) == ("paper", 256)


def test_mcse_without_its_image_term_reads_and_trains_nothing_of_images(world, features):
    model, _ = case_of(world, features, "mcse", weight=0).build()
    assert set(model.heads) == {"text"}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "image is not given; name the image encoder, or set weight to 0"),
        ({"weight": 0, "text_weight": 0}, "every weight is 0"),
        ({"image": "x", "weight": -0.1}, "weight: input should be greater than or equal to 0"),
        ({"image": "x", "weight": float("inf")}, "weight: input should be a finite number"),
        ({"image": "x", "image_temperature": 0}, "image_temperature: input should be greater"),
        ({"image": "x", "variant": "ours"}, "variant: input should be 'paper' or 'released'"),
    ],
)
def test_bad_parameters(parameters, message):
    with pytest.raises(SightlineError, match=message):
        make_objective("mcse", parameters)
