"""What a loss refuses: meaningless temperatures, margins and shapes, with one message each.

Only numbers and shapes are checked, never the values inside a tensor: reading those would make
every training step wait for the accelerator.
"""

from __future__ import annotations

import math

from torch import Tensor

from sightline.errors import SightlineError


class LossError(SightlineError, ValueError):
    """A loss was called with a meaningless argument; the message names it."""


def check_temperature(loss: str, name: str, value: float) -> None:
    """Raise unless `value` can divide a similarity: finite and above 0."""
    if not math.isfinite(value) or value <= 0:
        raise LossError(f"{loss}: {name} is {value}; give a finite number above 0, such as 0.05")


def check_number(
    loss: str, name: str, value: float, low: float = -math.inf, high: float = math.inf
) -> None:
    """Raise unless `value` is finite and `low` ≤ `value` ≤ `high`."""
    if not math.isfinite(value):
        raise LossError(f"{loss}: {name} is {value}; give a finite number")
    if not low <= value <= high:
        raise LossError(f"{loss}: {name} is {value}; give a number from {low:g} to {high:g}")


def check_rows(loss: str, **tensors: Tensor) -> None:
    """Raise unless all are matrices with the same number of rows, and none is empty."""
    for name, tensor in tensors.items():
        if tensor.ndim != 2:
            raise LossError(f"{loss}: {name} has shape {_shape(tensor)}; give [rows, columns]")
    if len({len(tensor) for tensor in tensors.values()}) > 1:
        raise LossError(
            f"{loss}: the numbers of rows differ ({_shapes(tensors)}); "
            "row i of each must belong to row i of the others"
        )
    for name, tensor in tensors.items():
        if tensor.numel() == 0:
            raise LossError(
                f"{loss}: {name} has shape {_shape(tensor)}; a mean over no rows has no value; "
                "skip empty batches"
            )


def check_same_shape(loss: str, **tensors: Tensor) -> None:
    """Raise unless all tensors have the same shape."""
    if len({tensor.shape for tensor in tensors.values()}) > 1:
        raise LossError(f"{loss}: the shapes differ ({_shapes(tensors)}); expected one shape")


def check_square(loss: str, name: str, scores: Tensor, rows: int) -> None:
    """Raise unless `scores` is [rows, rows]."""
    if scores.shape != (rows, rows):
        raise LossError(
            f"{loss}: {name} has shape {_shape(scores)}; give [{rows}, {rows}], "
            "one number for each query (row) and key (column) of the batch"
        )


def _shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))


def _shapes(tensors: dict[str, Tensor]) -> str:
    return ", ".join(f"{name} {_shape(tensor)}" for name, tensor in tensors.items())
