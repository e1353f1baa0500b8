"""Objectives of a package outside: state, extra texts, a paper of 2025 (examples/three_methods).

Each is compared with a loop of plain PyTorch, killed and resumed, and trained by two processes.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plain_loops
import pytest
import torch
from cases import Case, Features
from installed_package import forget, install
from process_runs import run_processes
from safetensors.torch import load_file
from test_released_loops import RATE, Recorder, seed_every_pass
from training_world import KillAfter, Killed, assert_alike, assert_equal, silent, weights_of

from train.data import TrainingData
from train.objectives import OBJECTIVES
from train.train_run import train_run

PACKAGE = Path(__file__).parents[2] / "examples/three_methods"
METHODS: dict[str, dict[str, Any]] = {
    "momentum-queue": {"queue": 20, "momentum": 0.8},
    "mined-negatives": {"teacher": "first", "too_near": 0.9},
    "spread-out": {"teacher": "first"},
}
QUEUE_FIRST = [
    pytest.param(name, marks=() if name == "momentum-queue" else pytest.mark.slow)
    for name in METHODS
]
"""The queue alone has a state; the other methods are slow."""
STEPS = 20


@pytest.fixture
def package(tmp_path, monkeypatch) -> Iterator[None]:
    """The package, installed."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    install(tmp_path / "site", project["name"], project["entry-points"])
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.syspath_prepend(PACKAGE)
    forget([OBJECTIVES])
    yield
    forget([OBJECTIVES], "three_methods")


def case_of(features: Features, method: str, **more: Any) -> Case:
    return Case(features, method, {"caption": "all", **METHODS[method]}, **more)


@pytest.mark.parametrize("method", METHODS)
def test_each_equals_a_plain_loop(package, features, tmp_path, monkeypatch, method):
    case = case_of(features, method, dropout=0.1)
    train = {"max_steps": STEPS, "learning_rate": RATE, "optimizer": "torch", "logging_steps": 1}
    read = TrainingData.__getitem__

    class AlsoTheSlow(Recorder):
        def begin(self, state, model):
            super().begin(state, model)
            if method == "momentum-queue":
                seed_every_pass(model.objective.slow[0])

    run = AlsoTheSlow(torch.float64, equal_masks=True)

    def read_in_double(data, k):
        batch = read(data, k)
        rows = {feature: values.double() for feature, values in batch.features.items()}
        return dataclasses.replace(batch, features=rows)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingData, "__getitem__", read_in_double)
        train_run(case.spec(tmp_path / "run", **train), say=silent, callbacks=[run])

    model = plain_loops.model_of(case.student, run.start)
    if method == "momentum-queue":
        loop: Any = plain_loops.MomentumQueue(model, run.start, 0.8)
        seed_every_pass(loop.slow.encoder)
    elif method == "mined-negatives":
        loop = plain_loops.MinedNegatives(model)
    else:
        loop = plain_loops.SpreadOut(model, run.start["heads.teacher.weight"])
    seed_every_pass(model.encoder)
    losses = plain_loops.train(loop, case.data(), STEPS, RATE)
    assert losses == pytest.approx([entry["loss"] for entry in run.losses], abs=1e-10)
    weights = {name: weight for name, weight in model.named_parameters() if name != "linear"}
    for name, weight in weights.items():
        assert float((run.end_weights[name] - weight).abs().max()) <= 1e-10, name
    moved = max(float((run.end_weights[n] - run.start[n]).abs().max()) for n in weights)
    assert moved > 5e-3
    if method == "momentum-queue":
        ours = torch.roll(run.end_weights["queue"], -int(run.end_weights["oldest"]), dims=0)
        assert float((ours - torch.stack(loop.queue)).abs().max()) <= 1e-10
        assert not torch.equal(run.start["queue"], run.end_weights["queue"])


@pytest.mark.parametrize("method", QUEUE_FIRST)
def test_a_killed_run_resumes_bit_for_bit(package, features, tmp_path, method):
    case = case_of(features, method, dropout=0.1)
    train = {"max_steps": 8, "eval_steps": 2, "logging_steps": 2}
    whole = train_run(case.spec(tmp_path / "whole", **train), say=silent)
    for at in (1, 4, 5, 8):
        run = tmp_path / f"killed-{at}"
        with pytest.raises(Killed):
            train_run(case.spec(run, **train), say=silent, callbacks=[KillAfter(at)])
        again = train_run(case.spec(run, **train), say=silent)
        assert_equal(weights_of(tmp_path / "whole"), weights_of(run))
        losses = [[entry.get("loss") for entry in summary.log] for summary in (whole, again)]
        assert losses[0] == losses[1]


@pytest.mark.parametrize("method", QUEUE_FIRST)
def test_two_processes_train_the_same(package, features, tmp_path, method):
    case = case_of(features, method)
    train = {"max_steps": 6, "eval_steps": 3, "logging_steps": 1}
    train_run(case.spec(tmp_path / "one", **train), say=silent)
    (outcome,) = run_processes([case.spec(tmp_path / "two", **train)])
    assert outcome.codes == [0, 0], outcome.said
    assert_alike(weights_of(tmp_path / "one"), weights_of(tmp_path / "two"), 1e-4)


def test_what_an_objective_draws_is_the_same_in_every_process(package, features, tmp_path):
    """The slow encoder has dropout, and its keys are in the loss: else the gradients would part."""
    spec = case_of(features, "momentum-queue", dropout=0.3).spec(tmp_path / "run", max_steps=4)
    (outcome,) = run_processes([spec], gradients=True)
    assert outcome.codes == [0, 0], outcome.said
    first, second = (torch.load(f"{spec.out}-{rank}.pt") for rank in range(2))
    assert len(first) == 4
    for one, other in zip(first, second, strict=True):
        assert_equal(one, other)


def test_state_is_kept_and_not_exported(package, features, tmp_path):
    case = case_of(features, "momentum-queue")
    spec = case.spec(tmp_path / "run", max_steps=4, eval_steps=2)
    with pytest.raises(Killed):
        train_run(spec, say=silent, callbacks=[KillAfter(3)])
    (kept,) = (tmp_path / "run/checkpoints").rglob("model.safetensors")
    names = set(load_file(kept))
    assert {"objective.queue", "objective.oldest"} <= names
    assert any(name.startswith("objective.slow.0.") for name in names)
    summary = train_run(spec, say=silent)
    heads = set(load_file(tmp_path / "run/heads.safetensors"))
    assert heads == {"text.0.weight", "text.0.bias"}
    exported = set(load_file(tmp_path / "run/model/model.safetensors"))
    assert not [name for name in exported if "slow" in name or "queue" in name]
    encoder = load_file(tmp_path / "run/model/model.safetensors")
    trained = [w for name, w in encoder.items() if not name.startswith("pooler.")]
    trained += load_file(tmp_path / "run/heads.safetensors").values()
    assert summary.trained_parameters == sum(weight.numel() for weight in trained)


def test_negatives_are_the_nearest_captions_of_other_images(package, features):
    case = case_of(features, "mined-negatives")
    data = case.data()
    paired = next(data[k] for k in range(9) if data[k].stream == "pairs")
    keys = [key.tobytes() for key in paired.keys]
    every, image_of = features.rows["teacher/first"], features._image_of
    taken = paired.features_of("teacher", "first", of="hard_negatives").double()
    for key, negative in zip(keys, taken, strict=True):
        cosines = {
            other: round(float(cosine(every[key], every[other])), 4)
            for other in every
            if image_of[other] != image_of[key]
        }
        best = max(value for value in cosines.values() if value < 0.9)
        found = [o for o in every if np.allclose(every[o], negative.numpy(), atol=1e-3)]
        assert {cosines[other] for other in found} == {best}
    text = next(data[k] for k in range(9) if data[k].stream == "text")
    assert set(text.blocks) == {"sentences"}


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def test_the_spread_out_term_is_that_of_sentence_transformers(package):
    from sentence_transformers.sentence_transformer.losses import (
        GlobalOrthogonalRegularizationLoss,
    )
    from three_methods.spread_out import second_moment

    rows = torch.randn(12, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theirs = GlobalOrthogonalRegularizationLoss(None, mean_weight=None)  # pyright: ignore
    above = theirs.compute_gor(rows + 1)[1]
    assert float(second_moment(rows + 1) - 1 / 5) == pytest.approx(float(above), abs=1e-12)
    assert float(above) > 0
