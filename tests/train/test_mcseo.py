"""MCSEO: its terms against a loop-by-loop step, ragged phrases, terms switched off, bad input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import MAX_LENGTH, World
from feature_sets import Features
from loss_oracles import info_nce
from phrase_world import Objects, object_term
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

from sightline.cache import PhraseTokenHeader, as_keys, write_phrase_tokens
from sightline.errors import SightlineError
from train.batch import Phrases
from train.model import phrase_embeddings
from train.objectives import make_objective
from train.objectives.mcseo import contrasted

DEFAULTS = {"text": 1.0, "image": 0.01, "object": 0.005}
OWN_NUMBERS = {
    "temperature": 0.07,
    "image_temperature": 0.1,
    "object_temperature": 0.2,
    "image_weight": 0.7,
    "object_weight": 0.3,
}


@pytest.fixture(scope="module")
def features(world: World, tmp_path_factory: pytest.TempPathFactory) -> Features:
    made = Features(world, tmp_path_factory.mktemp("mcseo"))
    made.add("clip", "image", dim=7)
    return made


@pytest.fixture(scope="module")
def objects(world: World, features: Features) -> Objects:
    return Objects(world, features, "clip-objects", dim=7)


def case_of(world: World, features: Features, objects: Objects, **parameters: Any) -> Case:
    given = {"image": "clip", "caption": "all", **parameters}
    objective = make_objective("mcseo", given)
    names = {"image": "clip", "object": "clip-objects"}
    sets = {need.name: names[need.kind] for need in objective.features}
    return Case(world, features, "mcseo", given, sets, {"phrases": objects.path})


def oracle_of(objects: Objects, parameters: dict[str, Any]) -> tuple[Terms, dict[str, float]]:
    """The terms that are on, and their weights."""
    weights = {term: parameters.get(f"{term}_weight", value) for term, value in DEFAULTS.items()}
    weights = {term: weight for term, weight in weights.items() if weight > 0}

    def terms(student: OracleStudent, given: OracleBatch) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        if "text" in weights:
            views = [
                [student.project("text", row) for row in v] for v in (given.first, given.second)
            ]
            found["text"] = info_nce(*views, parameters.get("temperature", 0.05))
        if given.batch.stream == "text":
            return found
        if "image" in weights:
            images = [student.project("image", row) for row in given.features["image-clip"]]
            of_views = [
                info_nce(
                    [student.project("grounding", row) for row in view],
                    images,
                    parameters.get("image_temperature", 0.05),
                )
                for view in (given.first, given.second)
            ]
            found["image"] = (of_views[0] + of_views[1]) / 2
        if "object" in weights:
            found["object"] = object_term(
                objects,
                given.batch,
                given.tokens,
                lambda row: student.project("grounding", row),
                lambda row: student.project("image", row),
                parameters.get("object_temperature", 0.05),
            )
        return found

    return terms, weights


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        OWN_NUMBERS,
        {"image_weight": 0, "object_weight": 1.0},
        {"text_weight": 0, "object_weight": 1.0},
    ],
    ids=["defaults", "own numbers", "no image term", "no text term"],
)
def test_terms_and_gradients_are_those_of_the_equations(world, features, objects, parameters):
    case = case_of(world, features, objects, **parameters)
    terms, weights = oracle_of(objects, parameters)
    check_whole_step(case, terms, weights)
    check_terms_of_two_views(case, terms, weights)


def test_twenty_steps_have_the_losses_of_the_equations(world, features, objects, tmp_path):
    case = case_of(world, features, objects, **OWN_NUMBERS)
    terms, weights = oracle_of(objects, OWN_NUMBERS)
    logs = check_twenty_steps(case, terms, weights, tmp_path / "run")
    paired_logs = [log for log in logs if "loss_object" in log]
    assert 0 < paired_logs[0]["captions_with_objects"] < 1
    assert 1 < paired_logs[0]["phrases_per_caption"] < 3


def test_losses_and_gradients_are_finite_under_bf16(world, features, objects):
    model, data = case_of(world, features, objects, **OWN_NUMBERS).build()
    batch = paired(data)
    exact = model(batch)
    model.precision = "bf16"
    terms = model(batch)
    terms["total"].backward()
    assert {term.dtype for term in terms.values()} == {torch.float32}
    assert all(torch.isfinite(w.grad).all() for w in model.parameters() if w.grad is not None)
    for name, term in terms.items():
        assert term.item() == pytest.approx(exact[name].item(), rel=0.2), name


def test_defaults_are_the_papers():
    found = make_objective("mcseo", {"image": "clip"})
    assert found.weights == DEFAULTS
    told = found.describe()
    assert told["caption"] == "longest"
    assert told["temperature"] == told["image_temperature"] == told["object_temperature"] == 0.05


def without(phrases: Phrases) -> Phrases:
    """The same captions without a phrase."""
    spans = (each[:0] for each in (phrases.owners, phrases.starts, phrases.ends))
    return Phrases(*spans, np.zeros_like(phrases.counts))


def test_phrase_embeddings_are_means_over_their_tokens():
    tokens = torch.randn(3, 5, 4)
    spans = torch.tensor([1, 0, 0]), torch.tensor([2, 5, 3])
    phrases = Phrases(torch.tensor([2, 0, 2]), *spans, np.array([1, 0, 2]))
    found = phrase_embeddings(tokens, phrases)
    expected = torch.stack([tokens[2, 1], tokens[0].mean(dim=0), tokens[2, :3].mean(dim=0)])
    torch.testing.assert_close(found, expected)
    none = phrase_embeddings(tokens, without(phrases))
    assert none.shape == (0, 4)


def test_a_batch_without_phrases_has_an_object_term_of_zero_with_a_graph(world, features, objects):
    model, data = case_of(world, features, objects, object_weight=1.0).build()
    batch = paired(data)
    assert batch.phrases is not None
    empty = replace(
        batch,
        phrases=without(batch.phrases),
        features={**batch.features, "object-clip": batch.features["object-clip"][:0]},
    )
    terms = model(empty)
    assert terms["object"].item() == 0
    terms["total"].backward()
    assert all(torch.isfinite(w.grad).all() for w in model.parameters() if w.grad is not None)


def test_phrases_of_a_batch_follow_its_rows(world, features, objects):
    _, data = case_of(world, features, objects).build()
    batch = paired(data)
    assert batch.phrases is not None
    expected = [
        (row, start, end, objects.rows[cutout])
        for row, key in enumerate(batch.keys)
        for start, end, cutout in objects.named[key.tobytes()]
    ]
    phrases = batch.phrases
    spans = (each.tolist() for each in (phrases.owners, phrases.starts, phrases.ends))
    found = zip(*spans, strict=True)
    assert list(found) == [each[:3] for each in expected]
    for row, each in zip(batch.features["object-clip"].double(), expected, strict=True):
        assert (row.numpy() == each[3]).all()
    counts = [len(objects.named[key.tobytes()]) for key in batch.keys]
    assert phrases.counts.tolist() == counts
    assert contrasted(batch).tolist() == [count >= 2 for count in counts]


def test_exchanged_objects_stay_within_their_caption(world, features, objects):
    _, data = case_of(world, features, objects, shuffle_objects=True).build()
    batch = paired(data)
    expected = []
    for key in batch.keys:
        cutouts = [cutout for _, _, cutout in objects.named[key.tobytes()]]
        expected += cutouts[1:] + cutouts[:1]
    rows = batch.features["object-clip"].double()
    assert len(rows) == len(expected)
    for row, cutout in zip(rows, expected, strict=True):
        assert (row.numpy() == objects.rows[cutout]).all()


def test_an_object_that_failed_costs_its_phrase(world, features, objects):
    from sightline.cache import EncoderRecord, FeatureSpec, SetWriter

    bad = next(iter(objects.rows))
    spec = FeatureSpec(
        kind="object",
        encoder=EncoderRecord(name="test/x", source="random:0", weights_sha256="3" * 64),
        preprocessing={},
        precision="fp32",
        dim=7,
        dtype="float16",
    )
    with SetWriter(features.root / "with-failure", spec) as writer:
        for batch in writer.plan(list(objects.rows), batch_size=64):
            rows = torch.ones(len(batch.keys), 7).numpy()
            error = {"code": "empty_mask", "path": "", "reason": "test"}
            of_batch = [key.tobytes() for key in batch.keys]
            rows[[key == bad for key in of_batch]] = float("nan")
            writer.add(batch.keys, rows, {key: error for key in of_batch if key == bad})
        writer.publish()
    case = case_of(world, features, objects)
    case.sets["object-clip"] = "with-failure"
    _, data = case.build()
    named = [cutout for found in objects.named.values() for _, _, cutout in found]
    assert data.dropped_phrases == named.count(bad) > 0
    for batch in (data[k] for k in range(20) if data[k].stream == "pairs"):
        assert batch.phrases is not None
        of_rows = [objects.named[key.tobytes()] for key in batch.keys]
        kept = [[each for each in found if each[2] != bad] for found in of_rows]
        assert batch.phrases.counts.tolist() == [len(found) for found in kept]
        assert batch.phrases.starts.tolist() == [each[0] for found in kept for each in found]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"image_weight": 0, "object_weight": 0, "text_weight": 0}, "nothing to train"),
        ({"object_weight": -1}, "object_weight: input should be greater than or equal to 0"),
        ({"object_weight": float("nan")}, "object_weight: input should be a finite number"),
        ({"object_temperature": 0}, "object_temperature: input should be greater than 0"),
    ],
)
def test_bad_parameters(parameters, message):
    with pytest.raises(SightlineError, match=message):
        make_objective("mcseo", {"image": "clip", **parameters})


def test_missing_phrase_tokens_are_requested(world, features, objects, tmp_path):
    case = case_of(world, features, objects)
    case.pairs.clear()
    with pytest.raises(SightlineError, match="needs phrase tokens; make them with `sightline phra"):
        case.build()
    case.pairs["phrases"] = tmp_path / "nowhere"
    with pytest.raises(SightlineError, match="no phrase tokens here"):
        case.build()


def test_phrase_tokens_of_another_tokenizer_are_refused(world, features, objects, tmp_path):
    keys = as_keys([b"k" * 32])
    header = PhraseTokenHeader("other", "1" * 64, MAX_LENGTH, 1)
    write_phrase_tokens(tmp_path, header, keys, keys, [1], [2])
    case = case_of(world, features, objects)
    case.pairs["phrases"] = tmp_path
    with pytest.raises(SightlineError, match="a different tokenizer or max_length"):
        case.build()


def test_phrases_of_another_data_set_are_refused(world, features, objects, tmp_path):
    keys = as_keys([b"k" * 32])
    header = PhraseTokenHeader("tiny", "0" * 64, MAX_LENGTH, 1)
    write_phrase_tokens(tmp_path, header, keys, keys, [1], [2])
    case = case_of(world, features, objects)
    case.pairs["phrases"] = tmp_path
    with pytest.raises(SightlineError, match="has 1 phrases, but none for the"):
        case.build()


def test_images_and_objects_of_different_encoders_are_refused(world, features, objects):
    features.add("wide", "image", dim=11)
    case = case_of(world, features, objects)
    case.sets["image-clip"] = "wide"
    with pytest.raises(SightlineError, match="images are 11 wide and objects 7"):
        case.build()


def test_a_missing_feature_set_names_term_set_and_command(world, features, objects, tmp_path):
    case = case_of(world, features, objects)
    del case.sets["object-clip"]
    expected = r"object-clip \(object features of clip for term object; made by `sightline extract"
    with pytest.raises(SightlineError, match=expected):
        case.build()
    case.sets["object-clip"] = "nowhere"
    with pytest.raises(SightlineError, match=r"(?s)nowhere.*mcseo needs it as object-clip"):
        case.build()


def test_missing_objects_are_named_with_term_and_command(world, features, objects):
    features.write("few", "object", dict(list(objects.rows.items())[2:]))
    del features.rows["few"]
    case = case_of(world, features, objects)
    case.sets["object-clip"] = "few"
    expected = (
        r"(?s)few: \d of .*for object-clip: .* for term object.*`sightline extract object` makes"
    )
    with pytest.raises(SightlineError, match=expected):
        case.build()


def test_captions_with_one_phrase_each_cause_a_warning(world, features, objects):
    objective = make_objective("mcseo", {"image": "clip"})
    _, data = case_of(world, features, objects).build()
    batch = paired(data)
    assert batch.phrases is not None
    assert objective.warnings([batch]) == []
    phrases = batch.phrases
    lone = torch.nonzero(torch.diff(phrases.owners, prepend=torch.tensor([-1]))).ravel()
    spans = (each[lone] for each in (phrases.owners, phrases.starts, phrases.ends))
    single = replace(batch, phrases=Phrases(*spans, phrases.counts.clip(max=1)))
    (line,) = objective.warnings([single])
    assert "no caption of the first 1 paired steps has two phrases" in line
