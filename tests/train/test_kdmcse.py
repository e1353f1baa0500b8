"""KDMCSE: both variants against a loop-by-loop step, the filter and its warning, bad parameters."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import World
from feature_sets import Features
from loss_oracles import Row, adaptive_margin_nce, cosine, cosines, info_nce, mean
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
from train.data import TrainingData, first_paired
from train.losses import cosine_matrix, product_matrix
from train.objectives import make_objective
from train.train_run import train_run

ENCODERS = {"image": "clip", "text": "clip"}
SETS = {"image-clip": "clip-image", "text-clip": "clip-text"}
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "paper, both filters": {"image_threshold": 0.35, "teacher_text_threshold": 0.4},
    "paper, no filter, own numbers": {
        "image_threshold": None,
        "teacher_text_threshold": None,
        "margin": 0.3,
        "teacher_temperature": 0.1,
        "temperature": 0.07,
        "image_weight": 0.5,
        "teacher_text_weight": 2.0,
    },
    "paper, with a text margin": {"text_margin": 0.3},
    "released": {"variant": "released"},
    "released, some negatives within the margins": {
        "variant": "released",
        "margin": 1.4,
        "text_margin": 1.5,
    },
    "released, both filters": {
        "variant": "released",
        "image_threshold": 6.0,
        "teacher_text_threshold": 7.0,
    },
}


@pytest.fixture(scope="module")
def features(world: World, tmp_path_factory: pytest.TempPathFactory) -> Features:
    made = Features(world, tmp_path_factory.mktemp("clip"))
    made.add("clip-image", "image", dim=9, offset=0.5)
    made.add("clip-text", "text", dim=9, offset=0.5)
    made.add("resnet", "image", dim=5)
    return made


def case_of(world: World, features: Features, **parameters: Any) -> Case:
    given = {**ENCODERS, "weight": 0.5, **parameters}
    return Case(world, features, "kdmcse", given, SETS)


def oracle_of(parameters: dict[str, Any]) -> tuple[Terms, dict[str, float]]:
    """The terms, and their weights, of METHODS' table: one column, or the other."""
    released = parameters.get("variant") == "released"
    margin = parameters.get("margin", 0.15 if released else 0.125)
    text_margin = parameters.get("text_margin", 0.15 if released else 0.0)
    thresholds = {
        "image": parameters.get("image_threshold", None if released else 0.9),
        "teacher_text": parameters.get("teacher_text_threshold", None if released else 0.9),
    }
    temperature = parameters.get("temperature", 0.05)
    teacher_temperature = parameters.get("teacher_temperature", 0.05)

    def adaptive(term: str, view: list[Row], teacher: list[Row], given: OracleBatch) -> Tensor:
        images, texts = given.features["image-clip"], given.features["text-clip"]
        soft_labels = cosines(texts, texts if term == "teacher_text" else images)
        one, other = (texts, images) if term == "image" else (images, texts)
        scores = [[a.dot(b) for b in other] for a in one] if released else None
        if released and term == "image":
            soft_labels = cosines(images, images)
        threshold = thresholds[term]
        rule = {"filter_scores": scores, "margin_gate": released}
        return adaptive_margin_nce(
            view, teacher, soft_labels, margin, teacher_temperature, threshold, **rule
        )

    def constant_margin(first: list[Row], second: list[Row]) -> Tensor:
        """The released text term: a negative beyond the margin is moved that much nearer."""
        zeros = [[0.0] * len(first)] * len(first)
        return adaptive_margin_nce(
            first, second, zeros, text_margin, temperature, margin_gate=released
        )

    def terms(student: OracleStudent, given: OracleBatch) -> dict[str, Tensor]:
        h = [[student.project("text", row) for row in view] for view in (given.first, given.second)]
        text = constant_margin(*h) if text_margin else info_nce(h[0], h[1], temperature)
        if not given.features:
            return {"text": text}
        found = {"text": text}
        for term, feature in (("image", "image-clip"), ("teacher_text", "text-clip")):
            teacher = [student.project(term, row) for row in given.features[feature]]
            of_views = []
            for view in (given.first, given.second):
                grounded = [student.project("grounding", row) for row in view]
                of_views.append(adaptive(term, grounded, teacher, given))
            found[term] = mean(of_views)
        return found

    share = 0.5 if released else 0.5 / 2  # λ = 0.5, of the sum or of the average
    return terms, {
        "text": 1.0,
        "image": share * parameters.get("image_weight", 1.0),
        "teacher_text": share * parameters.get("teacher_text_weight", 1.0),
    }


@pytest.mark.parametrize("name", VARIANTS)
def test_terms_and_gradients_of_two_different_views(
    world: World, features: Features, name: str
) -> None:
    case = case_of(world, features, **VARIANTS[name])
    check_terms_of_two_views(case, *oracle_of(VARIANTS[name]))


@pytest.mark.parametrize("name", ["paper, both filters", "released, both filters"])
def test_a_whole_step(world: World, features: Features, name: str) -> None:
    case = case_of(world, features, **VARIANTS[name])
    check_whole_step(case, *oracle_of(VARIANTS[name]))


@pytest.mark.parametrize("name", ["paper, both filters", "released, both filters"])
def test_twenty_steps_and_the_logged_shares(
    world: World, features: Features, tmp_path: Path, name: str
) -> None:
    case = case_of(world, features, **VARIANTS[name])
    logs = check_twenty_steps(case, *oracle_of(VARIANTS[name]), tmp_path)
    _, data = case.build()
    thresholds = make_objective("kdmcse", case.parameters).params
    for k, logged in enumerate(logs):
        shares = {key[8:]: share for key, share in logged.items() if key.startswith("removed_")}
        batch = data[k]
        if batch.stream == "text":
            assert shares == {}
            continue
        images, texts = (features.of(name, batch) for name in SETS.values())
        sides = {"image": (texts, images), "teacher_text": (texts, texts)}
        if thresholds.variant == "released":
            sides = {"image": (texts, images), "teacher_text": (images, texts)}
        assert set(shares) == set(sides)
        for term, (left, right) in sides.items():
            score = torch.dot if thresholds.variant == "released" else cosine
            gone = [
                float(score(a, b)) >= thresholds.teacher_terms[term].threshold
                for i, a in enumerate(left)
                for j, b in enumerate(right)
                if i != j
            ]
            assert shares[term] == pytest.approx(sum(gone) / len(gone), abs=1e-6)
    fired = [value for logged in logs for key, value in logged.items() if "removed_" in key]
    assert 0 < sum(fired) / len(fired) < 1


def test_a_threshold_that_never_removes_anything_is_a_warning(
    world: World, features: Features, tmp_path: Path
) -> None:
    case = case_of(world, features, image_threshold=0.999, teacher_text_threshold=0.4)
    lines: list[str] = []
    train_run(case.spec(tmp_path, max_steps=4), say=lines.append)
    warnings = [line for line in lines if "warning" in line]
    assert len(warnings) == 1
    assert "image_threshold 0.999 removes no negative in the first 2 paired steps" in warnings[0]


def test_the_warning_names_the_highest_score_and_one_removed_negative_silences_it(
    world: World, features: Features
) -> None:
    case = case_of(world, features, image_threshold=0.999, teacher_text_threshold=None)
    model, data = case.build()
    seen = list(first_paired(data, 40))
    (line,) = model.objective.warnings(seen)
    highest = max(
        float(cosine(text, image))
        for batch in seen
        for i, text in enumerate(features.of("clip-text", batch))
        for j, image in enumerate(features.of("clip-image", batch))
        if i != j
    )
    assert f"the highest score is {highest:.3f}" in line
    below = make_objective(
        "kdmcse", {**case.parameters, "image_threshold": math.floor(highest * 1000) / 1000}
    )
    assert below.warnings(seen) == []


def test_the_warning_looks_at_the_first_hundred_paired_steps_of_the_run(
    world: World, features: Features
) -> None:
    _, data = case_of(world, features).build()
    in_five = [k for k in range(5) if data[k].stream == "pairs"]
    assert [batch.k for batch in first_paired(data, 5)] == in_five
    hundred = list(first_paired(data, 1000))
    assert len(hundred) == 100
    assert {batch.stream for batch in hundred} == {"pairs"}


@pytest.mark.parametrize("name", ["paper, both filters", "released, both filters"])
def test_the_teacher_is_compared_in_full_precision_under_autocast(
    world: World, features: Features, name: str
) -> None:
    model, data = case_of(world, features, **VARIANTS[name]).build()
    batch = paired(data)
    expected = model.objective.statistics(batch)
    with torch.autocast("cpu", torch.bfloat16):
        found = model.objective.statistics(batch)
        terms = model(batch)
        rows = batch.features["image-clip"]
        assert cosine_matrix(rows, rows).dtype == torch.float32
        assert product_matrix(rows, rows).dtype == torch.float32
    assert found == expected
    terms["total"].backward()
    gradients = [w.grad for w in model.parameters() if w.grad is not None]
    assert all(torch.isfinite(each).all() for each in [*terms.values(), *gradients])


@pytest.mark.parametrize(
    ("parameters", "heads", "sets"),
    [
        ({}, {"text", "grounding", "image", "teacher_text"}, set(SETS)),
        ({"weight": 0}, {"text"}, set()),
        ({"image_weight": 0}, {"text", "grounding", "teacher_text"}, {"text-clip"}),
        ({"teacher_text_weight": 0}, {"text", "grounding", "image"}, set(SETS)),
        (
            {"teacher_text_weight": 0, "variant": "released"},
            {"text", "grounding", "image"},
            {"image-clip"},
        ),
    ],
)
def test_a_term_that_is_off_has_no_head_and_reads_no_features(
    world: World, features: Features, parameters: dict[str, Any], heads: set[str], sets: set[str]
) -> None:
    whole = case_of(world, features, **parameters)
    names = {feature: SETS[feature] for feature in sets}
    model, data = Case(world, features, "kdmcse", whole.parameters, names).build()
    assert set(model.heads) == heads
    assert set(data.dims) == sets
    terms = model(paired(data))
    assert (
        set(terms) - {"total"}
        == set(model.objective.weights)
        == {"text"} | (heads - {"text", "grounding"})
    )
    terms["total"].backward()
    assert [name for name, w in model.named_parameters() if w.grad is None] == []


def test_defaults_are_those_of_the_variant() -> None:
    paper = make_objective("kdmcse", ENCODERS).describe()
    released = make_objective("kdmcse", {**ENCODERS, "variant": "released"}).describe()
    changed = {name for name in paper if paper[name] != released[name]}
    assert (paper["caption"], paper["weight"], paper["margin"]) == ("all", 0.01, 0.125)
    assert (paper["image_threshold"], paper["teacher_text_threshold"]) == (0.9, 0.9)
    assert paper["text_margin"] == 0
    assert (released["margin"], released["text_margin"]) == (0.15, 0.15)
    assert (released["image_threshold"], released["teacher_text_threshold"]) == (None, None)
    assert changed == {
        "variant",
        "margin",
        "text_margin",
        "image_threshold",
        "teacher_text_threshold",
    }
    kept = make_objective("kdmcse", {**ENCODERS, "variant": "released", "margin": 0.2})
    assert kept.describe()["margin"] == 0.2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": -0.1}, "weight: input should be greater than or equal to 0"),
        ({"weight": math.nan}, "weight: input should be a finite number"),
        ({"image_weight": math.inf}, "image_weight: input should be a finite number"),
        ({"temperature": 0}, "temperature: input should be greater than 0"),
        ({"teacher_temperature": 0}, "teacher_temperature: input should be greater than 0"),
        ({"margin": -1}, "margin: input should be greater than or equal to 0"),
        ({"image_threshold": math.nan}, "image_threshold: input should be a finite number"),
        ({"variant": "published"}, "variant: input should be 'paper' or 'released'"),
        ({"text": None}, "kdmcse: text is not given; name the text encoder of the teacher"),
        ({"teacher": "clip"}, "unknown key 'teacher'"),
    ],
)
def test_bad_parameters_are_one_clear_error(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SightlineError) as raised:
        make_objective("kdmcse", {**ENCODERS, **change})
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("parameters", "readers"),
    [
        ({}, {"image": ("image",), "text": ("image", "teacher_text")}),
        ({"variant": "released"}, {"image": ("image",), "text": ("teacher_text",)}),
        (
            {"variant": "released", "teacher_text_threshold": 7.0},
            {"image": ("image", "teacher_text"), "text": ("teacher_text",)},
        ),
    ],
)
def test_features_are_asked_for_by_the_terms_that_read_them(
    parameters: dict[str, Any], readers: dict[str, tuple[str, ...]]
) -> None:
    objective = make_objective("kdmcse", {**ENCODERS, **parameters})
    assert {need.kind: need.terms for need in objective.features} == readers


def test_an_encoder_without_features_is_named(world: World, features: Features) -> None:
    unknown = case_of(world, features, image="clop")
    case = Case(world, features, "kdmcse", unknown.parameters, {"text-clip": "clip-text"})
    with pytest.raises(SightlineError, match=r"image-clop \(image features of clop for term image"):
        case.build()
    missing = Case(
        world,
        features,
        "kdmcse",
        unknown.parameters,
        {"image-clop": "clop", "text-clip": "clip-text"},
    )
    with pytest.raises(SightlineError, match="clop"):
        missing.build()


def test_towers_of_two_models_cannot_be_compared(world: World, features: Features) -> None:
    given = case_of(world, features, image="resnet").parameters
    case = Case(
        world, features, "kdmcse", given, {"image-resnet": "resnet", "text-clip": "clip-text"}
    )
    spec = case.spec(features.root / "unused")
    with pytest.raises(SightlineError, match=r"image features of resnet .* are 5 and 9 wide"):
        TrainingData(spec, make_objective("kdmcse", given))  # before any model is loaded


def test_a_text_set_in_the_place_of_images_is_refused(world: World, features: Features) -> None:
    case = case_of(world, features)
    spec = case.spec(features.root / "unused")
    spec = spec.model_copy(update={"features": dict.fromkeys(SETS, features.root / "clip-text")})
    with pytest.raises(SightlineError, match=r"holds text features, but .* needs it as image-clip"):
        TrainingData(spec, make_objective("kdmcse", case.parameters))
