"""Objectives: parameters and defaults, heads and features of each term, draws, figures, warnings.

Terms and gradients are compared with the equations in test_released_loops.py.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import FIVE, TEACHERS, case_of, paired, terms_of
from torch.nn.functional import cosine_similarity
from training_world import MAX_LENGTH, silent

from sightline.cache import PhraseTokenHeader, TokenSet, as_keys, write_phrase_tokens
from sightline.errors import SightlineError
from sightline.settings import unknown
from train.batch import TokenSpans
from train.data import first_paired
from train.losses import cosine_matrix
from train.objectives import FeatureNeed, make_objective, objective_class
from train.objectives.mcse import MCSE
from train.objectives.mcseo import contrasted
from train.run_spec import StudentConfig, TrainConfig
from train.train_run import train_run

CLIP = {"image": "clip"}
BOTH = {"image": "clip", "text": "clip"}
NEEDED = {
    **{"simcse": {}, "mcse": CLIP, "kdmcse": BOTH, "mcseo": CLIP},
    "dalr": {"image": "clip", "teachers": TEACHERS},
}
"""Objective → the parameters that it has no defaults for."""
DALR_TERMS = ("text", "image", "consistency", "cross_modal", "ranking", "intra_modal")

# ---- parameters ---------------------------------------------------------------------------------

TAU = {"temperature": 0.05}
OF_IMAGES = {**TAU, "image_temperature": 0.05}
OF_KDMCSE = {**TAU, "teacher_temperature": 0.05, "caption": "all", "weight": 0.01}
RELEASED = {"variant": "released"}
UNFILTERED = {"image_threshold": None, "teacher_text_threshold": None}
DEFAULTS = [
    ("simcse", {}, TAU),
    ("mcse", {}, {**OF_IMAGES, "weight": 0.01, "text_weight": 1.0}),
    ("mcse", {}, {"caption": "random", "variant": "paper", "projection_dim": 256}),
    ("kdmcse", {}, {**OF_KDMCSE, "margin": 0.125, "text_margin": 0}),
    ("kdmcse", {}, {"image_threshold": 0.9, "teacher_text_threshold": 0.9}),
    ("kdmcse", RELEASED, {**OF_KDMCSE, **UNFILTERED, "margin": 0.15, "text_margin": 0.15}),
    ("kdmcse", {**RELEASED, "margin": 0.2}, {"margin": 0.2}),
    ("dalr", {}, {**OF_IMAGES, "ranking_temperature": 0.05, "target_temperature": 0.5}),
    ("dalr", {}, {"student_temperature": 0.0225, "caption": "random", "consistency_margin": 0.2}),
    ("dalr", {}, {"text_weight": 1.0, "image_weight": 1.0, "consistency_weight": 0.1}),
    ("dalr", {}, {"cross_modal_weight": 0.1, "ranking_weight": 0.2, "intra_modal_weight": 0.2}),
    ("mcseo", {}, {**OF_IMAGES, "object_temperature": 0.05, "caption": "longest"}),
    ("mcseo", {}, {"text_weight": 1.0, "image_weight": 0.01, "object_weight": 0.005}),
]


@pytest.mark.parametrize(("name", "given", "expected"), DEFAULTS, ids=str)
def test_defaults_are_the_papers(name, given, expected):
    described = make_objective(name, {**NEEDED[name], **given}).describe()
    assert {key: described[key] for key in expected} == expected


def test_the_defaults_are_those_of_the_published_bert_runs():
    found = TrainConfig(max_steps=1).model_dump()
    expected = {
        **{"batch_size": 64, "learning_rate": 3e-5, "eval_steps": 125, "max_grad_norm": 1.0},
        **{"weight_decay": 0.0, "warmup": 0.0, "optimizer": "released", "epsilon": None},
        **{"precision": "fp32", "gradient_accumulation": 1, "early_stopping_patience": None},
    }
    assert {key: found[key] for key in expected} == expected
    assert found["epochs"] is None  # there are 3 without a number of steps
    assert TrainConfig().epochs == 3
    assert StudentConfig(name="bert", model="bert").max_length == 32


@pytest.mark.parametrize("name", FIVE)
def test_every_number_is_finite_every_weight_at_least_0_every_temperature_above(name):
    def refused(key, value):
        expected = f"objective {name}: {key}: input should"
        with pytest.raises(SightlineError, match=expected) as caught:
            make_objective(name, {**NEEDED[name], key: value})
        return str(caught.value)

    fields = objective_class(name).model_fields
    numbers = [key for key, field in fields.items() if "float" in str(field.annotation)]
    assert "temperature" in numbers
    for key in numbers:
        assert "a finite number" in refused(key, math.nan)
        assert "a finite number" in refused(key, math.inf)
        if key.endswith("temperature"):
            assert "greater than 0" in refused(key, 0)
        elif key.endswith("weight"):
            assert "greater than or equal to 0" in refused(key, -0.1)
        elif "margin" in key:
            refused(key, -1.5)
            refused(key, 3.5)
        else:
            assert "threshold" in key


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("mcse", {"image": None}, "image is not given; name the image encoder, or set weight to 0"),
        ("mcse", {"weight": 0, "text_weight": 0}, "every weight is 0, so there is nothing to tra"),
        ("mcse", {"variant": "ours"}, "variant: input should be 'paper' or 'released'"),
        ("mcse", {"wieght": 1}, "objective mcse: unknown key 'wieght'; did you mean 'weight'? (av"),
        ("mcse", {"qqq": 1}, "unknown key 'qqq' (available: caption, data_seed, image, image_temp"),
        ("mcse", {"pairs": 1}, "pairs: input should be greater than or equal to 2; found 1"),
        ("mcse", {"projection_dim": None}, "input should be a valid integer; found None"),
        ("mcse", {"weight": -1, "seed": 1}, "equal to 0; found -1; unknown key 'seed'; did you m"),
        ("mcseo", {"image": ...}, "objective mcseo: image: is missing; it has no default"),
        ("kdmcse", {"text": None}, "text is not given; name the text encoder of the teacher"),
        ("dalr", {"image": None}, "set image_weight, consistency_weight, cross_modal_weight to 0"),
        ("dalr", {"teachers": []}, "set cross_modal_weight, ranking_weight, intra_modal_weight"),
        ("dalr", {"teachers": [{**TEACHERS[0], "weight": 0}]}, "no teacher has a weight above 0"),
        ("dalr", {"teachers": [*TEACHERS, TEACHERS[0]]}, "teachers: first is listed more than"),
        ("dalr", {"teachers": [{**TEACHERS[0], "weight": -1}]}, "teachers.0.weight: input should"),
        ("dalr", {"teachers": [{"encoder": "", "weight": 1}]}, "teachers.0.encoder: string should"),
        ("dalr", {"teachers": [{**TEACHERS[0], "weihgt": 1}]}, "teachers.0: unknown key 'weihgt'"),
        ("clip", {}, "unknown objective 'clip' (available: dalr, kdmcse, mcse, mcseo, simcse)"),
    ],
)
def test_bad_parameters_are_one_clear_error(name, change, message):
    parameters = {**NEEDED.get(name, {}), **change}
    given = {key: value for key, value in parameters.items() if value is not ...}
    with pytest.raises(SightlineError) as caught:
        make_objective(name, given)
    assert message in str(caught.value)


def test_nothing_to_choose_from():
    assert unknown("a", [], "run") == "unknown run 'a' (available: none)"
    many = [f"run-{n}" for n in range(150)]
    said = unknown("run-33", many, "run")
    assert said.startswith("unknown run 'run-33'; did you mean 'run-33'? (available: run-33, run-")
    assert said.endswith(" and 140 more)")
    assert said.count("run-") == 12


# ---- heads and features -------------------------------------------------------------------------

GROUNDED = {"grounding", "image"}
TEACHER_SETS = {"teacher-first", "teacher-second"}
ALL_HEADS = {"text", *GROUNDED}
DALR_SETS = {"image-clip", *TEACHER_SETS}
OF_TERMS = {
    "text": ({"text"}, set()),
    "image": (GROUNDED, {"image-clip"}),
    "consistency": (GROUNDED, {"image-clip"}),
    "cross_modal": (GROUNDED, DALR_SETS),
    "ranking": ({"text"}, TEACHER_SETS),
    "intra_modal": ({"text"}, TEACHER_SETS),
}
"""Term of DALR → the heads and feature sets of it alone."""
UNUSED = {"encoder": "not-there", "weight": 0}
OF_CLIP = {"encoder": "clip", "weight": 1, "features": "text"}
OFF = [
    # objective, parameters, heads, feature sets
    ("simcse", {}, {"text"}, set()),
    ("mcse", {}, ALL_HEADS, {"image-clip"}),
    ("mcse", {"weight": 0}, {"text"}, set()),
    ("kdmcse", {}, {*ALL_HEADS, "teacher_text"}, {"image-clip", "text-clip"}),
    ("kdmcse", {"weight": 0}, {"text"}, set()),
    ("kdmcse", {"image_weight": 0}, {"text", "grounding", "teacher_text"}, {"text-clip"}),
    ("kdmcse", {"teacher_text_weight": 0}, ALL_HEADS, {"image-clip", "text-clip"}),
    (
        "kdmcse",
        {**RELEASED, **UNFILTERED, "teacher_text_weight": 0},
        ALL_HEADS,
        {"image-clip"},
    ),
    ("dalr", {}, ALL_HEADS, DALR_SETS),
    *(
        ("dalr", {f"{other}_weight": 0 for other in DALR_TERMS if other != term}, *expected)
        for term, expected in OF_TERMS.items()
    ),
    ("dalr", {"teachers": [*TEACHERS, UNUSED]}, ALL_HEADS, DALR_SETS),
    ("dalr", {"teachers": [OF_CLIP]}, ALL_HEADS, {"image-clip", "text-clip"}),
    ("mcseo", {}, ALL_HEADS, {"image-clip", "object-clip"}),
    ("mcseo", {"image_weight": 0}, ALL_HEADS, {"object-clip"}),
    ("mcseo", {"object_weight": 0}, ALL_HEADS, {"image-clip"}),
]


def test_sentences_find_images_in_the_space_of_the_first_need_that_is_projected():
    class Two(MCSE):
        @property
        def features(self):
            raw = FeatureNeed("image", "raw")
            return [raw, *super().features, FeatureNeed("image", "resnet", head="second")]

    module = Two(image="clip").build(8, {"image-raw": 3, "image-clip": 7, "image-resnet": 5})
    heads = module.heads
    need, *found = module.image_heads()
    assert (need.encoder, found) == ("clip", [heads["grounding"], heads["image"]])
    assert MCSE(weight=0).build(8, {}).image_heads() is None


@pytest.mark.parametrize(
    ("name", "parameters", "heads", "sets"), OFF, ids=[f"{case[0]}-{case[1]}" for case in OFF]
)
def test_a_term_that_is_off_has_no_head_and_reads_no_features(
    features, name, parameters, heads, sets
):
    model, data = case_of(features, name, **parameters).build()
    assert set(model.objective.heads) == heads
    assert set(data.dims) == sets
    terms = terms_of(model, paired(data))
    assert terms.keys() == {"total", *model.objective.params.on(model.objective.params.weights)}
    terms["total"].backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


def test_features_are_asked_for_by_the_terms_that_read_them():
    for parameters, of_images, of_texts in (
        ({}, ("image",), ("image", "teacher_text")),
        (RELEASED, ("image",), ("teacher_text",)),
        ({**RELEASED, "teacher_text_threshold": 7.0}, ("image", "teacher_text"), ("teacher_text",)),
    ):
        objective = make_objective("kdmcse", {**BOTH, **parameters})
        readers = {need.kind: need.terms for need in objective.features}
        assert readers == {"image": of_images, "text": of_texts}


WIDE = [TEACHERS[0], {"encoder": "wide", "weight": 0.7}]


@pytest.mark.parametrize(
    ("name", "parameters", "sets", "message"),
    [
        ("kdmcse", {"image": "resnet"}, {}, r"image features of resnet .* are 5 and 7 wide"),
        ("dalr", {"teachers": WIDE}, {}, r"differ \(first 9, wide 11\).*intra_modal_weight to 0"),
        ("mcseo", {}, {"image-clip": "image/resnet"}, "images are 5 wide and objects 7"),
        ("kdmcse", {}, {"image-clip": "text/clip"}, r"holds text features, but .* as image-clip"),
    ],
)
def test_sets_that_do_not_fit_each_other_are_refused_before_a_model_is_loaded(
    features, name, parameters, sets, message
):
    with pytest.raises(SightlineError, match=message):
        replace(case_of(features, name, **parameters), sets=sets).data()


# ---- terms --------------------------------------------------------------------------------------


def test_draws_depend_on_seed_and_batch_and_not_on_which_terms_are_on(features):
    ties = [{"encoder": "ties", "weight": 1.0}]
    case = case_of(features, "dalr", teachers=ties, consistency_margin=-1.0)
    model, data = case.build()
    views = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(3))

    def terms(parameters=case.parameters, **changes):
        objective = copy.copy(model.objective)
        objective.params = make_objective("dalr", {**case.parameters, **parameters})
        return objective(replace(paired(data), **changes), {"sentences": views})

    every = terms()
    for term in DALR_TERMS:
        rest = terms({f"{term}_weight": 0})
        assert rest.keys() == every.keys() - {term}
        assert all(torch.equal(value, every[name]) for name, value in rest.items())
    for changes in ({"k": 1001}, {"seed": 17}):
        for term in ("ranking", "consistency"):
            assert not torch.equal(terms(**changes)[term], every[term])


def test_plain_sentences_without_a_text_term_are_refused(features, tmp_path):
    spec = case_of(features, "dalr", text_weight=0).spec(tmp_path)
    with pytest.raises(SightlineError, match="text term is off, so a batch of plain sentences"):
        train_run(spec, say=silent)


# ---- KDMCSE's filter ----------------------------------------------------------------------------

FILTERS = [
    {"image_threshold": 0.85, "teacher_text_threshold": 0.9},
    {**RELEASED, "image_threshold": 16.0, "teacher_text_threshold": 17.0},
]


@pytest.mark.parametrize("parameters", FILTERS, ids=str)
def test_the_share_that_a_threshold_removes_is_logged(features, parameters):
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
    shares = model.objective.params.statistics(batch)
    assert shares.keys() == {"removed_image", "removed_teacher_text"}
    for term, values in scores.items():
        others = values[~torch.eye(len(batch), dtype=torch.bool)]
        share = (others >= parameters[f"{term}_threshold"]).double().mean()
        assert float(shares[f"removed_{term}"]) == pytest.approx(float(share), abs=1e-6)
        assert 0 < share < 1
    with torch.autocast("cpu", torch.bfloat16):  # the teacher is compared in full precision
        assert model.objective.params.statistics(batch) == shares
    text = next(data[k] for k in range(9) if data[k].stream == "text")
    assert model.objective.params.statistics(text) == {}


def test_a_threshold_that_never_removes_anything_is_a_warning(features, tmp_path):
    never = {"image_threshold": 0.999, "teacher_text_threshold": None}
    case = case_of(features, "kdmcse", **never)
    lines = []
    summary = train_run(case.spec(tmp_path, max_steps=4), say=lines.append)
    assert summary.curve("removed_image")
    (line,) = (line for line in lines if "warning" in line)
    assert "image_threshold 0.999 removes no negative in the first 2 paired steps" in line
    model, data = case.build()
    batches = list(first_paired(data, 40))
    scores = []
    for batch in batches:
        rows = cosine_matrix(batch.features["text-clip"], batch.features["image-clip"])
        scores.append(float((rows - 2 * torch.eye(len(rows))).max()))
    (line,) = model.objective.params.warnings(batches)
    assert f"the highest score is {max(scores):.3f}" in line
    removes_one = make_objective("kdmcse", {**case.parameters, "image_threshold": max(scores)})
    assert removes_one.warnings(batches) == []


def test_warnings_are_of_the_first_hundred_paired_steps_of_the_run(features):
    data = case_of(features, "kdmcse").data()
    in_five = [k for k in range(5) if data[k].stream == "pairs"]
    assert [batch.k for batch in first_paired(data, 5)] == in_five
    hundred = list(first_paired(data, 1000))
    assert len(hundred) == 100
    assert {batch.stream for batch in hundred} == {"pairs"}


# ---- MCSEO's phrases ----------------------------------------------------------------------------


def test_a_batch_without_phrases_has_an_object_term_of_zero_with_a_graph(features):
    model, data = case_of(features, "mcseo").build()
    batch = paired(data)
    none = batch.phrases.owners[:0]
    phrases = TokenSpans(none, none, none, np.zeros_like(batch.phrases.counts))
    empty = replace(
        batch,
        blocks={**batch.blocks, "phrases": phrases},
        features={**batch.features, "object-clip": batch.features["object-clip"][:0]},
    )
    terms = terms_of(model, empty)
    assert terms["object"].item() == 0
    terms["total"].backward()
    assert all(torch.isfinite(w.grad).all() for w in model.parameters() if w.grad is not None)


def test_captions_with_one_phrase_each_cause_a_warning(features):
    model, data = case_of(features, "mcseo").build()
    objective, batch = model.objective.params, paired(data)
    counts = [len(features.named[key.tobytes()]) for key in batch.keys]
    assert contrasted(batch).tolist() == [count >= 2 for count in counts]
    assert float(objective.statistics(batch)["phrases_per_caption"]) == np.float32(np.mean(counts))
    assert objective.warnings([batch]) == []
    phrases = replace(batch.phrases, counts=batch.phrases.counts.clip(max=1))
    (line,) = objective.warnings([replace(batch, blocks={**batch.blocks, "phrases": phrases})])
    assert "no caption of the first 1 paired steps has two phrases" in line


def test_exchanged_objects_stay_within_their_caption(features):
    batch = paired(case_of(features, "mcseo", shuffle_objects=True).data())
    expected = []
    for key in batch.keys:
        cutouts = [cutout for _, _, cutout in features.named[key.tobytes()]]
        expected += cutouts[1:] + cutouts[:1]
    rows = np.stack([features.rows["object/clip"][cutout] for cutout in expected])
    assert (batch.features["object-clip"].double().numpy() == rows).all()


def test_an_object_that_failed_costs_its_phrase(features):
    rows = features.rows["object/clip"]
    bad = next(iter(rows))
    features.write("object/with-failure", rows, bad)
    data = replace(case_of(features, "mcseo"), sets={"object-clip": "object/with-failure"}).data()
    every = [cutout for phrases in features.named.values() for _, _, cutout in phrases]
    assert every.count(bad) > 0
    for batch in first_paired(data, 20):
        of_rows = [features.named[key.tobytes()] for key in batch.keys]
        kept = [[each for each in phrases if each[2] != bad] for phrases in of_rows]
        assert batch.phrases.counts.tolist() == [len(phrases) for phrases in kept]
        assert batch.phrases.starts.tolist() == [each[0] for phrases in kept for each in phrases]


def test_missing_objects_and_unfit_phrases_are_named(features, tmp_path):
    rows = features.rows["object/clip"]
    features.write("object/few", dict(list(rows.items())[2:]))
    key = as_keys([b"k" * 32])
    own = TokenSet.open(features.world.root / "tokens").header.tokenizer_sha256
    for name, digest, length in (("other", "1" * 64, 0), ("short", own, -1), ("foreign", own, 0)):
        header = PhraseTokenHeader(digest, MAX_LENGTH + length, 1)
        write_phrase_tokens(tmp_path / name, header, key, key, [1], [2])
    for phrases, message in (
        (None, "make them with `sightline tokens --phrases`"),
        (tmp_path / "nowhere", "not a set of phrase tokens"),
        (tmp_path / "other", "a different tokenizer, max_length or prompt"),
        (tmp_path / "short", "a different tokenizer, max_length or prompt"),
        (tmp_path / "foreign", "has 1 phrases, but none for the"),
    ):
        with pytest.raises(SightlineError, match=message):
            replace(case_of(features, "mcseo"), inputs={"phrases": phrases}).data()
    few = r"(?s)few: \d of .*for object-clip: .* for term object.*`sightline extract object` mak"
    for objects, message in (
        (None, r"object-clip \(object features of clip for term object"),
        ("object/few", few),
    ):
        with pytest.raises(SightlineError, match=message):
            replace(case_of(features, "mcseo"), sets={"object-clip": objects}).data()
