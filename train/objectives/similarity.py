"""Similarity matrices that objectives hand to losses, in full precision under autocast too."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def cosine_matrix(left: Tensor, right: Tensor) -> Tensor:
    """cos(left_i, right_j): [N, d] and [M, d] → [N, M], at least float32."""
    from train.losses.arithmetic import cosines, full_precision, without_autocast

    with without_autocast(left):
        return cosines(*full_precision(left, right))


def product_matrix(left: Tensor, right: Tensor) -> Tensor:
    """left_i · right_j, not normalised: [N, d] and [M, d] → [N, M], at least float32."""
    from train.losses.arithmetic import full_precision, without_autocast

    with without_autocast(left):
        left, right = full_precision(left, right)
        return left @ right.mT
