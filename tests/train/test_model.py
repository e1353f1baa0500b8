"""The student: length groups, chunks and compilation change only time and memory."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from cases import FIVE, case_of, paired, terms_of
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from training_world import KillAfter, Killed, assert_alike, assert_equal, silent, weights_of
from transformers import AutoModel, AutoTokenizer, BertModel

from sightline.cache import TokenSet
from sightline.errors import SightlineError
from train.batch import TokenSpans
from train.data import first_paired
from train.gradient_cache import CachedEmbeddings, chunks_of, split
from train.loop import Callback
from train.model import length_groups
from train.run_spec import StudentConfig
from train.student import check_tokens, load_student
from train.train_run import train_run

CPU = torch.device("cpu")


def student(world, **changes):
    return StudentConfig(**{"name": "tiny", "model": str(world.student), **changes})


def sorting_is_not_its_own_inverse(batch):
    """Of the rows by length, so that a wrong order shows."""
    order = np.argsort(batch.sentences.lengths, kind="stable")
    return (order[order] != np.arange(len(batch))).any()


@pytest.fixture
def model_and_batch(features):
    """MCSEO in float64 without dropout, every term on, and a paired batch with phrases."""
    model, data = case_of(features, "mcseo").build()
    batch = next(filter(sorting_is_not_its_own_inverse, first_paired(data, 40)))
    doubles = {name: rows.double() for name, rows in batch.features.items()}
    return model.double(), replace(batch, features=doubles)


# ---- length groups ------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_length_groups_do_not_change_embeddings_loss_and_gradients(model_and_batch, pooling):
    model, batch = model_and_batch
    model.pooling = pooling
    assert len(set(batch.sentences.lengths.tolist())) > 1
    found = []
    for overhead in (10_000, 0):  # one group; a group for each length
        model._overhead = lambda device, overhead=overhead: overhead
        embeddings = model.embed(batch.blocks)
        model.zero_grad()
        loss = terms_of(model, batch)["total"]
        loss.backward()
        gradient = model.encoder.get_input_embeddings().weight.grad
        found.append((*embeddings.values(), loss, gradient.clone()))
    for one, many in zip(*found, strict=True):
        torch.testing.assert_close(one, many, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("overhead", [10_000, 0])
def test_phrases_are_means_over_the_tokens_of_their_own_sentence(model_and_batch, overhead):
    model, batch = model_and_batch
    model._overhead = lambda device: overhead
    # two phrases in every row: [CLS], and all of it
    owners = torch.arange(len(batch)).repeat_interleave(2)
    ends = torch.tensor([end for length in batch.sentences.lengths for end in (1, length)])
    phrases = TokenSpans(owners, torch.zeros_like(ends), ends, np.full(len(batch), 2))
    embeddings = model.embed({"sentences": batch.sentences, "phrases": phrases})
    model.pooling = "mean"
    means = model.encode(batch.sentences)
    torch.testing.assert_close(embeddings["phrases"][:, 0::2], embeddings["sentences"])
    torch.testing.assert_close(embeddings["phrases"][:, 1::2], means)


def test_every_block_of_texts_has_spans_of_its_own(model_and_batch):
    model, batch = model_and_batch
    other = batch.sentences.part(range(2, 5))
    one = torch.tensor([0, 2])
    spans = TokenSpans(one, one * 0, one * 0 + 1, np.array([1, 0, 1]), of="other")
    blocks = {"spans of other": spans, **batch.blocks, "other": other}
    embeddings = model.embed(blocks)
    assert list(embeddings) == list(blocks)
    torch.testing.assert_close(embeddings["other"], model.encode(other))
    torch.testing.assert_close(embeddings["spans of other"], embeddings["other"][:, one])
    torch.testing.assert_close(embeddings["phrases"], model.embed(batch.blocks)["phrases"])


@pytest.mark.parametrize("rows", [range(3), range(2, 5), range(5, 6), range(4, 4)])
def test_a_part_of_a_batch_is_encoded_as_within_it(model_and_batch, rows):
    model, batch = model_and_batch
    whole, part = model.embed(batch.blocks), model.embed(batch.part(rows))
    assert len(batch.part(rows)["sentences"]) == len(rows)
    torch.testing.assert_close(part["sentences"], whole["sentences"][:, rows.start : rows.stop])
    ends = [0, *np.cumsum(batch.phrases.counts)]
    of_part = whole["phrases"][:, ends[rows.start] : ends[rows.stop]]
    torch.testing.assert_close(part["phrases"], of_part)


def cost(lengths, groups, overhead):
    return sum(len(g) * max(lengths[i] for i in g) + overhead for g in groups)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(0, 30))
@settings(max_examples=80, deadline=None)
def test_no_cut_of_the_sorted_batch_is_cheaper(lengths, overhead):
    groups = length_groups(lengths, overhead)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    cheapest = min(
        cost(lengths, [order[a:b] for a, b in pairwise((0, *cuts, len(order)))], overhead)
        for count in range(len(order))
        for cuts in combinations(range(1, len(order)), count)
    )
    assert cost(lengths, groups, overhead) == cheapest
    if len(groups) == 1:
        assert groups == [list(range(len(lengths)))]


def test_without_an_overhead_given_there_is_one_group_in_order():
    assert length_groups([3, 9, 1], None) == [[0, 1, 2]]


# ---- chunks -------------------------------------------------------------------------------------


class Gradients(Callback):
    """Those of every step."""

    def begin(self, state, model):
        self.model, self.steps = model, []

    def step(self, state):
        found = self.model.named_parameters()
        self.steps.append({n: p.grad.clone() for n, p in found if p.grad is not None})


def test_gradients_are_those_of_the_whole_batch(features, tmp_path):
    weights_stay = {"max_steps": 6, "learning_rate": 1e-30, "max_grad_norm": 1e9, "eval_steps": 100}
    steps = {}
    for chunk in (None, 2, 4, 6):  # of batches of 6
        gradients = Gradients()
        spec = case_of(features, "mcseo").spec(tmp_path / f"{chunk}", chunk=chunk, **weights_stay)
        train_run(spec, say=silent, callbacks=[gradients])
        steps[chunk] = gradients.steps
    whole = steps.pop(None)
    assert len(whole) == 6
    for chunk, chunked in steps.items():
        for ours, theirs in zip(chunked, whole, strict=True):
            assert ours.keys() == theirs.keys()
            largest = max(float(each.abs().max()) for each in theirs.values())
            for name, gradient in theirs.items():
                off = float((ours[name] - gradient).abs().max())
                assert off == 0 if chunk == 6 else off <= 1e-5 * largest, (chunk, name)


def test_a_second_pass_of_several_chunks_has_the_dropout_of_the_first(model_and_batch):
    model, batch = model_and_batch
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.2
    chunks = [batch.part(rows) for rows in chunks_of(range(len(batch)), 2)]
    passes = []

    def embed(blocks):
        passes.append(model.embed(blocks))
        return passes[-1]

    torch.manual_seed(7)
    cached = CachedEmbeddings(embed, chunks, CPU)
    assert not torch.equal(*cached.embeddings["sentences"])  # the views differ
    assert not any(rows.requires_grad for blocks in passes for rows in blocks.values())
    torch.rand(3)  # whatever draws numbers in between
    gradients = {name: torch.randn_like(rows) for name, rows in cached.embeddings.items()}
    cached.backward(gradients)
    assert len(passes) == 2 * len(chunks) == 6
    for first, second in zip(passes[:3], passes[3:], strict=True):
        assert first.keys() == second.keys() == {"sentences", "phrases"}
        assert all(torch.equal(rows, second[name]) for name, rows in first.items())
    found = {n: p.grad.clone() for n, p in model.encoder.named_parameters() if p.grad is not None}
    assert len(found) > 10

    # the same masks with one graph of all chunks
    model.zero_grad()
    torch.manual_seed(7)
    embedded = [model.embed(chunk) for chunk in chunks]
    whole = {name: torch.cat([part[name] for part in embedded], dim=1) for name in gradients}
    sum((whole[name] * gradient).sum() for name, gradient in gradients.items()).backward()
    for name, gradient in found.items():
        expected = model.encoder.get_parameter(name).grad
        torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)

    # one chunk alone keeps its graph
    passes.clear()
    cached = CachedEmbeddings(embed, [batch.blocks], CPU)
    cached.backward({"sentences": torch.ones_like(cached.embeddings["sentences"])})
    assert len(passes) == 1
    assert not cached.embeddings["sentences"].requires_grad


@given(st.integers(0, 40), st.integers(1, 9), st.integers(0, 5))
def test_parts_are_consecutive_and_even(rows, parts, start):
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


# ---- the student --------------------------------------------------------------------------------


def test_layers_keeps_the_first_ones(world, tmp_path):
    whole = load_student(student(world))[0].model
    embedder, _ = load_student(student(world, layers=1))
    cut = embedder.model
    kept = cut.state_dict()
    assert not any("layer.1." in name for name in kept)
    assert all(torch.equal(whole.state_dict()[name], value) for name, value in kept.items())
    every = load_student(student(world, layers=2))[0].model
    assert every.state_dict().keys() == whole.state_dict().keys()
    with pytest.raises(SightlineError, match="layers is 3, but the encoder has 2"):
        load_student(student(world, layers=3))
    cut.save_pretrained(tmp_path)
    embedder.tokenizer.save_pretrained(tmp_path)
    again = load_student(student(world, model=str(tmp_path)))[0].model
    assert again.config.num_hidden_layers == 1


@pytest.mark.parametrize("change", ["swapped", "added", "copied"])
def test_tokens_of_another_tokenizer_are_refused_wherever_they_lie(world, tmp_path, change):
    folder = tmp_path / "other"
    shutil.copytree(world.student, folder)
    text = (folder / "tokenizer.json").read_text()
    if change == "swapped":
        swapped = text.replace('"circle"', '"\x00"').replace('"square"', '"circle"')
        (folder / "tokenizer.json").write_text(swapped.replace('"\x00"', '"square"'))
    if change == "added":  # of which none of the texts has one
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.add_tokens(["zebra crossing"])
        model = AutoModel.from_pretrained(folder, add_pooling_layer=False)
        model.resize_token_embeddings(len(tokenizer))
        for part in (model, tokenizer):
            part.save_pretrained(folder)
    base = world.spec(tmp_path / "run", train={"max_steps": 1})
    spec = base.model_copy(update={"student": student(world, model=str(folder), max_length=16)})
    if change == "copied":
        assert train_run(spec, say=lambda line: None).steps == 1
        return
    message = (
        rf"made with another tokenizer than that of {folder}; make them again with "
        rf"`sightline tokens --student {folder}`, or leave out `--tokens`"
    )
    with pytest.raises(SightlineError, match=message):
        train_run(spec, say=lambda line: None)
    assert not list((tmp_path / "run").rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (
            [("两只 狗", "一只 猫"), ("雪", "一只 狗 在 雪"), ("猫", "a")],
            r"\d+ % of its tokens are",
        ),
        (
            [("a circle", "a  circle"), ("the square", "the square")],
            "all its pairs are alike",
        ),
        (
            [("a circle", "a square"), ("a square", "a circle")],
            "all its pairs are alike",
        ),
        ([("a circle", "a square"), ("a square", "a square")], ""),
    ],
)
def test_a_dev_set_that_says_nothing_is_named_before_the_first_step(
    world, tmp_path, pairs, message
):
    rows = [f"{number}\t{one}\t{other}" for number, (one, other) in enumerate(pairs)]
    dev = tmp_path / "dev.tsv"
    dev.write_text("\n".join(["score\tsentence1\tsentence2", *rows]) + "\n", "utf-8")
    spec = world.spec(tmp_path / "run", dev=dev, train={"max_steps": 1})
    if not message:
        assert train_run(spec, say=silent).steps == 1
        return
    with pytest.raises(SightlineError, match=rf"dev\.tsv: {message}"):
        train_run(spec, say=silent)
    assert not (tmp_path / "run/checkpoints/state.json").exists()


def test_a_length_beyond_the_students_positions_is_refused(world):
    embedder, _ = load_student(student(world))
    check_tokens(embedder, student(world, max_length=32), TokenSet.open(world.root / "tokens"))
    with pytest.raises(SightlineError, match="max_length is 33, but the student has positions for"):
        check_tokens(embedder, student(world, max_length=33), TokenSet.open(world.root / "tokens"))


@pytest.mark.parametrize("pooling", ["pooler", "first_last_mean"])
def test_a_pooling_that_cannot_be_exported_is_refused(world, pooling):
    with pytest.raises(ValidationError, match="'cls', 'mean' or 'lasttoken'"):
        student(world, pooling=pooling)


@pytest.mark.parametrize("name", FIVE)
def test_bf16_rounds_the_weights_of_the_encoder_once_and_nothing_else(features, name):
    model, data = case_of(features, name).build()
    batch = paired(data)
    exact, terms = model.encode(batch.sentences), terms_of(model, batch)
    model.precision = "bf16"
    rounded, found = model.encode(batch.sentences), terms_of(model, batch)
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded, rounded.bfloat16().float())
    assert not torch.equal(rounded, exact)
    assert torch.nn.functional.cosine_similarity(rounded, exact, dim=-1).min() > 0.999
    for term, value in found.items():
        assert value.dtype == torch.float32
        assert value.item() == pytest.approx(terms[term].item(), rel=0.2, abs=0.05), term
    found["total"].backward()
    for parameter in model.parameters():
        assert parameter.dtype == parameter.grad.dtype == torch.float32
        assert torch.isfinite(parameter.grad).all()


# ---- `train.compile: on` ------------------------------------------------------------------------


def compiled(test):
    """A slow test, which needs a compiler."""
    missing = shutil.which("g++") is None
    skipped = pytest.mark.skipif(missing, reason="torch.compile needs g++ on a CPU")
    return pytest.mark.slow(skipped(test))


@compiled
@pytest.mark.parametrize("more", [{}, {"chunk": 3}, {"precision": "bf16"}], ids=str)
def test_compiled_steps_are_the_eager_ones_within_rounding(world, tmp_path, more):
    without_dropout = BertModel.from_pretrained(world.student)
    config = without_dropout.config
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    folder = shutil.copytree(world.student, tmp_path / "student")
    without_dropout.save_pretrained(folder)
    train = {"max_steps": 5, "eval_steps": 5, **more}
    for name in ("off", "on"):
        changes = {"student": {"model": str(folder)}, "train": {**train, "compile": name}}
        train_run(world.spec(tmp_path / name, "mcse", **changes), say=silent)
    bound = 1e-2 if "precision" in more else 1e-4
    assert_alike(weights_of(tmp_path / "off"), weights_of(tmp_path / "on"), bound)


@compiled
def test_a_resumed_compiled_run_has_the_weights_of_an_uninterrupted_one(world, tmp_path):
    train = {"max_steps": 6, "eval_steps": 2, "compile": "on"}
    train_run(world.spec(tmp_path / "whole", "mcse", train=train), say=silent)
    broken = world.spec(tmp_path / "broken", "mcse", train=train)
    with pytest.raises(Killed):
        train_run(broken, say=silent, callbacks=[KillAfter(4)])
    torch.compiler.reset()  # another process compiles again
    train_run(broken, say=silent)
    assert_equal(weights_of(tmp_path / "whole"), weights_of(tmp_path / "broken"))


@compiled
def test_a_machine_that_cannot_compile_gets_one_error(world, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/compiler")
    torch.compiler.reset()
    spec = world.spec(tmp_path, train={"compile": "on"})
    # not by monkeypatch, which leaves later tests without the setting
    with (
        torch._inductor.config.patch({"cpp.cxx": ("/nowhere/compiler",)}),
        pytest.raises(SightlineError, match=r"compile is on, but torch\.compile fails here"),
    ):
        train_run(spec, say=silent)
