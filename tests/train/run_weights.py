"""The encoder's weights of a finished run, and when those of two runs count as the same."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor


def weights_of(run: Path) -> dict[str, Tensor]:
    return load_file(run / "model/model.safetensors")


def assert_alike(one: dict[str, Tensor], other: dict[str, Tensor], bound: float) -> None:
    """Within rounding, after a few steps with a learning rate of 1e-3.

    Adam divides by the size of a gradient, so a difference in rounding can be a whole step of 1e-3
    where the gradient is almost 0: a few weights may differ by more than the bound.
    """
    differences = torch.cat([(one[name] - other[name]).abs().ravel() for name in one])
    assert differences.mean() < bound / 10
    assert torch.quantile(differences, 0.99) < bound
