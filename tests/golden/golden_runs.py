"""Twenty steps of each system in float64, from weights and features that are the same everywhere.

Dropout masks do not depend on the processor, but on the version of PyTorch: with other masks only
the runs without dropout are compared. The heads are replaced, because the normal draw of the text
head differs between processors in its last bits.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from golden_world import MAX_LENGTH, World, fill, uniform
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional
from transformers import BertModel

from train.batch import Batch
from train.data import TrainingData
from train.loop import Callback
from train.model import GroundedModel
from train.records import RunState, RunSummary
from train.run_spec import RunSpec
from train.train_run import train_run

STEPS = 20
TEACHERS = [{"encoder": "first", "weight": 0.33}, {"encoder": "second", "weight": 0.67}]
SYSTEMS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
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
class Trained:
    """What twenty steps made.

    Attributes:
        name: of the system and its dropout.
        start, end: the weights of the student and, after `heads.`, of the heads.
        drawn: the heads as the trainer drew them.
    """

    name: str
    summary: RunSummary
    start: dict[str, Tensor]
    end: dict[str, Tensor]
    drawn: dict[str, Tensor]


@dataclass
class InFloat64(Callback):
    """Continues a run in float64, with heads that do not depend on the processor."""

    drawn: dict[str, Tensor] = field(default_factory=dict)
    heads: dict[str, Tensor] = field(default_factory=dict)

    def begin(self, state: RunState, model: GroundedModel) -> None:
        self.drawn = {name: each.clone() for name, each in model.heads.state_dict().items()}
        model.to(torch.float64)
        self.heads = fill(model.heads.state_dict(), 8000)
        model.heads.load_state_dict(self.heads)


class Runs:
    """The inputs of every system, and the runs on them."""

    def __init__(self, world: World) -> None:
        self.world = world
        kinds = {"clip-image": "image", "clip-text": "text", "clip-object": "object"}
        kinds |= {"first": "teacher", "second": "teacher"}
        self.features = {
            name: self._features(name, kind, 9 if kind == "teacher" else 7, seed)
            for seed, (name, kind) in enumerate(kinds.items())
        }

    def _features(self, name: str, kind: str, dim: int, seed: int) -> Path:
        """Rows of one image share most of what they are, in every set of a width."""
        count = len(self.world.keys(kind))
        images = uniform(dim, len(self.world.data.images), dim)
        shared = np.repeat(images, count // len(images), axis=0)
        return self.world.write_features(name, kind, shared + 0.7 * uniform(seed, count, dim))

    def spec(self, system: str, dropout: bool) -> RunSpec:
        """Both streams, in batches of eight."""
        student = self.world.models / ("student" if dropout else "student without dropout")
        parameters, sets = SYSTEMS[system]
        data, sentences = self.world.data, self.world.sentences
        pairs = {"captions": data.captions_manifest, "images": data.images_manifest}
        if system == "mcseo":
            pairs["phrases"] = self.world.phrase_tokens
        train = {"batch_size": 8, "learning_rate": 1e-3, "max_steps": STEPS, "logging_steps": 1}
        name, tokens = f"{system}, dropout {'on' if dropout else 'off'}", self.world.tokens
        return RunSpec.model_validate(
            {
                "run": name,
                "student": {"name": "student", "model": str(student), "max_length": MAX_LENGTH},
                "train": train,
                "device": "cpu",
                "objective": system,
                "parameters": parameters,
                "pairs": {**pairs, "tokens": tokens},
                "text": {"sentences": sentences.sentences_manifest, "tokens": tokens},
                "features": {feature: self.features[name] for feature, name in sets.items()},
                "out": self.world.root / "runs" / name,
            }
        )

    def train(self, system: str, dropout: bool) -> Trained:
        """Train as `sightline train` does, but in float64."""
        read = TrainingData.__getitem__

        def read_in_float64(data: TrainingData, k: int) -> Batch:
            batch = read(data, k)
            rows = {feature: values.to(torch.float64) for feature, values in batch.features.items()}
            return dataclasses.replace(batch, features=rows)

        spec, precision = self.spec(system, dropout), InFloat64()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TrainingData, "__getitem__", read_in_float64)
            summary = train_run(spec, say=lambda line: None, callbacks=[precision])
        start, end = weights_of(Path(spec.student.model)), weights_of(spec.out / "model")
        heads = load_file(spec.out / "heads.safetensors")
        end |= {f"heads.{name}": tensor for name, tensor in heads.items()}
        start |= {f"heads.{name}": tensor for name, tensor in precision.heads.items()}
        return Trained(spec.run, summary, start, end, precision.drawn)


def weights_of(folder: Path) -> dict[str, Tensor]:
    """The weights of a student, by the names in its class: those in files vary."""
    options = {"dtype": torch.float64, "add_pooling_layer": False}
    return dict(BertModel.from_pretrained(folder, **options).state_dict())


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
