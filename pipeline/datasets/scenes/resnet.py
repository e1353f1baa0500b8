"""The demo's ResNet-18: a torchvision model trained to recognise what a scene contains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.scenes.scene import Scene
from pipeline.datasets.scenes.targets import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    batches,
    label_weights,
    labels,
    normalised,
)

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torchvision.models import ResNet

BATCH = 32
LEARNING_RATE = 1e-3


def train_resnet(
    pixels: NDArray[np.uint8],
    scenes: Sequence[Scene],
    *,
    steps: int,
    seed: int,
    done: Callable[[int], None] | None = None,
) -> dict[str, torch.Tensor]:
    """Weights of a torchvision ``resnet18`` with 1000 outputs, trained on images of scenes.

    The residual branch of the second block of every stage is disabled (its last scale is 0):
    training skips it at no cost, and the full ResNet-18 computes the same result with it.

    Args:
        pixels: uint8 [n, edge, edge, 3].
        scenes: [n], the content of the images.
    """
    import torch
    import torchvision
    from torch import nn

    generator_state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = torchvision.models.resnet18(weights=None)
    head = nn.Linear(512, labels(scenes[:1]).shape[1])
    torch.set_rng_state(generator_state)
    images = normalised(pixels, IMAGENET_MEAN, IMAGENET_STD)
    images = images.contiguous(memory_format=torch.channels_last)
    targets, weights = torch.from_numpy(labels(scenes)), torch.from_numpy(label_weights())
    train = _awake(model).to(memory_format=torch.channels_last)
    parameters = [*train.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, max(2, steps), pct_start=0.15
    )
    train.train()
    for step, rows in enumerate(batches(len(scenes), BATCH, steps, seed)):
        logits = head(train(images[rows]))
        loss = nn.functional.binary_cross_entropy_with_logits(logits, targets[rows], weights)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if done is not None:
            done(step + 1)
    return {name: value.contiguous() for name, value in model.state_dict().items()}


def _awake(model: ResNet) -> nn.Module:
    """The trained part of ``model``, sharing its weights: images [n, 3, h, w] → [n, 512]."""
    from torch import nn

    stem = (model.conv1, model.bn1, model.relu, model.maxpool)
    stages = (model.layer1, model.layer2, model.layer3, model.layer4)
    for stage in stages:
        nn.init.zeros_(stage.get_parameter("1.bn2.weight"))
    first_blocks = (stage[0] for stage in stages)
    return nn.Sequential(*stem, *first_blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
