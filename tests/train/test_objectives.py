"""Objectives: parameters and defaults, heads and features of each term, draws, figures, warnings.

Terms and gradients are compared with the equations in test_released_loops.py.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import FIVE, TEACHERS, Case, Features, case_of, paired
from conftest import MAX_LENGTH, silent
from torch import nn
from torch.nn.functional import cosine_similarity

from sightline.cache import PhraseTokenHeader, as_keys, write_phrase_tokens
from sightline.errors import SightlineError
from train.batch import Phrases
from train.data import first_paired
from train.losses import cosine_matrix
from train.objectives import make_objective, objective_class
from train.objectives.mcseo import contrasted
from train.objectives.objective import Views, head, text_head
from train.run_spec import StudentConfig, TrainConfig
from train.train_run import train_run

CLIP = {"image": "clip"}
BOTH = {"image": "clip", "text": "clip"}
DALR = {"image": "clip", "teachers": TEACHERS}
NEEDED: dict[str, dict[str, Any]] = {
    **{"simcse": {}, "mcse": CLIP, "kdmcse": BOTH, "dalr": DALR, "mcseo": CLIP}
}
"""Objective → the parameters that it has no defaults for."""
DALR_WEIGHTS = {
    **{"text": 1.0, "image": 1.0, "consistency": 0.1, "cross_modal": 0.1},
    **{"ranking": 0.2, "intra_modal": 0.2},
}

# ---- parameters ---------------------------------------------------------------------------------

TAU = {"temperature": 0.05}
DEFAULTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("simcse", {}, TAU),
    (
        "mcse",
        CLIP,
        {
            **{**TAU, "image_temperature": 0.05, "weight": 0.01, "text_weight": 1.0},
            **{"caption": "random", "variant": "paper", "projection_dim": 256},
        },
    ),
    (
        "kdmcse",
        BOTH,
        {
            **{**TAU, "teacher_temperature": 0.05, "caption": "all", "weight": 0.01},
            **{"margin": 0.125, "text_margin": 0},
            **{"image_threshold": 0.9, "teacher_text_threshold": 0.9},
        },
    ),
    (
        "kdmcse",
        {**BOTH, "variant": "released"},
        {
            **{**TAU, "teacher_temperature": 0.05, "caption": "all", "weight": 0.01},
            **{"margin": 0.15, "text_margin": 0.15},
            **{"image_threshold": None, "teacher_text_threshold": None},
        },
    ),
    ("kdmcse", {**BOTH, "variant": "released", "margin": 0.2}, {"margin": 0.2}),
    (
        "dalr",
        DALR,
        {
            **{**TAU, "image_temperature": 0.05, "ranking_temperature": 0.05},
            **{"target_temperature": 0.5, "student_temperature": 0.0225},
            **{"caption": "random", "consistency_margin": 0.2},
        },
    ),
    (
        "mcseo",
        CLIP,
        {**TAU, "image_temperature": 0.05, "object_temperature": 0.05, "caption": "longest"},
    ),
]


@pytest.mark.parametrize(("name", "given", "expected"), DEFAULTS, ids=str)
def test_defaults_are_the_papers(
    name: str, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    described = make_objective(name, given).describe()
    assert {key: described[key] for key in expected} == expected


def test_default_weights_are_the_papers() -> None:
    assert make_objective("dalr", DALR).weights == DALR_WEIGHTS
    assert make_objective("mcseo", CLIP).weights == {"text": 1.0, "image": 0.01, "object": 0.005}


@pytest.mark.parametrize("name", FIVE)
def test_every_number_is_finite_every_weight_at_least_0_every_temperature_above(name: str) -> None:
    def refused(key: str, value: float) -> str:
        with pytest.raises(
            SightlineError, match=f"objective {name}: {key}: input should"
        ) as caught:
            make_objective(name, {**NEEDED[name], key: value})
        return str(caught.value)

    fields = objective_class(name).Params.model_fields
    numbers = [key for key, field in fields.items() if "float" in str(field.annotation)]
    assert "temperature" in numbers
    for key in numbers:
        assert "a finite number" in refused(key, math.nan)
        assert "a finite number" in refused(key, math.inf)
        if key.endswith("temperature"):
            assert "greater than 0" in refused(key, 0)
        elif key.endswith("weight"):
            assert "greater than or equal to 0" in refused(key, -0.1)
        else:
            assert "margin" in key or "threshold" in key
            if "margin" in key:
                refused(key, -1.5)
                refused(key, 3.5)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("mcse", {"image": None}, "image is not given; name the image encoder, or set weight to 0"),
        ("mcse", {"weight": 0, "text_weight": 0}, "every weight is 0"),
        ("mcse", {"variant": "ours"}, "variant: input should be 'paper' or 'released'"),
        ("mcse", {"wieght": 1}, "unknown key 'wieght'; did you mean 'weight'"),
        ("kdmcse", {"text": None}, "text is not given; name the text encoder of the teacher"),
        ("dalr", {"image": None}, "set image_weight, consistency_weight, cross_modal_weight to 0"),
        ("dalr", {"teachers": []}, "set cross_modal_weight, ranking_weight, intra_modal_weight"),
        ("dalr", {"teachers": [{**TEACHERS[0], "weight": 0}]}, "no teacher has a weight above 0"),
        ("dalr", {"teachers": [*TEACHERS, TEACHERS[0]]}, "teachers: first is listed more than"),
        ("dalr", {"teachers": [{**TEACHERS[0], "weight": -1}]}, "teachers.0.weight: input should"),
        ("dalr", {"teachers": [{"encoder": "", "weight": 1}]}, "teachers.0.encoder: string should"),
    ],
)
def test_bad_parameters_are_one_clear_error(
    name: str, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(SightlineError, match=message):
        make_objective(name, {**NEEDED[name], **change})


def test_the_defaults_are_those_of_the_published_bert_runs() -> None:
    found = TrainConfig(max_steps=1).model_dump()
    assert found["batch_size"] == 64
    assert found["learning_rate"] == 3e-5
    assert found["eval_steps"] == 125
    assert found["max_grad_norm"] == 1.0
    assert (found["weight_decay"], found["warmup"]) == (0.0, 0.0)
    assert (found["optimizer"], found["epsilon"]) == ("released", None)
    assert (found["precision"], found["gradient_accumulation"]) == ("fp32", 1)
    assert found["early_stopping_patience"] is None
    assert StudentConfig(name="bert", model="bert").max_length == 32


# ---- heads and features -------------------------------------------------------------------------

GROUNDED = {"grounding", "image"}
TEACHER_SETS = {"teacher-first", "teacher-second"}
OFF: list[tuple[str, dict[str, Any], set[str], set[str]]] = [
    # objective, parameters, heads, feature sets
    ("simcse", {}, {"text"}, set()),
    ("mcse", {}, {"text", *GROUNDED}, {"image-clip"}),
    ("mcse", {"weight": 0}, {"text"}, set()),
    ("kdmcse", {}, {"text", *GROUNDED, "teacher_text"}, {"image-clip", "text-clip"}),
    ("kdmcse", {"weight": 0}, {"text"}, set()),
    ("kdmcse", {"image_weight": 0}, {"text", "grounding", "teacher_text"}, {"text-clip"}),
    ("kdmcse", {"teacher_text_weight": 0}, {"text", *GROUNDED}, {"image-clip", "text-clip"}),
    (
        "kdmcse",
        {
            **{"teacher_text_weight": 0, "variant": "released"},
            **{"image_threshold": None, "teacher_text_threshold": None},
        },
        {"text", *GROUNDED},
        {"image-clip"},
    ),
    ("dalr", {}, {"text", *GROUNDED}, {"image-clip", *TEACHER_SETS}),
    *(
        ("dalr", {f"{other}_weight": 0 for other in DALR_WEIGHTS if other != term}, heads, sets)
        for term, heads, sets in (
            ("text", {"text"}, set[str]()),
            ("image", GROUNDED, {"image-clip"}),
            ("consistency", GROUNDED, {"image-clip"}),
            ("cross_modal", GROUNDED, {"image-clip", *TEACHER_SETS}),
            ("ranking", {"text"}, TEACHER_SETS),
            ("intra_modal", {"text"}, TEACHER_SETS),
        )
    ),
    (
        "dalr",
        {"teachers": [*TEACHERS, {"encoder": "not-there", "weight": 0}]},
        {"text", *GROUNDED},
        {"image-clip", *TEACHER_SETS},
    ),
    (
        "dalr",
        {"teachers": [{"encoder": "clip", "weight": 1, "features": "text"}]},
        {"text", *GROUNDED},
        {"image-clip", "text-clip"},
    ),
    ("mcseo", {}, {"text", *GROUNDED}, {"image-clip", "object-clip"}),
    ("mcseo", {"image_weight": 0}, {"text", *GROUNDED}, {"object-clip"}),
    ("mcseo", {"object_weight": 0}, {"text", *GROUNDED}, {"image-clip"}),
]


@pytest.mark.parametrize(
    ("name", "parameters", "heads", "sets"), OFF, ids=[f"{case[0]}-{case[1]}" for case in OFF]
)
def test_a_term_that_is_off_has_no_head_and_reads_no_features(
    features: Features, name: str, parameters: dict[str, Any], heads: set[str], sets: set[str]
) -> None:
    model, data = case_of(features, name, **parameters).build()
    assert set(model.heads) == heads
    assert set(data.dims) == sets
    terms = model(paired(data))
    assert terms.keys() == {"total", *model.objective.weights}
    terms["total"].backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


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
    objective = make_objective("kdmcse", {**BOTH, **parameters})
    assert {need.kind: need.terms for need in objective.features} == readers


WIDE = [TEACHERS[0], {"encoder": "wide", "weight": 0.7}]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (("kdmcse", {"image": "resnet"}, {}), r"image features of resnet .* are 5 and 7 wide"),
        (
            ("dalr", {"teachers": WIDE}, {}),
            r"widths differ \(first 9, wide 11\).*intra_modal_weigh",
        ),
        (("mcseo", {}, {"image-clip": "image/resnet"}), "images are 5 wide and objects 7"),
        (("kdmcse", {}, {"image-clip": "text/clip"}), r"holds text features, but .* as image-clip"),
    ],
)
def test_sets_that_do_not_fit_each_other_are_refused_before_a_model_is_loaded(
    features: Features, case: tuple[str, dict[str, Any], dict[str, str | None]], message: str
) -> None:
    name, parameters, sets = case
    with pytest.raises(SightlineError, match=message):
        replace(case_of(features, name, **parameters), sets=sets).data()


def linear(module: nn.Module) -> nn.Linear:
    (layer,) = (each for each in module.modules() if isinstance(each, nn.Linear))
    return layer


def test_the_text_head_begins_like_berts_layers_and_the_others_like_torchs() -> None:
    torch.manual_seed(0)
    layer = linear(text_head(768))
    assert float(layer.weight.detach().std()) == pytest.approx(0.02, rel=0.01)
    assert float(layer.weight.detach().abs().max()) > 0.06  # normal, not uniform
    assert not layer.bias.any()
    layer, bound = linear(head(512)), 1 / math.sqrt(512)
    assert layer.weight.shape == (256, 512)
    for values in (layer.weight.detach(), layer.bias.detach()):
        assert float(values.abs().max()) <= bound
        assert float(values.std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)
    for name, given in NEEDED.items():
        objective = make_objective(name, given)
        heads = objective.heads(768, {need.name: 512 for need in objective.features})
        biased = {part for part, module in heads.items() if linear(module).bias.any()}
        assert biased == heads.keys() - {"text"}


# ---- terms --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FIVE)
def test_losses_and_gradients_are_finite_and_float32_under_bf16(
    features: Features, name: str
) -> None:
    model, data = case_of(features, name).build()
    batch = paired(data)
    exact = model(batch)
    model.precision = "bf16"
    terms = model(batch)
    terms["total"].backward()
    assert {term.dtype for term in terms.values()} == {torch.float32}
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    assert all(torch.isfinite(each).all() for each in [*terms.values(), *gradients])
    for term in terms:
        assert terms[term].item() == pytest.approx(exact[term].item(), rel=0.2, abs=0.05), term


def drawn_terms(case: Case, **changes: int) -> dict[str, torch.Tensor]:
    """The terms of two fixed views on the first paired batch, with ``changes``."""
    model, data = case.build()
    batch = replace(paired(data), **changes)
    views = torch.randn(2, len(batch), 16, generator=torch.Generator().manual_seed(3))
    return model.objective.terms(batch, Views(*views), model.heads)


def test_switching_one_term_off_does_not_change_the_others(features: Features) -> None:
    every = drawn_terms(case_of(features, "dalr"))
    for term in DALR_WEIGHTS:
        objective = make_objective("dalr", {**FIVE["dalr"], f"{term}_weight": 0})
        model, data = case_of(features, "dalr").build()
        batch = paired(data)
        views = torch.randn(2, len(batch), 16, generator=torch.Generator().manual_seed(3))
        rest = objective.terms(batch, Views(*views), model.heads)
        assert rest.keys() == every.keys() - {term}
        assert all(torch.equal(value, every[name]) for name, value in rest.items())


def test_ties_and_mismatched_images_are_redrawn_in_every_batch_and_again_after_a_resume(
    features: Features,
) -> None:
    ties = [{"encoder": "ties", "weight": 1.0}]
    case = case_of(features, "dalr", teachers=ties, consistency_margin=-1.0)
    first = drawn_terms(case)
    assert all(torch.equal(value, first[name]) for name, value in drawn_terms(case).items())
    for changes in ({"k": 1001}, {"seed": 17}):
        for term in ("ranking", "consistency"):
            assert not torch.equal(drawn_terms(case, **changes)[term], first[term])


def test_plain_sentences_without_a_text_term_are_refused(
    features: Features, tmp_path: Path
) -> None:
    spec = case_of(features, "dalr", text_weight=0).spec(tmp_path, max_steps=2)
    with pytest.raises(SightlineError, match="text term is off, so a batch of plain sentences"):
        train_run(spec, say=silent)
    assert train_run(spec.model_copy(update={"text": None}), say=silent).steps == 2


# ---- KDMCSE's filter ----------------------------------------------------------------------------

FILTERS = [
    {"image_threshold": 0.85, "teacher_text_threshold": 0.9},
    {"variant": "released", "image_threshold": 16.0, "teacher_text_threshold": 17.0},
]


@pytest.mark.parametrize("parameters", FILTERS, ids=str)
def test_the_share_that_a_threshold_removes_is_logged(
    features: Features, parameters: dict[str, Any]
) -> None:
    model, data = case_of(features, "kdmcse", **parameters).build()
    batch = paired(data)
    images, texts = features.of("image/clip", batch), features.of("text/clip", batch)
    if "variant" in parameters:
        scores = {"image": texts @ images.T, "teacher_text": images @ texts.T}
    else:
        scores = {
            "image": cosine_similarity(texts[:, None], images[None], dim=-1),
            "teacher_text": cosine_similarity(texts[:, None], texts[None], dim=-1),
        }
    shares = model.objective.statistics(batch)
    assert shares.keys() == {"removed_image", "removed_teacher_text"}
    for term, values in scores.items():
        others = values[~torch.eye(len(batch), dtype=torch.bool)]
        share = (others >= parameters[f"{term}_threshold"]).double().mean()
        assert float(shares[f"removed_{term}"]) == pytest.approx(float(share), abs=1e-6)
        assert 0 < share < 1
    with torch.autocast("cpu", torch.bfloat16):  # the teacher is compared in full precision
        assert model.objective.statistics(batch) == shares
    text = next(data[k] for k in range(9) if data[k].stream == "text")
    assert model.objective.statistics(text) == {}


def test_a_threshold_that_never_removes_anything_is_a_warning(
    features: Features, tmp_path: Path
) -> None:
    never = {"image_threshold": 0.999, "teacher_text_threshold": None}
    case = case_of(features, "kdmcse", **never)
    lines: list[str] = []
    summary = train_run(case.spec(tmp_path, max_steps=4, logging_steps=1), say=lines.append)
    assert any("removed_image" in entry for entry in summary.log)
    (line,) = (line for line in lines if "warning" in line)
    assert "image_threshold 0.999 removes no negative in the first 2 paired steps" in line
    model, data = case.build()
    seen = list(first_paired(data, 40))
    scores = [
        cosine_similarity(*(features.of(name, b).unsqueeze(i) for i, name in sides), dim=-1)
        for b in seen
        for sides in [((1, "text/clip"), (0, "image/clip"))]
    ]
    highest = max(float((each - 2 * torch.eye(len(each))).max()) for each in scores)
    (line,) = model.objective.warnings(seen)
    assert f"the highest score is {highest:.3f}" in line
    rows = [[b.features[name] for name in ("text-clip", "image-clip")] for b in seen]
    scores = [cosine_matrix(*both) - 2 * torch.eye(len(both[0])) for both in rows]
    same = {**case.parameters, "image_threshold": max(float(each.max()) for each in scores)}
    assert make_objective("kdmcse", same).warnings(seen) == []  # it removes one


def test_warnings_are_of_the_first_hundred_paired_steps_of_the_run(features: Features) -> None:
    data = case_of(features, "kdmcse").data()
    in_five = [k for k in range(5) if data[k].stream == "pairs"]
    assert [batch.k for batch in first_paired(data, 5)] == in_five
    hundred = list(first_paired(data, 1000))
    assert len(hundred) == 100
    assert {batch.stream for batch in hundred} == {"pairs"}


# ---- MCSEO's phrases ----------------------------------------------------------------------------


def test_a_batch_without_phrases_has_an_object_term_of_zero_with_a_graph(
    features: Features,
) -> None:
    model, data = case_of(features, "mcseo").build()
    batch = paired(data)
    assert batch.phrases is not None
    none = batch.phrases.owners[:0]
    empty = replace(
        batch,
        phrases=Phrases(none, none, none, np.zeros_like(batch.phrases.counts)),
        features={**batch.features, "object-clip": batch.features["object-clip"][:0]},
    )
    terms = model(empty)
    assert terms["object"].item() == 0
    terms["total"].backward()
    assert all(torch.isfinite(w.grad).all() for w in model.parameters() if w.grad is not None)


def test_captions_with_one_phrase_each_cause_a_warning(features: Features) -> None:
    objective = make_objective("mcseo", CLIP)
    batch = paired(case_of(features, "mcseo").data())
    assert batch.phrases is not None
    counts = [len(features.named[key.tobytes()]) for key in batch.keys]
    assert contrasted(batch).tolist() == [count >= 2 for count in counts]
    assert float(objective.statistics(batch)["phrases_per_caption"]) == np.float32(np.mean(counts))
    assert objective.warnings([batch]) == []
    lone = np.cumsum([0, *counts[:-1]])
    spans = (
        each[lone] for each in (batch.phrases.owners, batch.phrases.starts, batch.phrases.ends)
    )
    single = replace(batch, phrases=Phrases(*spans, batch.phrases.counts.clip(max=1)))
    (line,) = objective.warnings([single])
    assert "no caption of the first 1 paired steps has two phrases" in line


def test_exchanged_objects_stay_within_their_caption(features: Features) -> None:
    batch = paired(case_of(features, "mcseo", shuffle_objects=True).data())
    expected = []
    for key in batch.keys:
        cutouts = [cutout for _, _, cutout in features.named[key.tobytes()]]
        expected += cutouts[1:] + cutouts[:1]
    rows = np.stack([features.rows["object/clip"][cutout] for cutout in expected])
    assert (batch.features["object-clip"].double().numpy() == rows).all()


def test_an_object_that_failed_costs_its_phrase(features: Features) -> None:
    rows = features.rows["object/clip"]
    bad = next(iter(rows))
    features.write("object/with-failure", rows, bad)
    data = replace(case_of(features, "mcseo"), sets={"object-clip": "object/with-failure"}).data()
    every = [cutout for phrases in features.named.values() for _, _, cutout in phrases]
    assert data.dropped_phrases == every.count(bad) > 0
    for batch in (data[k] for k in range(20) if data[k].stream == "pairs"):
        assert batch.phrases is not None
        of_rows = [features.named[key.tobytes()] for key in batch.keys]
        kept = [[each for each in phrases if each[2] != bad] for phrases in of_rows]
        assert batch.phrases.counts.tolist() == [len(phrases) for phrases in kept]
        assert batch.phrases.starts.tolist() == [each[0] for phrases in kept for each in phrases]


def test_missing_objects_and_unfit_phrases_are_named(features: Features, tmp_path: Path) -> None:
    rows = features.rows["object/clip"]
    features.write("object/few", dict(list(rows.items())[2:]))
    key = as_keys([b"k" * 32])
    for name, digest, length in (("other", "1", 0), ("short", "0", -1), ("foreign", "0", 0)):
        header = PhraseTokenHeader("tiny", digest * 64, MAX_LENGTH + length, 1)
        write_phrase_tokens(tmp_path / name, header, key, key, [1], [2])
    for change, message in (
        ({"pairs": {"phrases": None}}, "make them with `sightline tokens --phrases`"),
        ({"pairs": {"phrases": tmp_path / "nowhere"}}, "no phrase tokens here"),
        ({"pairs": {"phrases": tmp_path / "other"}}, "a different tokenizer or max_length"),
        ({"pairs": {"phrases": tmp_path / "short"}}, "a different tokenizer or max_length"),
        ({"pairs": {"phrases": tmp_path / "foreign"}}, "has 1 phrases, but none for the"),
        ({"sets": {"object-clip": None}}, r"object-clip \(object features of clip for term object"),
        (
            {"sets": {"object-clip": "object/few"}},
            r"(?s)few: \d of .*for object-clip: .* for term object.*`sightline extract object` mak",
        ),
    ):
        with pytest.raises(SightlineError, match=message):
            replace(case_of(features, "mcseo"), **change).data()
