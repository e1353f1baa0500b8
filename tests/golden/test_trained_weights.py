"""Twenty steps of each system in float64, from weights and features that are the same everywhere.

Dropout masks do not depend on the processor, but on the version of PyTorch: with other masks only
the runs without dropout are compared. The heads are replaced, because the normal draw of the text
head differs between processors in its last bits.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from golden_world import MAX_LENGTH, fill, pinned, uniform
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional
from transformers import BertModel

from train.data import TrainingData
from train.loop import Callback
from train.run_spec import RunSpec
from train.train_run import train_run

FILE = "weights.json"
TOLERANCE = {"rel": 1e-9, "abs": 1e-9}
DRAWN = {"rel": 1e-6, "abs": 1e-6}  # normal draws differ between processors in their last bits
STEPS = 20
TEACHERS = [{"encoder": "first", "weight": 0.33}, {"encoder": "second", "weight": 0.67}]
SYSTEMS = {
    "simcse": ({}, {}),
    "mcse": ({"image": "clip", "weight": 0.5}, {"image-clip": "clip-image"}),
    "kdmcse": (
        {
            **{"image": "clip", "text": "clip", "weight": 0.5, "text_margin": 0.1},
            **{"image_threshold": 0.3, "teacher_text_threshold": 0.5},
        },
        {"image-clip": "clip-image", "text-clip": "clip-text"},
    ),
    "dalr": (
        {"image": "clip", "teachers": TEACHERS, "consistency_margin": -0.5},
        {"image-clip": "clip-image", "teacher-first": "first", "teacher-second": "second"},
    ),
    "mcseo": (
        {"image": "clip", "image_weight": 0.5, "object_weight": 0.5},
        {"image-clip": "clip-image", "object-clip": "clip-object"},
    ),
}
"""Objective → parameters in which every term counts, and the feature sets that it reads."""


@dataclass
class InFloat64(Callback):
    """Continues a run in float64, with heads that do not depend on the processor."""

    drawn: dict[str, Tensor] = field(default_factory=dict)

    def begin(self, state, model):
        self.drawn = {
            name: each.clone() for name, each in model.objective.heads.state_dict().items()
        }
        model.to(torch.float64)
        model.objective.heads.load_state_dict(fill(model.objective.heads.state_dict(), 8000))


@pytest.fixture(scope="module", params=SYSTEMS)
def system(request):
    return request.param


@pytest.fixture(scope="module", params=["without dropout", "with dropout"])
def trained(world, features, system, request):
    """What twenty steps made, trained as `sightline train` does, but in float64."""
    dropout = request.param == "with dropout"
    if dropout and dropout_masks() != pinned(FILE, "dropout masks", dropout_masks()):
        pytest.skip("this version of PyTorch draws other dropout masks than the pinned ones")
    spec, precision = spec_of(world, features, system, dropout), InFloat64()
    read = TrainingData.__getitem__

    def read_in_float64(data, k):
        batch = read(data, k)
        rows = {feature: values.to(torch.float64) for feature, values in batch.features.items()}
        return dataclasses.replace(batch, features=rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingData, "__getitem__", read_in_float64)
        summary = train_run(spec, say=lambda line: None, callbacks=[precision])
    # by the names in its class: those in files vary
    options = {"dtype": torch.float64, "add_pooling_layer": False}
    weights = dict(BertModel.from_pretrained(spec.out / "model", **options).state_dict())
    heads = load_file(spec.out / "heads.safetensors")
    weights |= {f"heads.{name}": tensor for name, tensor in heads.items()}
    return SimpleNamespace(name=spec.run, summary=summary, weights=weights, drawn=precision.drawn)


def spec_of(world, features, system, dropout):
    """Both streams, in batches of eight."""
    student = world.models / ("student" if dropout else "student without dropout")
    parameters, sets = SYSTEMS[system]
    name = f"{system}, dropout {'on' if dropout else 'off'}"
    return RunSpec.model_validate(
        {
            "run": name,
            "student": {"name": "student", "model": str(student), "max_length": MAX_LENGTH},
            "train": {
                **{"batch_size": 8, "learning_rate": 1e-3},
                **{"max_steps": STEPS, "logging_steps": 1},
            },
            "device": "cpu",
            "objective": system,
            "parameters": parameters,
            "pairs": world.data.folder,
            "sentences": world.sentences.folder,
            "tokens": world.tokens,
            "phrases": world.phrase_tokens if system == "mcseo" else None,
            "features": {feature: features[name] for feature, name in sets.items()},
            "out": world.root / "runs" / name,
        }
    )


def dropout_masks() -> str:
    """Names the masks that this version of PyTorch draws."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        masks = functional.dropout(torch.ones(1000, dtype=torch.float64), 0.1) > 0
        rows = torch.eye(16, dtype=torch.float64)[None, None]
        attended = functional.scaled_dot_product_attention(rows, rows, rows, dropout_p=0.1) > 0
    return hashlib.sha256(masks.numpy().tobytes() + attended.numpy().tobytes()).hexdigest()


def numbers_of(tensor: Tensor) -> list[float]:
    """A tensor's norm, and its projections on three directions, to thirteen digits."""
    values = tensor.detach().double().flatten().numpy()
    directions = [uniform(seed, len(values)) for seed in range(3)]
    projections = [float(values @ each) / float(np.linalg.norm(each)) for each in directions]
    norm = float(np.linalg.norm(values))
    return [float(f"{number:.13g}") for number in (norm, *projections)]


def test_the_losses_are_as_pinned(trained):
    losses = [float(f"{entry['loss']:.13g}") for entry in trained.summary.log]
    assert len(losses) == STEPS
    assert losses == pytest.approx(pinned(FILE, f"{trained.name}: losses", losses), **TOLERANCE)


def test_every_weight_is_as_pinned(trained):
    assert {tensor.dtype for tensor in trained.weights.values()} == {torch.float64}
    check(trained.weights, f"{trained.name}: weights", TOLERANCE)


def test_the_heads_are_drawn_as_pinned(trained, system):
    check(trained.drawn, f"{system}: drawn heads", DRAWN)


def check(weights, name, tolerance):
    numbers = {part: numbers_of(tensor) for part, tensor in weights.items()}
    expected = pinned(FILE, name, numbers)
    assert numbers.keys() == expected.keys()
    for part, values in expected.items():
        assert numbers[part] == pytest.approx(values, **tolerance), part


@pytest.mark.parametrize("part", ["parameters", "train"])
def test_defaults_are_as_pinned(trained, system, part):
    """A new setting is no change: what it does by default is in the weights."""
    settings = getattr(trained.summary, part)
    expected = pinned(FILE, f"{system}: {part}", settings)
    assert settings | expected == settings
