"""The student: grouping changes only the time, and only trained heads exist."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import World
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from sightline.errors import SightlineError
from train.batch import Batch, Phrases
from train.data import TrainingData
from train.model import GroundedModel, check_tokenizer, length_groups, load_student
from train.objectives import make_objective
from train.objectives.simcse import SimCSE
from train.run_spec import StudentConfig
from train.train_run import train_run


def student(world: World, **changes: object) -> StudentConfig:
    return StudentConfig.model_validate(
        {"name": "tiny", "model": str(world.student), "max_length": 16, **changes}
    )


def build(world: World, objective: str = "mcse") -> tuple[GroundedModel, TrainingData]:
    spec = world.spec(world.root / "unused", objective)
    made = make_objective(spec.objective, spec.parameters)
    data = TrainingData(spec, made)
    encoder, _ = load_student(spec.student)
    return GroundedModel(encoder, made, "cls", data.dims), data


def paired_batch(data: TrainingData) -> Batch:
    return next(batch for batch in map(data.__getitem__, range(9)) if batch.stream == "pairs")


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_length_groups_do_not_change_embeddings_loss_and_gradients(
    world: World, pooling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimCSE, "needs_phrases", True)
    model, data = build(world, "simcse")
    model.pooling = pooling  # pyright: ignore[reportAttributeAccessIssue]
    model.double().eval()  # without dropout both must agree
    batch = with_phrases(paired_batch(data))
    found = []
    for overhead in (10_000, 0):  # one group; a group for each length
        model.group_overhead = overhead
        views, phrases = model.encode(batch.sentences)
        model.zero_grad()
        loss = model(batch)["total"]
        loss.backward()
        gradient = model.encoder.get_input_embeddings().weight.grad
        assert gradient is not None
        found.append((views, phrases, loss, gradient.clone()))
    assert len(set(batch.lengths.tolist())) > 1
    for one, many in zip(*found, strict=True):
        torch.testing.assert_close(one, many, rtol=1e-9, atol=1e-12)


def test_the_views_differ_only_by_dropout(world: World) -> None:
    model, data = build(world)
    model.train()
    (first, second), _ = model.encode(data[0].sentences)
    assert not torch.allclose(first, second)
    model.eval()
    (first, second), _ = model.encode(data[0].sentences)
    assert torch.allclose(first, second, atol=1e-6)


@pytest.mark.parametrize("overhead", [10_000, 0])
def test_phrases_are_means_over_the_tokens_of_their_own_sentence(
    world: World, monkeypatch: pytest.MonkeyPatch, overhead: int
) -> None:
    monkeypatch.setattr(SimCSE, "needs_phrases", True)
    model, data = build(world, "simcse")
    model.eval()
    model.group_overhead = overhead
    batch = with_phrases(paired_batch(data))
    cls, phrases = model.encode(batch.sentences)
    model.pooling = "mean"
    means, _ = model.encode(batch.sentences)
    assert phrases is not None
    torch.testing.assert_close(phrases[:, 0::2], cls)
    torch.testing.assert_close(phrases[:, 1::2], means)


@pytest.mark.parametrize("rows", [range(3), range(2, 7), range(7, 8), range(4, 4)])
def test_a_part_of_a_batch_is_encoded_as_within_it(
    world: World, monkeypatch: pytest.MonkeyPatch, rows: range
) -> None:
    monkeypatch.setattr(SimCSE, "needs_phrases", True)
    model, data = build(world, "simcse")
    model.double().eval()
    batch = with_phrases(paired_batch(data))
    whole, of_whole = model.encode(batch.sentences)
    part, of_part = model.encode(batch.part(rows))
    assert of_whole is not None
    assert of_part is not None
    assert len(batch.part(rows)) == len(rows)
    torch.testing.assert_close(part, whole[:, rows.start : rows.stop])
    torch.testing.assert_close(of_part, of_whole[:, 2 * rows.start : 2 * rows.stop])


def with_phrases(batch: Batch) -> Batch:
    """Two phrases in every row: [CLS], and all of it."""
    owners = torch.arange(len(batch)).repeat_interleave(2)
    lengths = torch.from_numpy(batch.lengths)
    ends = torch.stack([torch.ones_like(lengths), lengths], dim=1).ravel()
    counts = np.full(len(batch), 2)
    return replace(batch, phrases=Phrases(owners, torch.zeros_like(ends), ends, counts))


@pytest.mark.parametrize("objective", ["simcse", "mcse"])
def test_every_parameter_is_trained_by_a_paired_batch(world: World, objective: str) -> None:
    model, data = build(world, objective)
    model.train()
    paired = paired_batch(data)
    terms = model(paired)
    terms["total"].backward()
    assert set(terms) == {"total", *model.objective.weights}
    untrained = [name for name, p in model.named_parameters() if p.grad is None]
    assert untrained == []


def test_the_total_is_the_weighted_sum_and_text_batches_have_no_image_term(world: World) -> None:
    model, data = build(world)
    model.eval()
    by_stream = {batch.stream: model(batch) for batch in map(data.__getitem__, range(9))}
    assert set(by_stream["text"]) == {"text", "total"}
    paired = by_stream["pairs"]
    # λ = 0.5 belongs to the average over both views, and the term is their sum
    torch.testing.assert_close(paired["total"], paired["text"] + 0.25 * paired["image"])


def test_layers_keeps_the_first_ones(world: World) -> None:
    whole, _ = load_student(student(world))
    cut, _ = load_student(student(world, layers=1))
    assert cut.config.num_hidden_layers == 1
    kept = cut.state_dict()
    assert not any("layer.1." in name for name in kept)
    assert all(torch.equal(whole.state_dict()[name], value) for name, value in kept.items())
    every, _ = load_student(student(world, layers=2))
    assert every.state_dict().keys() == whole.state_dict().keys()
    with pytest.raises(SightlineError, match="layers is 3, but the encoder has 2"):
        load_student(student(world, layers=3))


def test_a_shortened_student_trains_and_exports(world: World, tmp_path: Path) -> None:
    spec = world.spec(tmp_path, student={"layers": 1}, train={"max_steps": 1})
    train_run(spec, say=lambda line: None)
    again, _ = load_student(student(world, model=str(tmp_path / "model")))
    assert again.config.num_hidden_layers == 1


def test_tokens_of_another_tokenizer_are_refused(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(world.student, folder)
    text = (folder / "tokenizer.json").read_text()
    swapped = text.replace('"circle"', '"\x00"').replace('"square"', '"circle"')
    (folder / "tokenizer.json").write_text(swapped.replace('"\x00"', '"square"'))
    _, data = build(world)
    encoder, tokenizer = load_student(student(world, model=str(folder)))
    with pytest.raises(SightlineError, match="not made with the student's tokenizer"):
        check_tokenizer(tokenizer, encoder, data.samples, 16, data.vocabulary_size)
    with pytest.raises(SightlineError, match="vocabulary of 999"):
        check_tokenizer(tokenizer, encoder, {}, 16, 999)
    check_tokenizer(tokenizer, encoder, {}, 32, data.vocabulary_size)
    with pytest.raises(SightlineError, match="max_length is 99, but the student has positions for"):
        check_tokenizer(tokenizer, encoder, {}, 99, data.vocabulary_size)


def test_a_missing_student_is_one_error() -> None:
    config = StudentConfig(name="x", model="no-such-owner/no-such-model")
    with pytest.raises(SightlineError, match="no-such-owner/no-such-model"):
        load_student(config)


def test_a_pooling_that_cannot_be_exported_is_refused_by_the_specification(
    world: World, tmp_path: Path
) -> None:
    for pooling in ("pooler", "first_last_mean"):
        with pytest.raises(ValidationError, match="'cls' or 'mean'"):
            world.spec(tmp_path, student={"pooling": pooling, "model": "never-loaded"})


def cost(lengths: list[int], groups: list[list[int]], overhead: int) -> int:
    return sum(len(g) * max(lengths[i] for i in g) + overhead for g in groups)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(0, 30))
@settings(max_examples=80, deadline=None)
def test_no_cut_of_the_sorted_batch_is_cheaper(lengths: list[int], overhead: int) -> None:
    groups = length_groups(lengths, overhead)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    cheapest = min(
        cost(lengths, [order[a:b] for a, b in pairwise((0, *cuts, len(order)))], overhead)
        for count in range(len(order))
        for cuts in combinations(range(1, len(order)), count)
    )
    assert cost(lengths, groups, overhead) == cheapest


def test_without_an_overhead_given_there_is_one_group_in_order() -> None:
    assert length_groups([3, 9, 1], None) == [[0, 1, 2]]


def test_bf16_rounds_the_weights_once_and_trains_the_float32_ones(world: World) -> None:
    model, data = build(world)
    model.eval()
    batch = data[0]
    exact, _ = model.encode(batch.sentences)
    model.precision = "bf16"
    rounded, _ = model.encode(batch.sentences)
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded, rounded.bfloat16().float())
    assert not torch.equal(rounded, exact)
    cosine = torch.nn.functional.cosine_similarity(rounded, exact, dim=-1)
    assert cosine.min() > 0.999
    model(batch)["total"].backward()
    gradients = [p.grad for p in model.encoder.parameters()]
    assert all(each is not None and each.dtype == torch.float32 for each in gradients)
    assert all(p.dtype == torch.float32 for p in model.encoder.parameters())
