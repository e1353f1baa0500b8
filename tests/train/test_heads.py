"""Initial weights of heads, and the defaults of training: METHODS, sections 5 and 6."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from train.objectives import make_objective
from train.objectives.objective import head, text_head
from train.run_spec import StudentConfig, TrainConfig


def linear(module: nn.Module) -> nn.Linear:
    (found,) = (each for each in module.modules() if isinstance(each, nn.Linear))
    return found


def test_the_text_head_is_initialised_like_berts_layers() -> None:
    torch.manual_seed(0)
    layer = linear(text_head(768))
    assert float(layer.weight.detach().std()) == pytest.approx(0.02, rel=0.01)
    assert float(layer.weight.detach().abs().max()) > 0.06  # normal, not uniform
    assert not layer.bias.any()


def test_other_heads_are_initialised_like_torchs_linear_layers() -> None:
    torch.manual_seed(0)
    layer = linear(head(512))
    bound = 1 / math.sqrt(512)
    for values in (layer.weight.detach(), layer.bias.detach()):
        assert float(values.abs().max()) <= bound
        assert float(values.std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)
    assert layer.weight.shape == (256, 512)


@pytest.mark.parametrize("name", ["simcse", "mcse", "kdmcse", "dalr", "mcseo"])
def test_the_initialisation_of_each_head_of_an_objective(name: str) -> None:
    torch.manual_seed(0)
    parameters = {
        **{"simcse": {}, "mcse": {"image": "clip"}, "mcseo": {"image": "clip"}},
        "kdmcse": {"image": "clip", "text": "clip"},
        "dalr": {"image": "clip", "teachers": [{"encoder": "t", "weight": 1}]},
    }[name]
    objective = make_objective(name, parameters)
    heads = objective.heads(768, {need.name: 512 for need in objective.features})
    for part, module in heads.items():
        layer = linear(module)
        spread = float(layer.weight.detach().std())
        default = 1 / math.sqrt(3 * layer.in_features)
        expected = 0.02 if part == "text" else default
        assert spread == pytest.approx(expected, rel=0.05), part
        assert bool(layer.bias.any()) == (part != "text"), part


def test_the_defaults_are_those_of_the_published_bert_runs() -> None:
    found = TrainConfig(max_steps=1).model_dump()
    assert found["batch_size"] == 64
    assert found["learning_rate"] == 3e-5
    assert found["eval_steps"] == 125
    assert found["max_grad_norm"] == 1.0
    assert (found["weight_decay"], found["warmup"]) == (0.0, 0.0)
    assert (found["optimizer"], found["epsilon"]) == ("released", None)
    assert (found["precision"], found["gradient_accumulation"]) == ("fp32", 1)
    assert found["early_stopping_patience"] is None
    assert StudentConfig(name="bert", model="bert").max_length == 32
