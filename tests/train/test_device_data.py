"""Batches looked up on a device or read ahead are those of the host."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import World, assert_equal, silent, weights_of
from torch.utils._python_dispatch import TorchDispatchMode

import train.progress  # noqa: F401, so that it has the real `runs_ahead`
from sightline import devices
from sightline.errors import SightlineError
from train import loop
from train.batch import Batch
from train.data import Feed, ReadAhead, TrainingData, make_feed
from train.loop import Loop, NonFiniteLoss, TakenStep, first_bad
from train.model import GroundedModel
from train.objectives import make_objective
from train.objectives.mcse import MCSE
from train.objectives.objective import Heads, Views
from train.records import RunSummary
from train.train_run import train_run

CPU = torch.device("cpu")


def data_of(world: World, tmp_path: Path) -> TrainingData:
    spec = world.spec(tmp_path / "unused", "mcse")
    return TrainingData(spec, make_objective("mcse", spec.parameters))


def same(one: Batch, other: Batch) -> bool:
    assert torch.equal(one.input_ids, other.input_ids)
    assert one.input_ids.dtype == other.input_ids.dtype == torch.int64
    assert one.lengths.tolist() == other.lengths.tolist()
    assert one.keys.tolist() == other.keys.tolist()
    assert one.features.keys() == other.features.keys()
    for feature, rows in one.features.items():
        assert rows.dtype == other.features[feature].dtype == torch.float32
        assert torch.equal(rows, other.features[feature])
    assert (one.phrases is None) == (other.phrases is None)
    if one.phrases is not None and other.phrases is not None:
        for part in ("owners", "starts", "ends"):
            assert torch.equal(getattr(one.phrases, part), getattr(other.phrases, part))
        assert one.phrases.counts.tolist() == other.phrases.counts.tolist()
    return True


def test_batches_of_a_device_are_those_of_the_host(world: World, tmp_path: Path) -> None:
    parameters = {"image": "tiny-cnn", "caption": "all"}  # several captions share a row
    spec = world.spec(tmp_path / "unused", "mcse", parameters=parameters)
    host, moved = (TrainingData(spec, make_objective("mcse", parameters)) for _ in range(2))
    expected = host.nbytes
    moved.move_to(CPU)
    assert moved.nbytes == expected > 0
    assert all(same(host[k], moved[k]) for k in range(2 * len(host)))


def test_reading_ahead_changes_nothing_and_happens_in_a_thread(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = data_of(world, tmp_path)
    expected = [data[k] for k in range(6)]
    readers = set()
    read = TrainingData.__getitem__

    def spied(self: TrainingData, k: int) -> Batch:
        readers.add(threading.current_thread().name.split("_")[0])
        return read(self, k)

    monkeypatch.setattr(TrainingData, "__getitem__", spied)
    ahead = ReadAhead(data, CPU)
    for k in (0, 1, 2, 5, 3, 4):  # a resumed run begins anywhere
        assert same(ahead(k), expected[k])
    assert readers == {"read-ahead"}


def test_what_does_not_fit_is_read_ahead(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = data_of(world, tmp_path)
    total = 4 * data.nbytes
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (total, total))
    moved = []
    monkeypatch.setattr(data, "move_to", moved.append)
    device = torch.device("cuda", 0)
    assert isinstance(make_feed(data, device, 0.2), ReadAhead)
    assert isinstance(make_feed(data, device, 0.0), ReadAhead)
    assert moved == []
    assert not isinstance(make_feed(data, device, 0.25), ReadAhead)
    assert moved == [device]


class NoWait(TorchDispatchMode):
    """Fails on every operation that reads a tensor's values, which on a GPU waits for it."""

    WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "is_nonzero")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.overloadpacket.__name__
        if name in self.WAITS:
            raise AssertionError(f"{name} waits for the device")
        return func(*args, **(kwargs or {}))


@pytest.fixture
def like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, what training does on a GPU: looked up, one length group, looked at rarely."""

    def moved(data: TrainingData, device: torch.device, share: float) -> Feed:
        data.move_to(device)
        return data.__getitem__

    monkeypatch.setattr(devices, "runs_ahead", lambda device: True)
    monkeypatch.setattr(loop, "make_feed", moved)
    monkeypatch.setattr(GroundedModel, "_overhead", lambda self, device: None)


@pytest.mark.usefixtures("like_a_gpu")
def test_no_step_waits_for_the_device(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Loop._step
    steps = []

    def watched(self: Loop) -> None:
        with NoWait():
            step(self)
        steps.append(self.state.step)

    monkeypatch.setattr(Loop, "_step", watched)
    train = {"max_steps": 6, "eval_steps": 3, "logging_steps": 3}
    summary = train_run(world.spec(tmp_path, "mcse", train=train), say=silent)
    assert steps == [1, 2, 3, 4, 5, 6]
    logged = [entry["step"] for entry in summary.log if "loss" in entry]
    assert logged == [3, 6]


def test_looking_rarely_gives_the_same_weights(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = {"max_steps": 8, "eval_steps": 4, "logging_steps": 4}
    one = train_run(world.spec(tmp_path / "one", "mcse", train=train), say=silent)
    monkeypatch.setattr(devices, "runs_ahead", lambda device: True)
    other = train_run(world.spec(tmp_path / "other", "mcse", train=train), say=silent)
    assert_equal(weights_of(tmp_path / "one"), weights_of(tmp_path / "other"))
    assert [e.get("loss") for e in one.log] == [e.get("loss") for e in other.log]
    assert other.seconds > 0


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_bad_step_is_found_late_and_nothing_is_saved_after_it(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accumulation: int
) -> None:
    """Terms are read once in four steps, before a score or a checkpoint could have bad weights."""
    monkeypatch.setattr(devices, "runs_ahead", lambda device: True)
    train = {"max_steps": 8, "eval_steps": 4, "logging_steps": 8}
    train["gradient_accumulation"] = accumulation
    healthy = MCSE.terms
    bad = 5 * accumulation

    def terms(self: Any, batch: Batch, views: Views, heads: Heads) -> dict[str, torch.Tensor]:
        found = healthy(self, batch, views, heads)
        factor = float("nan") if batch.k == bad else 1.0
        return {**found, "text": found["text"] * factor}

    looks: list[int] = []

    def counted(steps: list[TakenStep], *, norm_counts: bool) -> Any:
        looks.append(len(steps))
        return first_bad(steps, norm_counts=norm_counts)

    run, whole = tmp_path / "run", tmp_path / "whole"
    with monkeypatch.context() as patch:
        patch.setattr(MCSE, "terms", terms)
        patch.setattr(loop, "first_bad", counted)
        message = rf"step 6 \(micro-batch {bad}, \w+\): text is nan\. .*checkpoint is of step 4\. "
        with pytest.raises(NonFiniteLoss, match=message):
            train_run(world.spec(run, "mcse", train=train), say=silent)
    assert looks == [4, 4]
    assert json.loads((run / "checkpoints/state.json").read_text())["step"] == 4
    # resumed from there without the fault, it is the run that never had it
    train_run(world.spec(run, "mcse", train=train), say=silent)
    expected = train_run(world.spec(whole, "mcse", train=train), say=silent)
    assert_equal(weights_of(run), weights_of(whole))
    assert RunSummary.read(run).sentences == expected.sentences


def test_the_first_bad_step_is_named_and_an_overflow_that_is_skipped_is_none() -> None:
    fine, bad, huge = (torch.tensor(value) for value in (1.0, float("nan"), float("inf")))
    steps: list[TakenStep] = []
    assert first_bad(steps, norm_counts=True) is None
    steps.append((1, {0: {"text": fine, "total": fine}}, fine))
    assert first_bad(steps, norm_counts=True) is None
    steps.append((2, {1: {"text": fine, "total": fine}}, huge))
    steps.append((3, {2: {"text": bad, "image": fine, "total": bad}}, bad))
    assert first_bad(steps, norm_counts=True) == (2, 1, {"gradient norm": float("inf")})
    found = first_bad(steps[2:], norm_counts=True)
    assert found is not None
    assert found[:2] == (3, 2)
    assert found[2].keys() == {"text", "image", "total"}
    skipped: list[TakenStep] = [(1, {0: {"text": fine, "total": fine}}, huge)]
    assert first_bad(skipped, norm_counts=False) is None  # fp16: the loss scaler skips the step


def test_an_infinite_share_of_memory_is_refused(world: World, tmp_path: Path) -> None:
    with pytest.raises((SightlineError, ValueError), match="device_cache"):
        world.spec(tmp_path, train={"device_cache": 1.0})
