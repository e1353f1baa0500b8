"""The weights, losses and settings of every system after twenty steps of the trainer."""

from __future__ import annotations

import pytest
import torch
from golden_runs import STEPS, SYSTEMS, Runs, Trained, dropout_masks, numbers_of
from golden_world import World
from pinned import pinned
from torch import Tensor

FILE = "weights.json"
TOLERANCE = {"rel": 1e-9, "abs": 1e-9}
DRAWN = {"rel": 1e-6, "abs": 1e-6}  # normal draws differ between processors in their last bits


@pytest.fixture(scope="module")
def runs(world: World) -> Runs:
    return Runs(world)


@pytest.fixture(scope="module", params=SYSTEMS)
def system(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=["without dropout", "with dropout"])
def trained(runs: Runs, system: str, request: pytest.FixtureRequest) -> Trained:
    dropout = request.param == "with dropout"
    if dropout and dropout_masks() != pinned(FILE, "dropout masks", dropout_masks()):
        pytest.skip("this version of PyTorch draws other dropout masks than the pinned ones")
    return runs.train(system, dropout)


def test_the_losses_are_as_pinned(trained: Trained) -> None:
    losses = [float(f"{entry['loss']:.13g}") for entry in trained.summary.log]
    assert len(losses) == STEPS
    assert losses == pytest.approx(pinned(FILE, f"{trained.name}: losses", losses), **TOLERANCE)


def test_every_weight_is_as_pinned(trained: Trained) -> None:
    assert {tensor.dtype for tensor in trained.end.values()} == {torch.float64}
    check(trained.end, f"{trained.name}: weights", TOLERANCE)


def test_the_heads_are_drawn_as_pinned(trained: Trained, system: str) -> None:
    check(trained.drawn, f"{system}: drawn heads", DRAWN)


def check(weights: dict[str, Tensor], name: str, tolerance: dict[str, float]) -> None:
    numbers = {part: numbers_of(tensor) for part, tensor in weights.items()}
    expected = pinned(FILE, name, numbers)
    assert numbers.keys() == expected.keys()
    for part, values in expected.items():
        assert numbers[part] == pytest.approx(values, **tolerance), part


def test_the_steps_move_encoder_and_heads(trained: Trained) -> None:
    moved = {
        name: float((weight - trained.start[name]).abs().max())
        for name, weight in trained.end.items()
    }
    for part in ("encoder.layer.0", "encoder.layer.1", "embeddings", "heads"):
        assert max(distance for name, distance in moved.items() if name.startswith(part)) > 1e-3


@pytest.mark.parametrize("part", ["parameters", "train"])
def test_defaults_are_as_pinned(trained: Trained, system: str, part: str) -> None:
    """A new setting is no change: what it does by default is in the weights."""
    settings = getattr(trained.summary, part)
    expected = pinned(FILE, f"{system}: {part}", settings)
    assert settings | expected == settings
