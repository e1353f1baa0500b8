"""Steps of `train_run` are those of the released loops, and of the equations, term by term."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import TEACHERS, Case, Features
from conftest import silent
from released_loops import (
    DALRLoss,
    KDMCSELoss,
    Loader,
    MCSELoss,
    MCSEOLoss,
    Released,
    ReleasedLoss,
    ReleasedModel,
    Sentences,
    released_run,
)
from torch import Tensor, nn

from train.batch import Batch
from train.data import TrainingData
from train.loop import Callback
from train.model import GroundedModel
from train.records import RunState
from train.train_run import train_run

RATE = 1e-3
PAIR_BATCHES, TEXT_BATCHES = 3, 7  # of 18 pairs and 40 sentences, so every second step is paired
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}

CLIP: dict[str, Any] = {"image": "clip", "text": "clip", "weight": 0.5}
RELEASED = {**CLIP, "variant": "released"}
HALVES = {"text": 1.0, "image": 0.5, "teacher_text": 0.5}
QUARTERS = {"text": 1.0, "image": 0.25, "teacher_text": 0.25}
DALR: dict[str, Any] = {"image": "clip", "teachers": TEACHERS}
MIX = {"teacher-first": 0.33, "teacher-second": 0.67}
DALR_WEIGHTS = {
    **{"text": 1.0, "image": 1.0, "consistency": 0.1, "cross_modal": 0.1},
    **{"ranking": 0.2, "intra_modal": 0.2},
}


@dataclass(frozen=True)
class System:
    """One objective, and its counterpart in the released loop."""

    objective: str
    parameters: dict[str, Any]
    loss: ReleasedLoss


SYSTEMS = {
    "simcse": System("simcse", {}, ReleasedLoss()),
    "mcse": System(
        "mcse",
        {"image": "clip", "weight": 0.5, "variant": "released"},
        MCSELoss({"text": 1.0, "image": 0.5}),
    ),
    "kdmcse": System("kdmcse", RELEASED, KDMCSELoss(HALVES)),
    "kdmcse, filtered": System(
        "kdmcse",
        {
            **{**RELEASED, "margin": 1.4, "text_margin": 0.8},
            **{"image_threshold": 16.0, "teacher_text_threshold": 16.0},
        },
        KDMCSELoss(
            HALVES,
            text_margin=0.8,
            margin=1.4,
            thresholds={"image": 16.0, "teacher_text": 16.0},
        ),
    ),
    "dalr": System("dalr", DALR, DALRLoss(DALR_WEIGHTS, mix=MIX)),
    "mcseo": System(
        "mcseo", {"image": "clip"}, MCSEOLoss({"text": 1.0, "image": 0.01, "object": 0.005})
    ),
}


def alone(term: str) -> System:
    """DALR with one term."""
    off = {f"{other}_weight": 0 for other in DALR_WEIGHTS if other != term}
    return System("dalr", {**DALR, **off}, DALRLoss({term: DALR_WEIGHTS[term]}, mix=MIX))


def teachers(*names: str, **off: float) -> System:
    """DALR with these teachers, of weights 1, 2 and so on."""
    mix = {name: 1.0 + i for i, name in enumerate(names)}
    given = [{"encoder": name, "weight": weight} for name, weight in mix.items()]
    weights = {term: w for term, w in DALR_WEIGHTS.items() if f"{term}_weight" not in off}
    shares = {f"teacher-{name}": weight for name, weight in mix.items()}
    return System("dalr", {**DALR, "teachers": given, **off}, DALRLoss(weights, mix=shares))


MCSE_NUMBERS = {"temperature": 0.07, "image_temperature": 0.1, "weight": 0.7, "text_weight": 0.3}
MCSEO_NUMBERS = {"temperature": 0.07, "image_temperature": 0.1, "object_temperature": 0.2}
DALR_NUMBERS = {
    **{"temperature": 0.07, "image_temperature": 0.06, "ranking_temperature": 0.2},
    **{"target_temperature": 1.0, "student_temperature": 0.5},
}
VARIANTS = {
    "simcse, own temperature": System(
        "simcse", {"temperature": 0.2}, ReleasedLoss(temperature=0.2)
    ),
    "mcse, own numbers": System(
        "mcse",
        {"image": "clip", **MCSE_NUMBERS},
        MCSELoss({"text": 0.3, "image": 0.35}, 0.07, image_temperature=0.1, sums=True),
    ),
    "mcse, no image term": System("mcse", {"weight": 0}, ReleasedLoss()),
    "kdmcse, paper": System(
        "kdmcse",
        CLIP,
        KDMCSELoss(
            QUARTERS,
            text_margin=0.0,
            margin=0.125,
            thresholds={"image": 0.9, "teacher_text": 0.9},
            gated=False,
            paper=True,
        ),
    ),
    "kdmcse, paper, both filters": System(
        "kdmcse",
        {**CLIP, "image_threshold": 0.85, "teacher_text_threshold": 0.9, "text_margin": 0.3},
        KDMCSELoss(
            QUARTERS,
            text_margin=0.3,
            margin=0.125,
            thresholds={"image": 0.85, "teacher_text": 0.9},
            gated=False,
            paper=True,
        ),
    ),
    "kdmcse, paper, no filter, own numbers": System(
        "kdmcse",
        {
            **{**CLIP, "image_threshold": None, "teacher_text_threshold": None, "margin": 0.3},
            **{"temperature": 0.07, "teacher_temperature": 0.1},
            **{"image_weight": 0.5, "teacher_text_weight": 2.0},
        },
        KDMCSELoss(
            {"text": 1.0, "image": 0.125, "teacher_text": 0.5},
            temperature=0.07,
            text_margin=0.0,
            margin=0.3,
            teacher_temperature=0.1,
            gated=False,
            paper=True,
        ),
    ),
    "dalr, own numbers": System(
        "dalr",
        {
            **{**DALR, **DALR_NUMBERS, "consistency_margin": -0.1},
            **{"image_weight": 0.1, "cross_modal_weight": 0.7, "ranking_weight": 0.05},
        },
        DALRLoss(
            {**DALR_WEIGHTS, "image": 0.1, "cross_modal": 0.7, "ranking": 0.05},
            **DALR_NUMBERS,
            mix=MIX,
            margin=-0.1,
        ),
    ),
    "dalr, one teacher": teachers("third"),
    "dalr, three teachers": teachers("third", "first", "second"),
    "dalr, widths that are not added up": teachers(
        "first", "wide", cross_modal_weight=0, intra_modal_weight=0
    ),
    **{f"dalr, {term} alone": alone(term) for term in DALR_WEIGHTS},
    "mcseo, own numbers": System(
        "mcseo",
        {"image": "clip", **MCSEO_NUMBERS, "image_weight": 0.7, "object_weight": 0.3},
        MCSEOLoss({"text": 1.0, "image": 0.7, "object": 0.3}, **MCSEO_NUMBERS),
    ),
    "mcseo, no image term": System(
        "mcseo",
        {"image": "clip", "image_weight": 0, "object_weight": 1},
        MCSEOLoss({"text": 1.0, "object": 1.0}),
    ),
    "mcseo, no text term": System(
        "mcseo",
        {"image": "clip", "text_weight": 0, "object_weight": 1},
        MCSEOLoss({"image": 0.01, "object": 1.0}),
    ),
}


@dataclass(frozen=True)
class Setting:
    """A system with one stream or both, named so that a run of it is made once."""

    name: str
    streams: tuple[str, ...] = ("pairs", "text")
    dropout: float = 0.0
    dtype: torch.dtype = torch.float64
    epsilon: float | None = None
    steps: int = 30

    @property
    def system(self) -> System:
        return (SYSTEMS | VARIANTS)[self.name]

    def case(self, features: Features) -> Case:
        parameters = {**self.system.parameters, "caption": "random"}
        return Case(
            features,
            self.system.objective,
            parameters,
            streams=self.streams,
            dropout=self.dropout,
        )

    def ours(self, features: Features, out: Path) -> Recorder:
        """Train as `sightline train` does, in the setting's precision."""
        read = TrainingData.__getitem__

        def read_in_dtype(data: TrainingData, k: int) -> Batch:
            batch = read(data, k)
            rows = {feature: values.to(self.dtype) for feature, values in batch.features.items()}
            return dataclasses.replace(batch, features=rows)

        recorder = Recorder(self.dtype, equal_masks=self.dropout > 0)
        told = {"learning_rate": RATE, "max_steps": self.steps, "epsilon": self.epsilon}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TrainingData, "__getitem__", read_in_dtype)
            train_run(self.case(features).spec(out, **told), say=silent, callbacks=[recorder])
        return recorder

    def theirs(
        self, features: Features, start: dict[str, Tensor], told: Released, loss: ReleasedLoss
    ) -> tuple[list[dict[str, float]], ReleasedModel]:
        """Train as the released code did, from the weights that our run began with."""
        case = self.case(features)
        model = ReleasedModel(case.student, start, self.dtype)
        seed_every_pass(model.encoder)
        text = dataclasses.replace(case, objective="simcse", parameters={}, streams=("text",))
        pairs = dataclasses.replace(case, streams=("pairs",))
        of_pairs = self._loader(pairs, PAIR_BATCHES) if "pairs" in self.streams else None
        of_text = self._loader(text, TEXT_BATCHES) if "text" in self.streams else None
        return released_run(model, loss, of_pairs, of_text, told, self.steps), model

    def _loader(self, case: Case, batches: int) -> Loader:
        data, features = case.data(), case.features

        def batch(number: int, step: int) -> Sentences:
            drawn = data[number]
            needs = data.feature_sets if drawn.stream == "pairs" else ()
            rows = {
                name: features.of(name.replace("-", "/"), drawn).to(self.dtype) for name in needs
            }
            phrases = [
                (row, start, end)
                for row, key in enumerate(drawn.keys)
                for start, end, _ in features.named.get(key.tobytes(), ())
            ]
            generator = dataclasses.replace(drawn, k=step).generator()
            lengths = torch.from_numpy(drawn.lengths)
            return Sentences(drawn.input_ids, lengths, rows, phrases, generator)

        return Loader(batch, batches)


class Recorder(Callback):
    """Sets a run up for the comparison, and keeps its losses and weights.

    Args:
        equal_masks: encode a batch in one pass, whose dropout is that of the released model's.
    """

    def __init__(self, dtype: torch.dtype, equal_masks: bool = False) -> None:
        self._dtype, self._equal_masks = dtype, equal_masks
        self.losses: list[dict[str, float]] = []
        self.start: dict[str, Tensor] = {}
        self.end_weights: dict[str, Tensor] = {}

    def begin(self, state: RunState, model: GroundedModel) -> None:
        self._model = model.to(self._dtype)
        if self._equal_masks:
            model.group_overhead = 10**9  # one length group: one pass, one draw of masks
            seed_every_pass(model.encoder)
        self.start = weights_of(model)

    def log(self, state: RunState, entry: dict[str, float]) -> None:
        self.losses.append({n: value for n, value in entry.items() if n.startswith("loss")})

    def end(self, state: RunState) -> None:
        self.end_weights = weights_of(self._model)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in model.state_dict().items()}


def seed_every_pass(encoder: nn.Module) -> None:
    """Pass n of either encoder draws dropout from seed n, so both have the same masks."""
    passes = itertools.count()

    def seed(*_: object) -> None:
        torch.manual_seed(next(passes))

    encoder.register_forward_pre_hook(seed)


@pytest.fixture(scope="module")
def ours(
    features: Features, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Setting], Recorder]:
    """Our run of a setting."""
    return cache(lambda setting: setting.ours(features, tmp_path_factory.mktemp("run") / "out"))


def differences(
    ours: Recorder, losses: list[dict[str, float]], model: ReleasedModel
) -> tuple[float, float]:
    """The largest difference between losses, and between end weights."""
    theirs = weights_of(model)
    assert theirs.keys() == ours.end_weights.keys()
    of_steps = zip(ours.losses, losses, strict=True)
    of_losses = [abs(one["loss"] - other["loss"]) for one, other in of_steps]
    of_weights = [float((theirs[n] - w).abs().max()) for n, w in ours.end_weights.items()]
    assert all(math.isfinite(each) for each in (*of_losses, *of_weights))
    return max(of_losses), max(of_weights)


ALONE = {name: ("text",) if name == "simcse" else ("pairs",) for name in SYSTEMS}
SETTINGS = [
    # on sentences alone SimCSE was trained by the Trainer, whose epsilon is another
    *(
        Setting(name, streams, dropout, epsilon=1e-8 if streams == ("text",) else None)
        for name in SYSTEMS
        for streams in (ALONE[name], ("pairs", "text"))
        for dropout in (0.0, 0.1)
    ),
    *(Setting(name, dropout=0.1, dtype=torch.float32) for name in SYSTEMS),
    *(
        Setting(
            name, ("pairs", "text") if "text" in system.loss.weights else ("pairs",), 0.1, steps=8
        )
        for name, system in VARIANTS.items()
    ),
]


@pytest.mark.parametrize(
    "setting", SETTINGS, ids=lambda s: f"{s.name}: {'+'.join(s.streams)}, {s.dropout}, {s.dtype}"
)
def test_steps_are_those_of_the_released_loop(
    features: Features, ours: Callable[[Setting], Recorder], setting: Setting
) -> None:
    """In either precision, without dropout or with equal masks, alone or mixed with sentences."""
    run, told = ours(setting), Released(RATE, setting.epsilon or 1e-6)
    losses, model = setting.theirs(features, run.start, told, setting.system.loss)
    for one, other in zip(run.losses, losses, strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-6)  # terms are logged in float32
    moved = max(float((w - run.start[n]).abs().max()) for n, w in run.end_weights.items())
    assert moved > (5e-3 if setting.steps == 30 else 1e-3)  # the compared weights have moved
    assert max(differences(run, losses, model)) <= TOLERANCE[setting.dtype]


LOOP: list[tuple[str, dict[str, Any]]] = [
    ("mcse", {"epsilon_at": "after"}),
    ("mcse", {"epsilon": 1e-8}),
    ("mcse", {"cleared": "none"}),
    ("mcse", {"max_norm": 1e9}),
    ("mcse", {"paired": "evenly"}),
    ("kdmcse, filtered", {"thresholds": {}}),
    ("kdmcse, filtered", {"margin": 0.15}),
    ("kdmcse, filtered", {"text_margin": 0.15}),
    ("kdmcse, filtered", {"gated": False}),
]


@pytest.mark.parametrize(("name", "point"), LOOP, ids=str)
def test_each_point_of_the_released_loop_matters(
    features: Features, ours: Callable[[Setting], Recorder], name: str, point: dict[str, Any]
) -> None:
    setting, told, loss = Setting(name), Released(RATE), SYSTEMS[name].loss
    if name == "mcse":
        told = dataclasses.replace(told, **point)
    else:
        loss = dataclasses.replace(loss, **point)
    run = ours(setting)
    losses, model = setting.theirs(features, run.start, told, loss)
    assert min(differences(run, losses, model)) > 1e4 * TOLERANCE[torch.float64]
