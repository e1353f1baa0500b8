"""DALR: its terms against a loop-by-loop step, any teachers, terms switched off, bad parameters."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import World
from feature_sets import Features
from loss_oracles import (
    Row,
    consistency_loss,
    cosine,
    cosines,
    cross_modal_alignment,
    info_nce,
    kl_alignment,
    list_mle,
    mean,
)
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
from train.objectives.objective import Views
from train.train_run import train_run

MIX = [{"encoder": "first", "weight": 0.33}, {"encoder": "second", "weight": 0.67}]
TEACHERS = {"teacher-first": "first", "teacher-second": "second"}
DEFAULTS = {
    "text": 1.0,
    "image": 1.0,
    "consistency": 0.1,
    "cross_modal": 0.1,
    "ranking": 0.2,
    "intra_modal": 0.2,
}
OWN_NUMBERS = {
    "temperature": 0.07,
    "image_temperature": 0.06,
    "ranking_temperature": 0.2,
    "target_temperature": 1.0,
    "student_temperature": 0.5,
    "consistency_margin": -0.1,
    "image_weight": 0.1,
    "cross_modal_weight": 0.7,
    "ranking_weight": 0.05,
}


@pytest.fixture(scope="module")
def features(world: World, tmp_path_factory: pytest.TempPathFactory) -> Features:
    made = Features(world, tmp_path_factory.mktemp("teachers"))
    made.add("resnet", "image", dim=7)
    made.add("first", "teacher", dim=9)
    made.add("second", "teacher", dim=9)
    made.add("third", "teacher", dim=9)
    made.add("wide", "teacher", dim=11)
    one = {key: torch.eye(4)[0].double().numpy() for key in made.rows["first"]}
    made.write("all-alike", "teacher", one)
    return made


def case_of(world: World, features: Features, **parameters: Any) -> Case:
    given = {"image": "resnet", "teachers": MIX, **parameters}
    return Case(world, features, "dalr", given, {"image-resnet": "resnet", **TEACHERS})


def oracle_of(parameters: dict[str, Any]) -> tuple[Terms, dict[str, float]]:
    """The terms that are on, and their weights."""
    weights = {term: parameters.get(f"{term}_weight", value) for term, value in DEFAULTS.items()}
    weights = {term: weight for term, weight in weights.items() if weight > 0}
    mix = {f"teacher-{each['encoder']}": each["weight"] for each in parameters.get("teachers", MIX)}
    mix = {feature: weight for feature, weight in mix.items() if weight > 0}
    number = {
        "temperature": 0.05,
        "image_temperature": 0.05,
        "ranking_temperature": 0.05,
        "target_temperature": 0.5,
        "student_temperature": 0.05 * 0.45,
        "consistency_margin": 0.2,
        **parameters,
    }

    def mixed_rows(given: OracleBatch) -> list[Row]:
        rows = range(len(given.first))
        sets = list(mix)
        return [
            torch.stack([mix[feature] * given.features[feature][i] for feature in sets]).sum(dim=0)
            for i in rows
        ]

    def mixed_score(given: OracleBatch, i: int, j: int) -> float:
        found = 0.0
        for feature, weight in mix.items():
            rows = given.features[feature]
            found += weight * float(cosine(rows[i], rows[j]))
        return found

    kl = number["target_temperature"], number["student_temperature"]

    def deranged(rows: list[Row], given: OracleBatch) -> list[Row]:
        generator = given.batch.generator()
        order = list(range(len(rows)))
        while any(place == row for place, row in enumerate(order)):
            order = torch.randperm(len(rows), generator=generator).tolist()
        return [rows[i] for i in order]

    def ranking(first: list[Row], second: list[Row], given: OracleBatch) -> Tensor:
        rows = range(len(first))
        teacher = [[mixed_score(given, i, j) for j in rows] for i in rows]
        assert all(len(set(row)) == len(row) for row in teacher)  # ties have a test of their own
        temperature = number["ranking_temperature"]
        scores = [[value / temperature for value in row] for row in cosines(first, second)]
        return list_mle(scores, teacher)

    def terms(student: OracleStudent, given: OracleBatch) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        h: list[list[Row]] = []
        if {"text", "ranking", "intra_modal"} & set(weights):
            views = (given.first, given.second)
            h = [[student.project("text", row) for row in view] for view in views]
        if "text" in weights:
            found["text"] = info_nce(h[0], h[1], number["temperature"])
        if given.batch.stream == "text":
            return found
        if {"image", "consistency", "cross_modal"} & set(weights):
            images = [student.project("image", row) for row in given.features["image-resnet"]]
            first = [student.project("grounding", row) for row in given.first]
            second = [student.project("grounding", row) for row in given.second]
            if "image" in weights:
                of_views = [
                    info_nce(v, images, number["image_temperature"]) for v in (first, second)
                ]
                found["image"] = mean(of_views)
            if "consistency" in weights:
                margin, wrong = number["consistency_margin"], deranged(images, given)
                found["consistency"] = consistency_loss(first, images, wrong, margin)
            if "cross_modal" in weights:
                teachers = mixed_rows(given), given.features["image-resnet"]
                found["cross_modal"] = cross_modal_alignment(first, images, *teachers, *kl)
        if "ranking" in weights:
            found["ranking"] = ranking(h[0], h[1], given)
        if "intra_modal" in weights:
            teacher = mixed_rows(given)
            found["intra_modal"] = kl_alignment(cosines(teacher, teacher), cosines(*h), *kl)
        return found

    return terms, weights


@pytest.mark.parametrize("parameters", [{}, OWN_NUMBERS], ids=["defaults", "own numbers"])
def test_terms_and_gradients_of_two_different_views(
    world: World, features: Features, parameters: dict[str, Any]
) -> None:
    case = case_of(world, features, **parameters)
    check_terms_of_two_views(case, *oracle_of(parameters))


@pytest.mark.parametrize("count", [1, 3])
def test_any_number_of_teachers(world: World, features: Features, count: int) -> None:
    names = ["third", "first", "second"][:count]
    teachers = [{"encoder": name, "weight": 1.0 + i} for i, name in enumerate(names)]
    given = case_of(world, features, teachers=teachers)
    sets = {"image-resnet": "resnet"} | {f"teacher-{name}": name for name in names}
    case = dataclasses.replace(given, sets=sets)
    check_terms_of_two_views(case, *oracle_of({"teachers": teachers}))


def test_a_whole_step(world: World, features: Features) -> None:
    check_whole_step(case_of(world, features), *oracle_of({}))


def test_twenty_steps(world: World, features: Features, tmp_path: Path) -> None:
    check_twenty_steps(case_of(world, features), *oracle_of({}), tmp_path)


GROUNDED = {"grounding", "image"}
IMAGE = {"image-resnet"}
ALONE = [  # what a term needs when it is the only one
    ("text", {"text"}, set()),
    ("image", GROUNDED, IMAGE),
    ("consistency", GROUNDED, IMAGE),
    ("cross_modal", GROUNDED, {*IMAGE, *TEACHERS}),
    ("ranking", {"text"}, set(TEACHERS)),
    ("intra_modal", {"text"}, set(TEACHERS)),
]


@pytest.mark.parametrize(("term", "heads", "sets"), ALONE)
def test_one_term_alone_has_only_its_heads_and_features(
    world: World, features: Features, term: str, heads: set[str], sets: set[str]
) -> None:
    off: dict[str, Any] = {f"{other}_weight": 0 for other in DEFAULTS if other != term}
    whole = case_of(world, features, **off)
    given = dict(whole.parameters)
    if not sets & IMAGE:
        del given["image"]
    if not sets & set(TEACHERS):
        del given["teachers"]
    kept = {feature: name for feature, name in whole.sets.items() if feature in sets}
    case = Case(world, features, "dalr", given, kept)
    model, data = case.build()
    assert set(model.heads) == heads
    assert set(data.dims) == sets
    check_terms_of_two_views(case, *oracle_of(off))
    model(paired(data))["total"].backward()
    assert [name for name, w in model.named_parameters() if w.grad is None] == []


@pytest.mark.parametrize("term", DEFAULTS)
def test_switching_one_term_off_does_not_change_the_others(
    world: World, features: Features, term: str
) -> None:
    whole, data = case_of(world, features).build()
    batch = paired(data)
    without = make_objective("dalr", {"image": "resnet", "teachers": MIX, f"{term}_weight": 0})
    first, second = torch.randn(2, len(batch), 16)
    views = Views(first, second)
    every = whole.objective.terms(batch, views, whole.heads)
    rest = without.terms(batch, views, whole.heads)
    assert set(every) - set(rest) == {term}
    for name, value in rest.items():
        assert torch.equal(value, every[name]), name


def test_ties_and_mismatched_images_are_redrawn_in_every_batch_and_again_after_a_resume(
    world: World, features: Features
) -> None:
    alike = [{"encoder": "all-alike", "weight": 1.0}]
    given = case_of(world, features, teachers=alike, consistency_margin=-1.0)
    sets = {"image-resnet": "resnet", "teacher-all-alike": "all-alike"}
    model, data = dataclasses.replace(given, sets=sets).build()
    batch = paired(data)
    first, second = torch.randn(2, len(batch), 16)
    views = Views(first, second)

    def drawn(**changes: int) -> tuple[float, float]:
        other = dataclasses.replace(batch, **changes)
        terms = model.objective.terms(other, views, model.heads)
        return float(terms["ranking"].detach()), float(terms["consistency"].detach())

    assert drawn() == drawn()
    for changes in ({"k": 1001}, {"seed": 17}):
        assert drawn(**changes)[0] != drawn()[0]
        assert drawn(**changes)[1] != drawn()[1]


def test_losses_and_gradients_are_finite_under_bf16(world: World, features: Features) -> None:
    model, data = case_of(world, features).build()
    model.precision = "bf16"
    terms = model(paired(data))
    terms["total"].backward()
    assert {term.dtype for term in terms.values()} == {torch.float32}
    gradients = [w.grad for w in model.parameters() if w.grad is not None]
    assert all(torch.isfinite(each).all() for each in [*terms.values(), *gradients])


def test_teachers_of_different_widths_rank_but_are_not_added_up(
    world: World, features: Features
) -> None:
    teachers = [{"encoder": "first", "weight": 0.3}, {"encoder": "wide", "weight": 0.7}]
    sets = {"image-resnet": "resnet", "teacher-first": "first", "teacher-wide": "wide"}
    whole = dataclasses.replace(case_of(world, features, teachers=teachers), sets=sets)
    with pytest.raises(SightlineError) as raised:
        whole.build()
    assert "widths differ (first 9, wide 11)" in str(raised.value)
    assert "set cross_modal_weight, intra_modal_weight to 0" in str(raised.value)
    off = {"teachers": teachers, "cross_modal_weight": 0, "intra_modal_weight": 0}
    ranked = dataclasses.replace(case_of(world, features, **off), sets=sets)
    check_terms_of_two_views(ranked, *oracle_of(off))


def test_a_teacher_of_weight_0_is_not_read(world: World, features: Features) -> None:
    teachers = [*MIX, {"encoder": "not-there", "weight": 0}]
    _, data = case_of(world, features, teachers=teachers).build()
    assert set(data.dims) == {*IMAGE, *TEACHERS}


def test_defaults_are_the_papers() -> None:
    found = make_objective("dalr", {"image": "resnet", "teachers": MIX})
    assert found.weights == DEFAULTS
    told = found.describe()
    assert told["caption"] == "random"
    assert (told["target_temperature"], told["student_temperature"]) == (0.5, 0.0225)
    assert told["consistency_margin"] == 0.2
    assert told["temperature"] == told["image_temperature"] == told["ranking_temperature"] == 0.05


def test_plain_sentences_without_a_text_term_are_refused(
    world: World, features: Features, tmp_path: Path
) -> None:
    spec = case_of(world, features, text_weight=0).spec(tmp_path, max_steps=2)
    with pytest.raises(SightlineError, match="text term is off, so a batch of plain sentences"):
        train_run(spec, say=lambda line: None)
    pairs_only = spec.model_copy(update={"text": None})
    assert train_run(pairs_only, say=lambda line: None).steps == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_weight": -1}, "image_weight: input should be greater than or equal to 0"),
        ({"ranking_weight": math.nan}, "ranking_weight: input should be a finite number"),
        ({"cross_modal_weight": math.inf}, "cross_modal_weight: input should be a finite number"),
        ({"temperature": 0}, "temperature: input should be greater than 0"),
        ({"image_temperature": 0}, "image_temperature: input should be greater than 0"),
        ({"ranking_temperature": 0}, "ranking_temperature: input should be greater than 0"),
        ({"target_temperature": 0}, "target_temperature: input should be greater than 0"),
        ({"student_temperature": 0}, "student_temperature: input should be greater than 0"),
        ({"consistency_margin": 1.5}, "consistency_margin: input should be less than or equal"),
        ({"variant": "released"}, "unknown key 'variant'"),
        ({"image": None}, "set image_weight, consistency_weight, cross_modal_weight to 0"),
        ({"teachers": []}, "set cross_modal_weight, ranking_weight, intra_modal_weight to 0"),
        ({"teachers": [{"encoder": "first", "weight": 0}]}, "no teacher has a weight above 0"),
        ({"teachers": [*MIX, MIX[0]]}, "teachers: first is listed more than once"),
        ({"teachers": [{"encoder": "first", "weight": -1}]}, "teachers.0.weight: input should be"),
        ({"teachers": [{"encoder": "first", "weight": math.inf}]}, "teachers.0.weight: input"),
        ({"teachers": [{"encoder": "", "weight": 1}]}, "teachers.0.encoder: string should have"),
        ({f"{term}_weight": 0 for term in DEFAULTS}, "every weight is 0"),
    ],
)
def test_bad_parameters_are_one_clear_error(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SightlineError) as raised:
        make_objective("dalr", {"image": "resnet", "teachers": MIX, **change})
    assert message in str(raised.value)


def test_a_teacher_without_features_is_named(world: World, features: Features) -> None:
    case = dataclasses.replace(case_of(world, features), sets={"image-resnet": "resnet"})
    with pytest.raises(SightlineError, match=r"teacher-first \(teacher features of first for term"):
        case.build()
    absent = dataclasses.replace(
        case, sets={"image-resnet": "resnet", **TEACHERS, "teacher-second": "never-made"}
    )
    with pytest.raises(SightlineError, match="never-made"):
        absent.build()


def test_a_teacher_may_be_the_text_tower_of_a_clip(world: World, features: Features) -> None:
    features.add("clip-text", "text", dim=9)
    mixed = [{"encoder": "clip-text", "weight": 0.5, "features": "text"}, MIX[0]]
    given = {"image": "resnet", "teachers": mixed}
    objective = make_objective("dalr", given)
    names = {"image-resnet", "text-clip-text", "teacher-first"}
    assert {need.name for need in objective.features} == names
    sets = {"image-resnet": "resnet", "text-clip-text": "clip-text", "teacher-first": "first"}
    model, data = Case(world, features, "dalr", given, sets).build()
    assert set(model(paired(data))) == {*DEFAULTS, "total"}
