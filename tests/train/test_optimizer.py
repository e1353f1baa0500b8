"""AdamW as in transformers 4 on torch 1.7, and the learning rate of a step."""

from __future__ import annotations

import io
import math
from typing import Literal

import pytest
import torch
from released_loops import Released, TransformersAdamW
from torch import Tensor, nn
from transformers import get_linear_schedule_with_warmup

from train.optimizer import learning_rate, make_optimizer
from train.run_spec import TrainConfig

STEPS = 30


class Model(nn.Module):
    """An encoder, a head that two batches in three do not reach, and one that comes late."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(5, 4, dtype=torch.float64)
        self.norm = nn.LayerNorm(4, dtype=torch.float64)
        self.head = nn.Linear(4, 3, dtype=torch.float64)
        self.late = nn.Linear(4, 2, dtype=torch.float64)


def gradients_of(step: int) -> dict[str, Tensor]:
    """What the batch of a step gives: parameters that it does not reach are left out."""
    torch.manual_seed(step)
    found = {name: torch.randn_like(p) for name, p in Model().named_parameters()}
    reached = {"head": step % 3 == 0, "late": step in (4, 11)}
    return {name: g for name, g in found.items() if reached.get(name.split(".")[0], True)}


def steps_of(model: nn.Module, optimizer: torch.optim.Optimizer, config: TrainConfig) -> None:
    """Train as the loop does, and resume from a saved state in the middle."""
    for step in range(STEPS):
        if step == 17:  # as a run that resumes: another optimiser, and no gradients
            stored = io.BytesIO()
            torch.save(optimizer.state_dict(), stored)
            stored.seek(0)
            for parameter in model.parameters():
                parameter.grad = None
            optimizer = make_optimizer(model, config)
            optimizer.load_state_dict(torch.load(stored, weights_only=True))
        optimizer.zero_grad()
        for name, gradient in gradients_of(step).items():
            parameter = model.get_parameter(name)
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step, STEPS)
        optimizer.step()


def released(model: nn.Module, config: TrainConfig, epsilon: float) -> None:
    """The same steps as transformers 4 on torch 1.7 made them."""
    optimizer = TransformersAdamW(list(model.parameters()), Released(1.0, epsilon))
    for step in range(STEPS):
        optimizer.zero_grad()
        for name, gradient in gradients_of(step).items():
            model.get_parameter(name).grad = gradient
        optimizer.step(learning_rate(config, step, STEPS))


def two_models() -> tuple[Model, Model]:
    torch.manual_seed(0)
    one, other = Model(), Model()
    other.load_state_dict(one.state_dict())
    return one, other


@pytest.mark.parametrize("epsilon", [None, 1e-8, 1e-3])
def test_thirty_steps_are_those_of_the_released_optimiser(epsilon: float | None) -> None:
    config = TrainConfig(epsilon=epsilon, learning_rate=1e-2, max_steps=STEPS)
    model, expected = two_models()
    released(expected, config, epsilon or 1e-6)
    steps_of(model, make_optimizer(model, config), config)
    for name, parameter in expected.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), parameter, rtol=0, atol=1e-12)


def test_torch_is_pytorchs_adamw_and_differs_from_released() -> None:
    config = TrainConfig(optimizer="torch", learning_rate=1e-2, max_steps=STEPS)
    model, plain = two_models()
    _, other = two_models()
    released(other, config, 1e-6)
    steps_of(model, make_optimizer(model, config), config)
    optimizer = torch.optim.AdamW(plain.parameters(), weight_decay=0.0)
    for step in range(STEPS):
        found = gradients_of(step)
        for name, parameter in plain.named_parameters():
            parameter.grad = found.get(name)
        optimizer.param_groups[0]["lr"] = learning_rate(config, step, STEPS)
        optimizer.step()
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), parameter, rtol=0, atol=1e-12)
    assert float((plain.head.weight - other.head.weight).detach().abs().max()) > 1e-3


@pytest.mark.parametrize(("optimizer", "expected"), [("released", math.sqrt(33)), ("torch", 1.0)])
def test_how_far_a_head_moves_with_one_paired_batch_in_33(
    optimizer: Literal["released", "torch"], expected: float
) -> None:
    config = TrainConfig(optimizer=optimizer, learning_rate=1e-3, max_steps=1)
    head = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    chosen = make_optimizer(head, config)
    travelled = 0.0
    for step in range(33 * 200):
        chosen.zero_grad()
        if step % 33 == 0:
            one = torch.ones_like(head.weight)
            head.weight.grad = one if head.weight.grad is None else head.weight.grad + one
        before = float(head.weight.detach())
        chosen.step()
        if step >= 33 * 100:  # once the second moment is steady
            travelled += abs(float(head.weight.detach()) - before)
    assert travelled / 100 / 1e-3 == pytest.approx(expected, rel=0.01)


def test_weight_decay_is_only_for_matrices() -> None:
    config = TrainConfig(weight_decay=0.1, max_steps=1)
    model = Model()
    names = {parameter: name for name, parameter in model.named_parameters()}
    decays = {
        names[parameter]: group["weight_decay"]
        for group in make_optimizer(model, config).param_groups
        for parameter in group["params"]
    }
    assert {name for name, decay in decays.items() if decay} == {
        *("encoder.weight", "head.weight", "late.weight")
    }
    assert len(decays) == len(names)


@pytest.mark.parametrize("warmup", [0.0, 0.13, 0.5])
def test_the_learning_rate_is_that_of_transformers(warmup: float) -> None:
    config = TrainConfig(learning_rate=3e-5, warmup=warmup, max_steps=STEPS)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=3e-5)
    schedule = get_linear_schedule_with_warmup(optimizer, math.ceil(warmup * STEPS), STEPS)
    for step in range(STEPS):
        assert learning_rate(config, step, STEPS) == schedule.get_last_lr()[0]
        optimizer.step()
        schedule.step()
