"""Batches in chunks: the gradients of the whole, dropout replayed, sizes checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases import Case, Features, case_of, paired
from conftest import silent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from train.batch import Sentences
from train.gradient_cache import CachedEmbeddings, chunks_of, split
from train.loop import Callback
from train.model import GroundedModel
from train.objectives.objective import Views
from train.records import RunState
from train.run_spec import TrainConfig
from train.train_run import train_run

CPU = torch.device("cpu")


@pytest.fixture
def case(features: Features) -> Case:
    """MCSEO, whose batches have phrases, with every term on."""
    return case_of(features, "mcseo")


class Gradients(Callback):
    """Those of every step."""

    def begin(self, state: RunState, model: GroundedModel) -> None:
        self.model, self.steps = model, []

    def step(self, state: RunState) -> None:
        found = self.model.named_parameters()
        self.steps.append({n: p.grad.clone() for n, p in found if p.grad is not None})


def gradients(case: Case, out: Path, chunk: int | None) -> list[dict[str, torch.Tensor]]:
    """Of twelve steps that leave the weights as they are."""
    told = {"max_steps": 12, "learning_rate": 1e-30, "max_grad_norm": 1e9, "eval_steps": 100}
    found = Gradients()
    train_run(case.spec(out, chunk=chunk, **told), say=silent, callbacks=[found])
    return found.steps


def test_gradients_are_those_of_the_whole_batch(case: Case, tmp_path: Path) -> None:
    whole = gradients(case, tmp_path / "whole", None)
    for chunk in (2, 4, 6):  # of batches of 6
        chunked = gradients(case, tmp_path / f"{chunk}", chunk)
        assert len(chunked) == len(whole) == 12
        for ours, theirs in zip(chunked, whole, strict=True):
            assert ours.keys() == theirs.keys()
            largest = max(float(each.abs().max()) for each in theirs.values())
            for name, gradient in theirs.items():
                off = float((ours[name] - gradient).abs().max())
                assert off == 0 if chunk == 6 else off <= 1e-5 * largest, (chunk, name)


def with_dropout(case: Case) -> tuple[GroundedModel, Any]:
    model, data = case.build()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.2
    return model.double(), paired(data)


def test_the_second_pass_has_the_dropout_of_the_first(case: Case) -> None:
    model, batch = with_dropout(case)
    chunks = [batch.part(rows) for rows in chunks_of(range(len(batch)), 2)]
    passes: list[tuple[torch.Tensor, torch.Tensor | None]] = []

    def encode(sentences: Sentences) -> tuple[torch.Tensor, torch.Tensor | None]:
        found = model.encode(sentences)
        passes.append(found)
        return found

    torch.manual_seed(7)
    cached = CachedEmbeddings(encode, chunks, CPU)
    assert cached.phrases is not None
    assert not torch.equal(cached.sentences[0], cached.sentences[1])
    assert not any(sentences.requires_grad for sentences, _ in passes)
    torch.rand(3)  # whatever draws numbers in between
    of_sentences = torch.randn_like(cached.sentences)
    of_phrases = torch.randn_like(cached.phrases)
    cached.backward(of_sentences, of_phrases)
    first, second = passes[: len(chunks)], passes[len(chunks) :]
    assert len(second) == len(chunks) == 3
    for (one, of_one), (other, of_other) in zip(first, second, strict=True):
        assert torch.equal(one, other)
        assert of_one is not None
        assert of_other is not None
        assert torch.equal(of_one, of_other)
    found = {n: p.grad.clone() for n, p in model.encoder.named_parameters() if p.grad is not None}

    # the same masks with one graph of all chunks
    model.zero_grad()
    torch.manual_seed(7)
    encoded = [model.encode(chunk) for chunk in chunks]
    sentences = torch.cat([each for each, _ in encoded], dim=1)
    phrases = torch.cat([each for _, each in encoded if each is not None], dim=1)
    ((sentences * of_sentences).sum() + (phrases * of_phrases).sum()).backward()
    for name, parameter in model.encoder.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-9, atol=1e-12)
    assert len(found) > 10


def test_one_chunk_is_encoded_once_and_keeps_its_graph(case: Case) -> None:
    model, batch = with_dropout(case)
    calls: list[Sentences] = []

    def encode(sentences: Sentences) -> tuple[torch.Tensor, torch.Tensor | None]:
        calls.append(sentences)
        return model.encode(sentences)

    cached = CachedEmbeddings(encode, [batch.sentences], CPU)
    cached.backward(torch.ones_like(cached.sentences), None)
    assert len(calls) == 1
    assert not cached.sentences.requires_grad


def test_phrases_of_chunks_are_those_of_the_batch(case: Case) -> None:
    model, data = case.build()
    model.double().eval()
    batch = paired(data)
    chunks = [batch.part(rows) for rows in chunks_of(range(len(batch)), 2)]
    cached = CachedEmbeddings(model.encode, chunks, CPU)
    whole, phrases = model.encode(batch.sentences)
    assert batch.phrases is not None
    assert len(batch.phrases) > len(batch)
    torch.testing.assert_close(cached.sentences, whole)
    torch.testing.assert_close(cached.phrases, phrases)
    features = {feature: rows.double() for feature, rows in batch.features.items()}
    object.__setattr__(batch, "features", features)
    assert cached.phrases is not None
    ours = model.terms(batch, Views(*cached.sentences, cached.phrases))
    torch.testing.assert_close(ours["object"], model(batch)["object"])


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (1, "greater than or equal to 2"),
        (0, "greater than or equal to 2"),
        (65, r"chunk is 65, but a batch has 64 rows \(batch_size\); give a smaller chunk"),
    ],
)
def test_bad_chunks(chunk: int, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainConfig(chunk=chunk, batch_size=64, max_steps=1)


@given(st.integers(0, 40), st.integers(1, 9), st.integers(0, 5))
def test_parts_are_consecutive_and_even(rows: int, parts: int, start: int) -> None:
    whole = range(start, start + rows)
    found = split(whole, parts)
    assert [row for part in found for row in part] == list(whole)
    sizes = [len(part) for part in found]
    assert len(sizes) == parts
    assert max(sizes) - min(sizes) <= 1
    if parts > 1:
        chunks = chunks_of(whole, parts)
        assert [row for chunk in chunks for row in chunk] == list(whole)
        assert len(chunks) == max(1, -(-rows // parts))
        assert all(len(chunk) <= parts for chunk in chunks)
