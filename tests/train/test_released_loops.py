"""Thirty steps of `train_run` are those of the released loops, alone and mixed with sentences."""

from __future__ import annotations

import dataclasses
import itertools
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import World, silent
from feature_sets import Features
from released_loops import (
    DALRLoss,
    KDMCSELoss,
    Loader,
    MCSELoss,
    Released,
    ReleasedLoss,
    ReleasedModel,
    Sentences,
    SimCSELoss,
    released_run,
)
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from train.batch import Batch
from train.data import TrainingData
from train.loop import Callback
from train.model import GroundedModel
from train.objectives import make_objective
from train.records import RunState
from train.run_spec import RunSpec
from train.train_run import train_run

STEPS, BATCH, RATE = 30, 6, 1e-3
PAIR_BATCHES, TEXT_BATCHES = 3, 7  # of 18 pairs and 40 sentences, so every second step is paired
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}

MIX = {"teacher-first": 0.33, "teacher-second": 0.67}


@dataclass(frozen=True)
class System:
    """One objective, its counterpart in the released loop, and the sets that both read."""

    objective: str
    parameters: dict[str, Any]
    loss: ReleasedLoss
    sets: dict[str, str]


SYSTEMS = {
    "simcse": System("simcse", {}, SimCSELoss(), {}),
    "mcse": System("mcse", {"image": "cnn", "weight": 0.5}, MCSELoss(0.5), {"image-cnn": "cnn"}),
    "kdmcse": System(
        "kdmcse",
        {"variant": "released", "image": "clip", "text": "clip", "weight": 0.5},
        KDMCSELoss(0.5),
        {"image-clip": "clip-image", "text-clip": "clip-text"},
    ),
    "kdmcse, filtered": System(
        "kdmcse",
        {
            **{"variant": "released", "image": "clip", "text": "clip", "weight": 0.5},
            **{"margin": 0.9, "text_margin": 0.8},
            **{"image_threshold": 22.0, "teacher_text_threshold": 22.0},
        },
        KDMCSELoss(0.5, text_margin=0.8, margin=0.9, score_base=22.0),
        {"image-clip": "clip-image", "text-clip": "clip-text"},
    ),
    "dalr": System(
        "dalr",
        {
            "image": "cnn",
            "teachers": [{"encoder": n.split("-")[1], "weight": w} for n, w in MIX.items()],
        },
        DALRLoss(MIX),
        {"image-cnn": "cnn", "teacher-first": "first", "teacher-second": "second"},
    ),
}


@pytest.fixture(scope="module")
def features(world: World, tmp_path_factory: pytest.TempPathFactory) -> Features:
    made = Features(world, tmp_path_factory.mktemp("released"))
    made.add("cnn", "image", dim=7)
    # cosines above 0, so that no margin is more than an angle: there ours stops at the angle 0
    made.add("clip-image", "image", dim=9, offset=1.5)
    made.add("clip-text", "text", dim=9, offset=1.5)
    made.add("first", "teacher", dim=8)
    made.add("second", "teacher", dim=8)
    for dropout in (0.0, 0.1):
        folder = made.root / f"student-{dropout}"
        shutil.copytree(world.student, folder)
        config = BertConfig.from_pretrained(folder)
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = dropout
        config.initializer_range = 0.3  # at 0.02 gradients are rounding; see `Case.spec`
        torch.manual_seed(2)
        BertModel(config).save_pretrained(folder)
    return made


@dataclass(frozen=True)
class Setting:
    """A system on the tiny world, with one stream or both."""

    world: World
    features: Features
    system: System
    streams: tuple[str, ...]
    dtype: torch.dtype = torch.float64
    dropout: float = 0.0
    epsilon: float | None = None

    @property
    def student(self) -> Path:
        return self.features.root / f"student-{self.dropout}"

    def spec(self, out: Path, objective: str, streams: tuple[str, ...]) -> RunSpec:
        told = {"batch_size": BATCH, "learning_rate": RATE, "max_steps": STEPS}
        body: dict[str, Any] = {
            "student": {"model": str(self.student)},
            "train": {**told, "epsilon": self.epsilon},
            "dev": None,
        }
        if objective == self.system.objective:
            body["parameters"] = {**self.system.parameters, "caption": "random"}
            sets = self.system.sets.items()
            body["features"] = {feature: self.features.root / name for feature, name in sets}
        body |= {stream: None for stream in ("pairs", "text") if stream not in streams}
        return self.world.spec(out, objective, **body)

    def ours(self, out: Path, patch: pytest.MonkeyPatch) -> Recorder:
        """Train as `sightline train` does, in the setting's precision."""
        read = TrainingData.__getitem__

        def read_in_dtype(data: TrainingData, k: int) -> Batch:
            batch = read(data, k)
            rows = {feature: values.to(self.dtype) for feature, values in batch.features.items()}
            return dataclasses.replace(batch, features=rows)

        patch.setattr(TrainingData, "__getitem__", read_in_dtype)
        recorder = Recorder(self.dtype)
        spec = self.spec(out, self.system.objective, self.streams)
        train_run(spec, say=silent, callbacks=[recorder])
        patch.undo()
        return recorder

    def theirs(self, start: dict[str, Tensor], told: Released) -> tuple[list[float], ReleasedModel]:
        """Train as the released code did, from the weights that our run began with."""
        model = ReleasedModel(self.student, start, self.dtype)
        seed_every_pass(model.encoder)
        pairs = self._loader(self.system.objective, "pairs", PAIR_BATCHES)
        text = self._loader("simcse", "text", TEXT_BATCHES)
        return released_run(model, self.system.loss, pairs, text, told, STEPS), model

    def _loader(self, objective: str, stream: str, batches: int) -> Loader | None:
        if stream not in self.streams:
            return None
        spec = self.spec(Path("unused"), objective, (stream,))
        data = TrainingData(spec, make_objective(objective, spec.parameters))

        def batch(number: int, step: int) -> Sentences:
            found = data[number]
            sets = self.system.sets.items() if stream == "pairs" else ()
            rows = {s: torch.stack(self.features.of(n, found)).to(self.dtype) for s, n in sets}
            generator = dataclasses.replace(found, k=step).generator()
            lengths = torch.from_numpy(found.lengths)
            return Sentences(found.input_ids, lengths, rows, generator)

        return Loader(batch, batches)


class Recorder(Callback):
    """Sets a run up for the comparison, and keeps its losses and weights."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self.losses: list[float] = []
        self.start: dict[str, Tensor] = {}
        self.end_weights: dict[str, Tensor] = {}

    def begin(self, state: RunState, model: GroundedModel) -> None:
        self._model = model.to(self._dtype)
        model.group_overhead = 10**9  # one length group: one pass, one draw of masks
        seed_every_pass(model.encoder)
        self.start = weights_of(model)

    def log(self, state: RunState, entry: dict[str, float]) -> None:
        self.losses.append(entry["loss"])

    def end(self, state: RunState) -> None:
        self.end_weights = weights_of(self._model)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in model.state_dict().items()}


def seed_every_pass(encoder: nn.Module) -> None:
    """Pass n of either encoder draws dropout from seed n, so both have the same masks."""
    passes = itertools.count()
    encoder.register_forward_pre_hook(lambda *_: void(torch.manual_seed(next(passes))))


def void(_: object) -> None:
    """A hook that returns something would replace the input."""


def differences(ours: Recorder, losses: list[float], model: ReleasedModel) -> tuple[float, float]:
    """The largest difference between losses, and between end weights."""
    assert len(ours.losses) == len(losses) == STEPS
    theirs = weights_of(model)
    assert set(theirs) == set(ours.end_weights)
    of_losses = [abs(one - other) for one, other in zip(ours.losses, losses, strict=True)]
    of_weights = [float((theirs[n] - w).abs().max()) for n, w in ours.end_weights.items()]
    assert all(math.isfinite(each) for each in (*of_losses, *of_weights))
    return max(of_losses), max(of_weights)


ALONE = {name: ("text",) if name == "simcse" else ("pairs",) for name in SYSTEMS}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("dropout", [0.0, 0.1], ids=["no dropout", "equal masks"])
@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "mixed"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_thirty_steps_are_those_of_the_released_loop(
    world: World,
    features: Features,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    mixed: bool,
    dropout: float,
    dtype: torch.dtype,
) -> None:
    streams = ("pairs", "text") if mixed else ALONE[name]
    # on sentences alone SimCSE was trained by the Trainer, whose epsilon is another
    epsilon = 1e-8 if streams == ("text",) else None
    setting = Setting(world, features, SYSTEMS[name], streams, dtype, dropout, epsilon)
    ours = setting.ours(tmp_path / "run", monkeypatch)
    losses, model = setting.theirs(ours.start, Released(RATE, epsilon or 1e-6))
    if epsilon == 1e-8 and dtype == torch.float32:
        # no softmax depends on a key's bias: its gradient is rounding, of the size of this epsilon
        for name in [name for name in ours.end_weights if name.endswith("key.bias")]:
            model.get_parameter(name).data.copy_(ours.end_weights[name])
    of_losses, of_weights = differences(ours, losses, model)
    moved = max(float((w - ours.start[n]).abs().max()) for n, w in ours.end_weights.items())
    assert moved > 5e-3  # the compared weights have actually moved
    assert of_losses <= TOLERANCE[dtype]
    assert of_weights <= TOLERANCE[dtype]


LOOP: list[tuple[str, dict[str, Any]]] = [
    ("mcse", {"epsilon_at": "after"}),
    ("mcse", {"epsilon": 1e-8}),
    ("mcse", {"cleared": "none"}),
    ("mcse", {"max_norm": 1e9}),
    ("mcse", {"paired": "evenly"}),
    ("kdmcse, filtered", {"score_base": None}),
    ("kdmcse, filtered", {"margin": 0.15}),
    ("kdmcse, filtered", {"text_margin": 0.15}),
    ("kdmcse, filtered", {"gated": False}),
]


@pytest.mark.parametrize(("name", "point"), LOOP, ids=str)
def test_each_point_of_the_released_loop_matters(
    world: World,
    features: Features,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    point: dict[str, Any],
) -> None:
    system, told = SYSTEMS[name], Released(RATE)
    setting = Setting(world, features, system, ("pairs", "text"))
    ours = setting.ours(tmp_path / "run", monkeypatch)
    if name == "mcse":
        told = dataclasses.replace(told, **point)
    else:
        assert isinstance(system.loss, KDMCSELoss)
        changed = dataclasses.replace(system.loss, **point)
        setting = dataclasses.replace(setting, system=dataclasses.replace(system, loss=changed))
    losses, model = setting.theirs(ours.start, told)
    assert min(differences(ours, losses, model)) > 1e4 * TOLERANCE[torch.float64]
