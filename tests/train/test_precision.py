"""The encoder in bf16."""

from __future__ import annotations

from pathlib import Path

import torch
from conftest import World

from train.data import TrainingData
from train.model import GroundedModel, load_student
from train.objectives import make_objective


def test_bf16_rounds_the_weights_once_and_trains_the_float32_ones(world: World) -> None:
    spec = world.spec(Path("unused"), "mcse")
    objective = make_objective("mcse", spec.parameters)
    data = TrainingData(spec, objective)
    encoder, _ = load_student(spec.student)
    model = GroundedModel(encoder, objective, "cls", data.dims).eval()
    batch = data[0]
    exact, _ = model.encode(batch.sentences)
    model.precision = "bf16"
    rounded, _ = model.encode(batch.sentences)
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded, rounded.bfloat16().float())
    assert not torch.equal(rounded, exact)
    cosine = torch.nn.functional.cosine_similarity(rounded, exact, dim=-1)
    assert cosine.min() > 0.999
    model(batch)["total"].backward()
    gradients = [p.grad for p in encoder.parameters()]
    assert all(each is not None and each.dtype == torch.float32 for each in gradients)
    assert all(p.dtype == torch.float32 for p in encoder.parameters())
