"""Images and labels of scenes as tensors, for training the demo's frozen encoders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.scenes.scene import Scene
from pipeline.datasets.scenes.vocabulary import ATTRIBUTES

if TYPE_CHECKING:
    import torch

SHAPE_WEIGHT = 4.0
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def normalised(
    pixels: NDArray[np.uint8], mean: Sequence[float], std: Sequence[float]
) -> torch.Tensor:
    """float32 [n, 3, h, w] of uint8 [n, h, w, 3]: scaled to 0–1, then normalised."""
    import torch

    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(255)
    return images.sub_(torch.tensor(mean)[:, None, None]).div_(torch.tensor(std)[:, None, None])


def labels(scenes: Sequence[Scene]) -> NDArray[np.float32]:
    """Content of each scene: float32 [n, values], 1 for every attribute value in it."""
    columns = _columns()
    table = np.zeros((len(scenes), len(columns)), dtype=np.float32)
    for row, scene in enumerate(scenes):
        for placed in scene.things:
            for item in placed.thing._asdict().items():
                table[row, columns[item]] = 1
    return table


def label_weights() -> NDArray[np.float32]:
    """Weight of each column of `labels` in the loss: float32 [values].

    Colours are learned in a few steps and then dominate, so shapes get a higher weight.
    """
    return np.array([SHAPE_WEIGHT if a == "shape" else 1.0 for a, _ in _columns()], np.float32)


def _columns() -> dict[tuple[str, str], int]:
    names = [(attribute, v.name) for attribute, values in ATTRIBUTES.items() for v in values]
    return {name: column for column, name in enumerate(names)}


def batches(count: int, size: int, steps: int, seed: int) -> Iterator[torch.Tensor]:
    """``steps`` batches of distinct rows, int64 [≤ size], reshuffled on every pass."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    done = 0
    while done < steps:
        for batch in torch.randperm(count, generator=generator).split(size):
            if done == steps:
                return
            if len(batch) > 1 or count == 1:  # one row has no negatives and no variance
                yield batch
                done += 1
