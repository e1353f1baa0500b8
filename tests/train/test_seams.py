"""What an objective may bring beside its terms, and how it is refused where it is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from cases import Case, Features, case_of
from safetensors.torch import load_file
from training_world import silent

from sightline.errors import SightlineError
from train.data import first_paired
from train.loop import Callback
from train.objectives import OBJECTIVES, ObjectiveModule, make_objective
from train.objectives.mcse import MCSE
from train.objectives.module import AwaitedTerms
from train.rows import ExtraTexts
from train.run_inputs import RunInputs
from train.train_run import train_run


class Brings(MCSE):
    """MCSE that brings what a test asks for."""

    name: ClassVar[str] = "brings"
    act: ClassVar[Mapping[str, Callable[..., Any]]] = {}
    path: Path | None = None

    def extra_texts(self, rows):
        return self.act.get("extra_texts", lambda rows: {})(rows)

    def order(self, rows, pass_number, seed):
        return self.act.get("order", lambda *_: None)(rows, pass_number, seed)

    def statistics(self, batch):
        return self.act.get("statistics", lambda _: {})(batch)

    @property
    def weights(self):
        return super().weights | self.act.get("weights", dict)()

    def terms(self, heads, batch, embeddings):
        terms = super().terms(heads, batch, embeddings)
        return self.act.get("terms", lambda batch, terms: terms)(batch, terms)

    def build(self, hidden, dims):
        return BringsModule(self, hidden, dims)


class BringsModule(ObjectiveModule):
    def start(self, student):
        self.params.act.get("start", lambda *_: None)(self, student)

    def after_step(self, student):
        self.params.act.get("after_step", lambda *_: None)(self, student)


@pytest.fixture
def brings(features, monkeypatch) -> Iterator[Callable[..., Case]]:
    """A case of the objective, which does this."""
    place = f"{__name__}:Brings"
    monkeypatch.setattr(OBJECTIVES, "places", {**OBJECTIVES.places, "brings": place})

    def case(parameters: Mapping[str, Any] = {}, **act: Callable[..., Any]) -> Case:
        monkeypatch.setattr(Brings, "act", act)
        return Case(features, "brings", {"caption": "all", "image": "clip", **parameters})

    return case


def shifted(rows: Any, *features: str) -> dict[str, ExtraTexts]:
    """Of pairs the next row's text."""
    if rows.stream == "text":
        return {}
    return {"next": rows.extra(np.roll(np.arange(len(rows)), -1), features)}


def test_extra_texts_are_blocks_with_features_of_their_own(brings, features: Features):
    data = brings(extra_texts=lambda rows: shifted(rows, "image-clip")).data()
    following = {}
    stream = data._streams["pairs"].rows
    for one, other in zip(stream.keys, np.roll(stream.keys, -1, axis=0), strict=True):
        following[one.tobytes()] = other.tobytes()
    for k in range(12):
        batch = data[k]
        if batch.stream == "text":
            assert set(batch.blocks) == {"sentences"}
            continue
        assert len(batch.blocks["next"]) == len(batch)
        rows = batch.features_of("image", "clip", of="next")
        for key, row in zip(batch.keys, rows, strict=True):
            expected = features.rows["image/clip"][following[key.tobytes()]]
            assert np.allclose(row.numpy(), expected, atol=2e-3)
    # the texts are those of these keys
    first = next(data[k] for k in range(12) if data[k].stream == "pairs")
    number = int(np.flatnonzero((stream.keys == first.keys[0]).all(axis=1))[0])
    other = (number + 1) % len(stream.keys)
    ids = data._streams["pairs"].texts["sentences"].take(np.array([other])).input_ids[0]
    length = int(first.blocks["next"].lengths[0])
    assert torch.equal(first.blocks["next"].input_ids[0, :length], ids[:length])


def test_extra_texts_and_files_are_inputs_of_the_run(brings, tmp_path):
    one = RunInputs.open(brings(extra_texts=shifted).spec(tmp_path / "run"))
    same = RunInputs.open(brings(extra_texts=shifted).spec(tmp_path / "run"))
    without = RunInputs.open(brings().spec(tmp_path / "run"))

    def other(rows: Any) -> dict[str, ExtraTexts]:
        return (
            {"next": rows.extra(np.roll(np.arange(len(rows)), 1))}
            if rows.images is not None
            else {}
        )

    assert one.digest == same.digest
    assert (
        len({one.digest, without.digest, RunInputs.open(brings(extra_texts=other).spec()).digest})
        == 3
    )
    here, there = tmp_path / "a.txt", tmp_path / "b.txt"
    here.write_text("one")
    there.write_text("one")
    digests = [RunInputs.open(brings({"path": str(p)}).spec()).digest for p in (here, there)]
    assert digests[0] == digests[1]  # by content, not by place
    there.write_text("two")
    assert RunInputs.open(brings({"path": str(there)}).spec()).digest != digests[0]
    with pytest.raises(SightlineError, match=r"objective brings: path: .*gone: no such file"):
        RunInputs.open(brings({"path": str(tmp_path / "gone")}).spec())


def test_an_order_of_rows_is_followed(brings):
    data = brings(order=lambda rows, p, seed: np.roll(np.arange(len(rows)), p)).data()
    stream = data._streams["pairs"].rows
    seen = [data[k].keys for k in range(len(data)) if data[k].stream == "pairs"]
    assert np.array_equal(np.concatenate(seen), stream.keys)
    later = range(len(data), 2 * len(data))
    seen = [data[k].keys for k in later if data[k].stream == "pairs"]
    assert np.array_equal(np.concatenate(seen), np.roll(stream.keys, 1, axis=0))
    shuffled = brings().data()
    first = next(shuffled[k].keys for k in range(9) if shuffled[k].stream == "pairs")
    assert not np.array_equal(first, stream.keys[: len(first)])


COPIES = r"start: [\s\S]*copy.deepcopy"


@pytest.mark.parametrize(
    ("act", "message"),
    [
        ({"extra_texts": lambda rows: 3}, "extra_texts: found 3 .*expected a builtins.dict"),
        ({"extra_texts": lambda rows: {"a": 3}}, "extra_texts, a: found 3 .*rows.ExtraTexts"),
        (
            {"extra_texts": lambda rows: {"sentences": ExtraTexts(rows.keys)}},
            "extra_texts, sentences: .*a name of its own",
        ),
        (
            {"extra_texts": lambda rows: {"a": ExtraTexts(rows.keys[1:])}},
            r"extra_texts, a, keys: found .*expected uint8 \[\d+, 32\]",
        ),
        (
            {"extra_texts": lambda rows: {"a": ExtraTexts(rows.keys, features=["image-cnn"])}},
            "extra_texts, a, features: found 'image-cnn' .*expected image-clip",
        ),
        (
            {"extra_texts": lambda rows: {"a": ExtraTexts(rows.keys, features=["image-clip"])}},
            "extra_texts, a, images: found None",
        ),
        (
            {"extra_texts": lambda rows: {"a": ExtraTexts(rows.keys ^ 255)}},
            r"extra texts `a` of objective brings; make the tokens .*`sightline tokens`",
        ),
        ({"order": lambda rows, *_: np.zeros(len(rows), np.int64)}, "order: .*each of 0 … .* once"),
        ({"order": lambda rows, *_: np.arange(3)}, r"order: found .*expected int64 \["),
        # the log has these names for something else: a `dev` would choose the weights
        *(
            (
                {"statistics": lambda _, name=name: {name: torch.zeros(())}},
                f"statistics: .*'{name}'",
            )
            for name in ("dev", "loss", "loss_text", "step")
        ),
        (
            {"start": lambda self, student: setattr(self, "kept", student)},
            r"start: [\s\S]*deepcopy",
        ),
        (
            {"start": lambda self, student: setattr(self, "kept", student.encoder)},
            r"start: [\s\S]*deepcopy",
        ),
    ],
)
def test_what_does_not_fit_is_one_error(brings, tmp_path, act, message):
    with pytest.raises(SightlineError, match=message):
        train_run(brings(**act).spec(tmp_path / "run", max_steps=2), say=silent)


def test_what_an_objective_reads_is_no_place_for_its_run(brings, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "words.txt").write_text("one")
    with pytest.raises(SightlineError, match=r"words\.txt"):
        train_run(brings({"path": str(out / "words.txt")}).spec(out, max_steps=2), say=silent)


def test_features_that_a_stream_has_not_are_named(brings):
    def mined(rows):
        rows.features("teacher-x", np.arange(2))

    with pytest.raises(
        SightlineError, match="rows of pairs have no features 'teacher-x', only image"
    ):
        brings(extra_texts=mined).data()


def test_start_comes_once_and_after_step_after_each(brings, tmp_path):
    calls: list[str] = []
    case = brings(
        start=lambda *_: calls.append("start"), after_step=lambda *_: calls.append("step")
    )
    train = {"max_steps": 3, "gradient_accumulation": 2}
    train_run(case.spec(tmp_path / "run", **train), say=silent)
    assert calls == ["start", "step", "step", "step"]


def test_what_needs_no_gradient_is_not_trained(brings, tmp_path):
    """Embeddings that are frozen at the start stay; they are no part of a checkpoint either."""

    def freeze(self, student):
        student.encoder.embeddings.requires_grad_(False)
        frozen.append(student)

    frozen: list[Any] = []
    spec = brings(start=freeze).spec(tmp_path / "run", max_steps=2)
    summary = train_run(spec, say=silent)
    (student,) = frozen
    trained = sum(w.numel() for w in student.parameters() if w.requires_grad)
    assert summary.trained_parameters == trained
    assert not [name for name in student.trainable_state_dict() if "embeddings" in name]
    exported = load_file(tmp_path / "run/model/model.safetensors")
    begun = load_file(Path(spec.student.model) / "model.safetensors")
    same = {name for name, weight in begun.items() if torch.equal(weight, exported[name])}
    assert {name for name in begun if name.startswith("embeddings.")} == same - {
        name for name in same if name.startswith("pooler.")
    }


# ---- terms that are declared and not given ------------------------------------------------------


def zero_in(stream):
    """A term that is a 0 with a gradient in batches of one stream, and left out in others."""

    def terms(batch, terms):
        return terms | ({"more": 0 * terms["text"]} if batch.stream == stream else {})

    return terms


@pytest.mark.parametrize("stream", ["pairs", "text"])
def test_a_term_of_one_stream_alone_is_awaited_until_that_one_comes(brings, tmp_path, stream):
    case = brings(weights=lambda: {"more": 0.5}, terms=zero_in(stream))
    assert train_run(case.spec(tmp_path / "run", max_steps=6), say=silent).steps == 6


def test_a_term_that_never_comes_is_named_when_both_streams_have_had_a_batch(brings, tmp_path):
    case = brings(weights=lambda: {"more": 0.5})
    steps = []
    message = r"Brings: terms of a batch of (pairs|text): found .*, expected more as well"
    with pytest.raises(SightlineError, match=message):
        train_run(case.spec(tmp_path / "run", max_steps=6), say=silent, callbacks=[Steps(steps)])
    streams = [case.data().schedule.draw(k).stream for k in range(len(steps) + 1)]
    assert set(streams) == {"pairs", "text"} != set(streams[:-1])
    case = brings(weights=lambda: {"more": 0.0})
    assert train_run(case.spec(tmp_path / "off", max_steps=6), say=silent).steps == 6


class Steps(Callback):
    """Notes the steps."""

    def __init__(self, steps: list[int]) -> None:
        self.steps = steps

    def step(self, state: Any) -> None:
        self.steps.append(state.step)


def without_image(batch, terms):
    return {name: term for name, term in terms.items() if name != "image"}


def detached(batch, terms):
    return {name: term.detach() for name, term in terms.items()}


def detached_image(batch, terms):
    return {name: term.detach() if name == "image" else term for name, term in terms.items()}


def of_nothing(batch, terms):
    return {"text": torch.ones((), requires_grad=True)}


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (without_image, r"terms of a batch of pairs: found \['text'\] .*, expected image as well"),
        (detached, r"terms: found .*, expected a term with a gradient"),
        (detached_image, r"terms, image: found .*, expected a scalar with a gradient"),
        (of_nothing, r"terms: found .*, expected terms of the embeddings, with a gradient"),
    ],
)
def test_terms_without_what_they_declare_are_named_at_their_first_batch(
    brings, tmp_path, terms, message
):
    case = brings(terms=terms)
    steps = []
    with pytest.raises(SightlineError, match=message):
        train_run(case.spec(tmp_path / "run", max_steps=6), say=silent, callbacks=[Steps(steps)])
    streams = [case.data().schedule.draw(k).stream for k in range(len(steps) + 1)]
    assert "pairs" not in streams[:-1]


def test_an_object_term_is_awaited_until_a_caption_has_two_phrases(features):
    case = case_of(features, "mcseo")
    data, params = case.data(), make_objective("mcseo", case.parameters)
    awaited = AwaitedTerms(params, ["pairs", "text"])
    term = torch.ones((), requires_grad=True) * 1
    batch = next(iter(first_paired(data, 20)))
    few = replace(batch.blocks["phrases"], counts=np.ones_like(batch.phrases.counts))
    terms = {"text": term, "image": term}
    awaited.take(replace(batch, blocks={**batch.blocks, "phrases": few}), terms, term)
    awaited.take(replace(batch, stream="text"), terms, term)
    with pytest.raises(SightlineError, match="expected object as well"):
        awaited.take(batch, terms, term)
