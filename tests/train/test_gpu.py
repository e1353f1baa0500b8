"""Training on a GPU gives the CPU's losses, waits for nothing in a step, and can be repeated."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from cases import FIVE, case_of, terms_of
from test_device import assert_same
from training_world import KillAfter, Killed, assert_alike, silent, weights_of

from sightline.devices import has_tf32
from train.data import ReadAhead, make_feed
from train.loop import Loop, NonFiniteLoss
from train.model import TOTAL, Student
from train.train_run import train_run

pytestmark = pytest.mark.gpu

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
BOUNDS = {"fp32": (0.99999, 1e-4), "bf16": (0.999, 0.1)}
"""Smallest cosine of an embedding to the CPU's in fp32; largest relative difference of a loss."""
STEPS = {"max_steps": 12, "eval_steps": 6, "logging_steps": 4}
SAME = {"fp32": 1e-4, "bf16": 1e-2}
"""Bound on the weights of two runs; see `assert_alike`."""
every_system = pytest.mark.parametrize("system", list(FIVE))
every_precision = pytest.mark.parametrize("precision", list(SAME))


@contextmanager
def waiting_is_an_error():
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@every_precision
@every_system
def test_embeddings_and_losses_are_those_of_the_cpu(features, system, precision):
    model, data = case_of(features, system).build()
    cosine, difference = BOUNDS[precision]
    batches = [data[k] for k in range(8)]
    assert {batch.stream for batch in batches} == {"pairs", "text"}
    with torch.no_grad():
        exact = [(model.encode(batch.sentences), terms_of(model, batch)) for batch in batches]
        model.to(GPU)
        model.precision = precision
        for batch, (embeddings, terms) in zip(batches, exact, strict=True):
            there = batch.to(GPU)
            found = model.encode(there.sentences).cpu()
            of_rows = torch.nn.functional.cosine_similarity(found, embeddings, dim=-1)
            assert of_rows.min() > cosine
            of_terms = terms_of(model, there)
            assert of_terms.keys() == terms.keys()
            for name, term in terms.items():
                off = abs(float(of_terms[name]) - float(term))
                assert off <= difference * max(1.0, abs(float(term))), name


def test_a_wait_would_be_noticed():
    value = torch.ones((), device=GPU)
    with waiting_is_an_error(), pytest.raises(RuntimeError):
        value.item()


@pytest.mark.parametrize("more", [{}, {"precision": "bf16"}, {"chunk": 3}], ids=str)
@every_system
def test_no_step_waits_for_the_gpu(features, tmp_path, monkeypatch, system, more):
    step, streams = Loop._step, set()

    def watched(self):
        streams.add(self._data.schedule.draw(self.state.step).stream)
        with waiting_is_an_error():
            step(self)

    monkeypatch.setattr(Loop, "_step", watched)
    spec = case_of(features, system).spec(tmp_path, **{**STEPS, **more})
    summary = train_run(spec, say=silent)
    assert streams == {"pairs", "text"}
    assert [entry["step"] for entry in summary.log if "loss" in entry] == [4, 8, 12]


@every_system
def test_resident_and_read_ahead_batches_are_those_of_the_host(features, system):
    host, resident, ahead = (case_of(features, system).build()[1] for _ in range(3))
    feeds = [make_feed(resident, GPU, 0.5), make_feed(ahead, GPU, 0.0)]
    assert isinstance(feeds[1], ReadAhead)
    assert not isinstance(feeds[0], ReadAhead)
    for k in range(len(host) + 2):
        for feed in feeds:
            there = feed(k)
            assert there.input_ids.device == GPU
            assert all(rows.device == GPU for rows in there.features.values())
            assert_same(there.to(CPU), host[k])


def assert_alike_and_note_equal_bits(record, one, other, bound):
    record("equal bits", all(torch.equal(one[name], other[name]) for name in one))
    assert_alike(one, other, bound)


def trained(spec, **more):
    train_run(spec, say=silent, **more)
    return weights_of(spec.out)


def test_tf32_rounds_the_products_of_a_run_alone(world, tmp_path):
    if not has_tf32(GPU):
        pytest.skip("this GPU has no TF32")
    factors = torch.randn(2, 256, 256, device=GPU)
    product = factors[0] @ factors[1]

    def run(precision):
        train = {**STEPS, "precision": precision}
        return trained(world.spec(tmp_path / precision, train=train))

    exact, rounded = run("fp32"), run("tf32")
    assert torch.equal(factors[0] @ factors[1], product)
    assert any(not torch.equal(rounded[name], exact[name]) for name in exact)
    assert_alike(rounded, exact, SAME["bf16"])


@every_precision
@pytest.mark.parametrize("system", ["dalr", "mcseo"])
def test_two_equal_runs_have_the_same_weights(
    features, tmp_path, record_property, system, precision
):
    case = case_of(features, system)
    one, other = (
        trained(case.spec(tmp_path / name, **STEPS, precision=precision))
        for name in ("one", "other")
    )
    assert_alike_and_note_equal_bits(record_property, one, other, SAME[precision])


def test_a_resumed_run_has_the_weights_of_an_uninterrupted_one(world, tmp_path, record_property):
    """With dropout, whose masks must be drawn again."""
    whole = trained(world.spec(tmp_path / "whole", "mcse", train=STEPS))
    broken = world.spec(tmp_path / "broken", "mcse", train=STEPS)
    with pytest.raises(Killed):
        train_run(broken, say=silent, callbacks=[KillAfter(9)])
    said: list[str] = []
    train_run(broken, say=said.append)
    assert any("resuming after step 6" in line for line in said)
    resumed = weights_of(tmp_path / "broken")
    assert_alike_and_note_equal_bits(record_property, whole, resumed, SAME["fp32"])


@every_precision
def test_compiled_steps_are_the_eager_ones_within_rounding(features, tmp_path, precision):
    pytest.importorskip("triton")
    case, steps = case_of(features, "mcseo"), {**STEPS, "precision": precision}
    eager, compiled = (
        trained(case.spec(tmp_path / name, **steps, compile=name)) for name in ("off", "on")
    )
    assert_alike(eager, compiled, SAME[precision])


def test_a_bad_step_is_found_late_and_nothing_is_saved_after_it(world, tmp_path, monkeypatch):
    healthy = Student.terms

    def terms(self, batch, views):
        found = healthy(self, batch, views)
        return found if batch.k != 5 else {**found, TOTAL: found[TOTAL] * float("nan")}

    spec = world.spec(tmp_path, "mcse", train={**STEPS, "eval_steps": 4, "logging_steps": 12})
    with monkeypatch.context() as patch:
        patch.setattr(Student, "terms", terms)
        with pytest.raises(NonFiniteLoss, match=r"step 6 .*the last checkpoint is of step 4\. "):
            train_run(spec, say=silent)
    said: list[str] = []
    assert train_run(spec, say=said.append).steps == 12
    assert any("resuming after step 4" in line for line in said)
