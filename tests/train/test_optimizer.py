"""The optimisers and the learning rate of a step.

The released optimiser is compared with that of transformers 4 in test_released_loops.py.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from transformers import get_linear_schedule_with_warmup

from train.optimizer import learning_rate, make_optimizer
from train.run_spec import TrainConfig

STEPS = 30


def test_torch_is_pytorchs_adamw():
    config = TrainConfig(optimizer="torch", learning_rate=1e-2, max_steps=STEPS)
    torch.manual_seed(0)
    model, expected = (nn.Linear(5, 4, dtype=torch.float64) for _ in range(2))
    expected.load_state_dict(model.state_dict())
    ours = make_optimizer(model, config)
    theirs = torch.optim.AdamW(expected.parameters(), lr=1e-2, weight_decay=0.0)
    for _ in range(STEPS):
        inputs = torch.randn(3, 5, dtype=torch.float64)
        for module, optimizer in ((model, ours), (expected, theirs)):
            optimizer.zero_grad()
            module(inputs).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("optimizer", "expected"), [("released", math.sqrt(33)), ("torch", 1.0)])
def test_how_far_a_head_moves_with_one_paired_batch_in_33(optimizer, expected):
    config = TrainConfig(optimizer=optimizer, learning_rate=1e-3, max_steps=1)
    head = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    chosen = make_optimizer(head, config)
    travelled = 0.0
    for step in range(33 * 110):
        chosen.zero_grad()
        if step % 33 == 0:
            head.weight.grad = torch.ones_like(head.weight)
        before = float(head.weight.detach())
        chosen.step()
        if step >= 33 * 100:  # once the second moment is steady
            travelled += abs(float(head.weight.detach()) - before)
    assert travelled / 10 / 1e-3 == pytest.approx(expected, rel=0.01)


def test_weight_decay_is_only_for_matrices():
    model = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    optimizer = make_optimizer(model, TrainConfig(weight_decay=0.1, max_steps=1))
    decays = {p: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        assert decays[parameter] == (0.1 if name in ("0.weight", "2.weight") else 0.0), name


@pytest.mark.parametrize("warmup", [0.0, 0.13])
def test_the_learning_rate_is_that_of_transformers(warmup):
    config = TrainConfig(learning_rate=3e-5, warmup=warmup, max_steps=STEPS)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=3e-5)
    schedule = get_linear_schedule_with_warmup(optimizer, math.ceil(warmup * STEPS), STEPS)
    for step in range(STEPS):
        assert learning_rate(config, step, STEPS) == schedule.get_last_lr()[0]
        optimizer.step()
        schedule.step()
