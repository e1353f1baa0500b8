"""Steps of `train_run` are those of the released loops, and of the equations, term by term.

So are those of examples/mcse_from_cache.py, which is the trainer in one file.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import TEACHERS, Case, case_of
from released_loops import (
    DALRLoss,
    KDMCSELoss,
    Loader,
    MCSELoss,
    MCSEOLoss,
    Released,
    ReleasedLoss,
    ReleasedModel,
    TokenRows,
    released_run,
)
from torch import Tensor, nn
from training_world import silent

from train.data import TrainingData
from train.loop import Callback
from train.model import Student
from train.records import RunState
from train.run_spec import TrainConfig
from train.train_run import train_run

RATE = 1e-3
PAIR_BATCHES, TEXT_BATCHES = 3, 7  # of 18 pairs and 40 sentences, so every second step is paired
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}

CLIP: dict[str, Any] = {"image": "clip", "text": "clip", "weight": 0.5}
QUARTERS = {"text": 1.0, "image": 0.25, "teacher_text": 0.25}
HALVES = {"text": 1.0, "image": 0.5, "teacher_text": 0.5}
THRESHOLDS = {"image": 16.0, "teacher_text": 16.0}
DALR: dict[str, Any] = {"image": "clip", "teachers": TEACHERS}
MIX = {"teacher-first": 0.33, "teacher-second": 0.67}
DALR_WEIGHTS = {
    **{"text": 1.0, "image": 1.0, "consistency": 0.1, "cross_modal": 0.1},
    **{"ranking": 0.2, "intra_modal": 0.2},
}

System = tuple[str, dict[str, Any], ReleasedLoss]
"""An objective with its parameters, and its counterpart in the released loop."""

SYSTEMS: dict[str, System] = {
    "simcse": ("simcse", {}, ReleasedLoss()),
    "mcse": (
        "mcse",
        {"image": "clip", "weight": 0.5, "variant": "released"},
        MCSELoss({"text": 1.0, "image": 0.5}),
    ),
    "kdmcse": ("kdmcse", {**CLIP, "variant": "released"}, KDMCSELoss(HALVES)),
    "kdmcse, filtered": (
        "kdmcse",
        {
            **{**CLIP, "variant": "released", "margin": 1.4, "text_margin": 0.8},
            **{f"{term}_threshold": score for term, score in THRESHOLDS.items()},
        },
        KDMCSELoss(HALVES, margin=1.4, text_margin=0.8, thresholds=THRESHOLDS),
    ),
    "dalr": ("dalr", DALR, DALRLoss(DALR_WEIGHTS, mix=MIX)),
    "mcseo": (
        "mcseo",
        {"image": "clip"},
        MCSEOLoss({"text": 1.0, "image": 0.01, "object": 0.005}),
    ),
}


def teachers(*names: str, **off: float) -> System:
    """DALR with these teachers, of weights 1, 2 and so on."""
    mix = {name: 1.0 + i for i, name in enumerate(names)}
    given = [{"encoder": name, "weight": weight} for name, weight in mix.items()]
    weights = {term: w for term, w in DALR_WEIGHTS.items() if f"{term}_weight" not in off}
    shares = {f"teacher-{name}": weight for name, weight in mix.items()}
    return "dalr", {**DALR, "teachers": given, **off}, DALRLoss(weights, mix=shares)


def of_the_paper(weights: dict[str, float], **numbers: Any) -> KDMCSELoss:
    return KDMCSELoss(weights, **{"text_margin": 0.0, "margin": 0.125, **numbers}, paper=True)


MCSE_NUMBERS = {"temperature": 0.07, "image_temperature": 0.1, "weight": 0.7, "text_weight": 0.3}
MCSEO_NUMBERS = {"temperature": 0.07, "image_temperature": 0.1, "object_temperature": 0.2}
DALR_NUMBERS = {
    **{"temperature": 0.07, "image_temperature": 0.06, "ranking_temperature": 0.2},
    **{"target_temperature": 1.0, "student_temperature": 0.5},
}
VARIANTS: dict[str, System] = {
    "simcse, own temperature": ("simcse", {"temperature": 0.2}, ReleasedLoss(temperature=0.2)),
    "mcse, own numbers": (
        "mcse",
        {"image": "clip", **MCSE_NUMBERS},
        MCSELoss({"text": 0.3, "image": 0.35}, 0.07, image_temperature=0.1, sums=True),
    ),
    "kdmcse, paper": (
        "kdmcse",
        CLIP,
        of_the_paper(QUARTERS, thresholds={"image": 0.9, "teacher_text": 0.9}),
    ),
    "kdmcse, paper, both filters": (
        "kdmcse",
        {**CLIP, "image_threshold": 0.85, "teacher_text_threshold": 0.9, "text_margin": 0.3},
        of_the_paper(QUARTERS, text_margin=0.3, thresholds={"image": 0.85, "teacher_text": 0.9}),
    ),
    "kdmcse, paper, no filter, own numbers": (
        "kdmcse",
        {
            **{**CLIP, "image_threshold": None, "teacher_text_threshold": None, "margin": 0.3},
            **{"temperature": 0.07, "teacher_temperature": 0.1},
            **{"image_weight": 0.5, "teacher_text_weight": 2.0},
        },
        of_the_paper(
            {"text": 1.0, "image": 0.125, "teacher_text": 0.5},
            **{"temperature": 0.07, "teacher_temperature": 0.1, "margin": 0.3},
        ),
    ),
    "dalr, own numbers": (
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
    "mcseo, own numbers": (
        "mcseo",
        {"image": "clip", **MCSEO_NUMBERS, "image_weight": 0.7, "object_weight": 0.3},
        MCSEOLoss({"text": 1.0, "image": 0.7, "object": 0.3}, **MCSEO_NUMBERS),
    ),
    "mcseo, objects alone": (
        "mcseo",
        {"image": "clip", "image_weight": 0, "text_weight": 0, "object_weight": 1},
        MCSEOLoss({"object": 1.0}),
    ),
}


class Recorder(Callback):
    """Sets a run up for the comparison, and keeps its losses and weights.

    Args:
        equal_masks: encode a batch in one pass, whose dropout is that of the released model's.
    """

    def __init__(self, dtype: torch.dtype, equal_masks: bool = False) -> None:
        self._dtype, self._equal_masks = dtype, equal_masks
        self.losses: list[dict[str, float]] = []

    def begin(self, state: RunState, model: Student) -> None:
        self._model = model.to(self._dtype)
        if self._equal_masks:
            model._overhead = lambda device: None  # one length group: one pass, one draw of masks
            seed_every_pass(model.encoder)
        self.start = weights_of(model)

    def log(self, state: RunState, entry: dict[str, float]) -> None:
        self.losses.append({n: value for n, value in entry.items() if n.startswith("loss")})

    def end(self, state: RunState) -> None:
        self.end_weights = weights_of(self._model)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Name → weight; heads as `heads.NAME…`, of the trainer's model too."""
    return {
        name.removeprefix("objective."): weight.detach().clone()
        for name, weight in model.state_dict().items()
    }


def seed_every_pass(encoder: nn.Module) -> None:
    """Pass n of either encoder draws dropout from seed n, so both have the same masks."""
    passes = itertools.count()

    def seed(*_: object) -> None:
        torch.manual_seed(next(passes))

    encoder.register_forward_pre_hook(seed)


def loader_of(case: Case, batches: int, dtype: torch.dtype) -> Loader:
    """The batches of the released loop: those of a run with this stream alone."""
    data, features = case.data(), case.features

    def batch(number: int, step: int) -> TokenRows:
        drawn = data[number]
        needs = data.feature_sets if drawn.stream == "pairs" else ()
        rows = {name: features.of(name.replace("-", "/"), drawn).to(dtype) for name in needs}
        phrases = [
            (row, start, end)
            for row, key in enumerate(drawn.keys)
            for start, end, _ in features.named.get(key.tobytes(), ())
        ]
        generator = dataclasses.replace(drawn, k=step).generator()
        lengths = torch.from_numpy(drawn.sentences.lengths)
        return TokenRows(drawn.sentences.input_ids, lengths, rows, phrases, generator)

    return Loader(batch, batches)


BOTH = ("pairs", "text")
SETTINGS: list[tuple[str, tuple[str, ...], float, torch.dtype, int]] = [
    # system, streams, dropout, precision, steps
    ("simcse", ("text",), 0.1, torch.float64, 30),
    *((name, BOTH, 0.1, torch.float64, 30) for name in SYSTEMS),
    *(
        (name, BOTH if "text" in loss.weights else ("pairs",), 0.1, torch.float64, 8)
        for name, (_, _, loss) in VARIANTS.items()
    ),
]
SLOW_SETTINGS = [
    *((name, BOTH, 0.0, torch.float64, 30) for name in SYSTEMS),
    *((name, ("pairs",), 0.1, torch.float64, 30) for name in SYSTEMS if name != "simcse"),
    *((name, BOTH, 0.1, torch.float32, 30) for name in SYSTEMS),
]


@pytest.mark.parametrize(
    ("name", "streams", "dropout", "dtype", "steps"),
    [*SETTINGS, *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW_SETTINGS)],
)
def test_steps_are_those_of_the_released_loop(
    features, tmp_path, monkeypatch, name, streams, dropout, dtype, steps
):
    """In either precision, without dropout or with equal masks, alone or mixed with sentences."""
    objective, parameters, loss = (SYSTEMS | VARIANTS)[name]
    case = Case(
        features, objective, {**parameters, "caption": "random"}, streams=streams, dropout=dropout
    )
    # on sentences alone SimCSE was trained by the Trainer, whose epsilon is another
    epsilon = 1e-8 if streams == ("text",) else None
    run, read = Recorder(dtype, equal_masks=dropout > 0), TrainingData.__getitem__

    def read_in_dtype(data, k):
        batch = read(data, k)
        rows = {feature: values.to(dtype) for feature, values in batch.features.items()}
        return dataclasses.replace(batch, features=rows)

    spec = case.spec(tmp_path / "run", learning_rate=RATE, max_steps=steps, epsilon=epsilon)
    with monkeypatch.context() as patch:
        patch.setattr(TrainingData, "__getitem__", read_in_dtype)
        train_run(spec, say=silent, callbacks=[run])

    model = ReleasedModel(case.student, run.start, dtype)
    seed_every_pass(model.encoder)
    pairs = dataclasses.replace(case, streams=("pairs",))
    text = dataclasses.replace(case, objective="simcse", parameters={}, streams=("text",))
    losses = released_run(
        model,
        loss,
        loader_of(pairs, PAIR_BATCHES, dtype) if "pairs" in streams else None,
        loader_of(text, TEXT_BATCHES, dtype) if "text" in streams else None,
        Released(RATE, epsilon or 1e-6),
        steps,
    )

    for one, other in zip(run.losses, losses, strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-6)  # terms are logged in float32
        assert abs(one["loss"] - other["loss"]) <= TOLERANCE[dtype]
    theirs, moved = weights_of(model), 0.0
    assert theirs.keys() == run.end_weights.keys()
    for part, weight in run.end_weights.items():
        assert float((theirs[part] - weight).abs().max()) <= TOLERANCE[dtype]
        moved = max(moved, float((weight - run.start[part]).abs().max()))
    assert moved > (5e-3 if steps == 30 else 1e-3)  # the compared weights have moved


# ---- the example -------------------------------------------------------------------------------

SOURCE = Path(__file__).parents[2] / "examples/mcse_from_cache.py"
STEPS = 20


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("mcse_from_cache", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = TrainConfig(batch_size=6, learning_rate=RATE, max_steps=STEPS, eval_steps=10)
    monkeypatch.setattr(module, "CONFIG", config)
    monkeypatch.setattr(module, "STEPS", STEPS)
    return module


def test_losses_of_the_example_are_those_of_the_trainer(features, tmp_path, example):
    spec = case_of(features, "mcse", weight=example.WEIGHT).spec(tmp_path / "run", max_steps=STEPS)
    run, world = Recorder(torch.float32), features.world
    train_run(spec, say=silent, callbacks=[run])
    data = example.Data(world.root, features.root / "image/clip", world.root / "tokens")
    model = example.MCSE(Path(spec.student.model), data.features.dim)
    assert list(model.state_dict()) == list(run.start)
    model.load_state_dict(run.start)
    losses = [loss for _, loss in example.train(model, data, STEPS)]
    assert losses == pytest.approx([entry["loss"] for entry in run.losses], abs=1e-5)
    assert {data.schedule.draw(k).stream for k in range(STEPS)} == {"pairs", "text"}


def test_the_example_trains_and_scores_what_the_demo_leaves(world, tmp_path, example, capsys):
    tables = tmp_path / "datasets/scenes"
    (tables / "similarity").mkdir(parents=True)
    for name in ("images", "captions", "sentences"):
        shutil.copy(world.root / f"{name}.parquet", tables)
    shutil.copytree(world.student, tables / "student")
    for name in ("dev", "test"):
        shutil.copy(world.root / "dev.tsv", tables / f"similarity/{name}.tsv")
    shutil.copytree(world.root / "features", tmp_path / "features/scenes/image/resnet")
    shutil.copytree(world.root / "tokens", tmp_path / "tokens/scenes-bert")
    example.main(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    best = max(float(line.split()[-1]) for line in lines if "dev" in line)
    assert lines[-1] == f"test {best:.2f}"  # the same file


def test_the_example_is_about_150_lines():
    assert len(SOURCE.read_text().splitlines()) <= 160
