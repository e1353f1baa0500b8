"""What a loss refuses: temperatures, margins and shapes that have no meaning, each with one message.

Only numbers and shapes are looked at, never the values inside a tensor: reading those would make
every training step wait for the accelerator.
"""

import math

from torch import Tensor

from pipeline.cache.errors import SightlineError


class LossError(SightlineError, ValueError):
    """A loss was asked for something that has no meaning; the message names the argument."""


def check_temperature(loss: str, name: str, value: float) -> None:
    """Raise unless `value` can divide a similarity: finite and above 0."""
    if not math.isfinite(value) or value <= 0:
        raise LossError(
            f"{loss}: {name} is {value}, expected a finite number above 0 (the papers use 0.05)"
        )


def check_number(loss: str, name: str, value: float, low: float, high: float = math.inf) -> None:
    """Raise unless `value` is finite and `low` ≤ `value` ≤ `high`."""
    if not math.isfinite(value) or not low <= value <= high:
        wanted = f"between {low:g} and {high:g}" if math.isfinite(high) else f"of at least {low:g}"
        raise LossError(f"{loss}: {name} is {value}, expected a finite number {wanted}")


def check_matrices(loss: str, **tensors: Tensor) -> None:
    """Raise unless every tensor is a matrix and all have one shape."""
    for name, tensor in tensors.items():
        if tensor.ndim != 2:
            raise LossError(f"{loss}: {name} has shape {_shape(tensor)}, expected [rows, columns]")
    if len({tensor.shape for tensor in tensors.values()}) > 1:
        found = ", ".join(f"{name} {_shape(tensor)}" for name, tensor in tensors.items())
        raise LossError(f"{loss}: shapes differ: {found}; row i of each must belong to row i")


def check_rows(loss: str, **tensors: Tensor) -> None:
    """Raise unless every tensor is a matrix and all have one, non-zero, number of rows."""
    for name, tensor in tensors.items():
        if tensor.ndim != 2:
            raise LossError(f"{loss}: {name} has shape {_shape(tensor)}, expected [rows, columns]")
    if len({len(tensor) for tensor in tensors.values()}) > 1:
        found = ", ".join(f"{name} {_shape(tensor)}" for name, tensor in tensors.items())
        raise LossError(f"{loss}: numbers of rows differ: {found}; row i of each is one pair")
    for name, tensor in tensors.items():
        if tensor.numel() == 0:
            raise LossError(
                f"{loss}: {name} has shape {_shape(tensor)}; a loss needs at least one row and "
                "one column, so leave empty batches out"
            )


def check_square(loss: str, name: str, scores: Tensor, rows: int) -> None:
    """Raise unless `scores` is [rows, rows]."""
    if scores.shape != (rows, rows):
        raise LossError(
            f"{loss}: {name} has shape {_shape(scores)}, expected [{rows}, {rows}]: "
            "one number for each query and key of the batch"
        )


def _shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))
