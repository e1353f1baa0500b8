"""DALR's consistency: a text agrees with its own image and not with one from another row."""

from __future__ import annotations

import torch
from torch import Tensor

from train.losses.arithmetic import full_precision, unit_rows, without_autocast
from train.losses.checks import LossError, check_number, check_rows, check_same_shape


def consistency_loss(
    text: Tensor, image: Tensor, mismatched_image: Tensor, margin: float = 0.2
) -> Tensor:
    """DALR eq. 5, a cosine-embedding loss over N matched and N mismatched pairs.

        1/(2N) Σ_i [ 1 − cos(s_i, v_i) + max(0, cos(s_i, v'_i) − margin) ]

    The mean is over all 2N pairs. `derangement` makes the mismatched rows from the matched ones.

    Args:
        text: s, [N, d], any floating dtype and any norm.
        image: v, [N, d]: row i is text i's own.
        mismatched_image: v', [N, d]: row i is not text i's own.
        margin: The cosine that a mismatched pair may have without a penalty, −1 to 1.

    Returns:
        A scalar of at least 0: float64 if an input is, else float32.

    Raises:
        LossError: the shapes differ, a batch is empty, or the margin is outside [−1, 1].
    """
    loss = "consistency_loss"
    check_number(loss, "margin", margin, low=-1.0, high=1.0)
    check_rows(loss, text=text, image=image, mismatched_image=mismatched_image)
    check_same_shape(loss, text=text, image=image, mismatched_image=mismatched_image)
    with without_autocast(text):
        text, image, mismatched_image = map(
            unit_rows, full_precision(text, image, mismatched_image)
        )
        # 1 − cos of unit rows is ½‖u − v‖², which stays exact and nonnegative as it approaches 0.
        matched = (text - image).square().sum(dim=1) / 2  # (N,)
        mismatched = ((text * mismatched_image).sum(dim=1) - margin).clamp_min(0.0)  # (N,)
        return torch.cat([matched, mismatched]).mean()


def derangement(rows: int, generator: torch.Generator) -> Tensor:
    """A random order in which no row keeps its place, for the mismatched images of DALR eq. 5.

    Every derangement is equally likely. A plain permutation leaves one row in place on average,
    and would treat that text's own image as a mismatch.

    Args:
        rows: N, at least 2.
        generator: The source of randomness; its state determines the result.

    Returns:
        [N] int64 on the generator's device: index the images with it.

    Raises:
        LossError: fewer than 2 rows, where no such order exists.
    """
    if rows < 2:
        raise LossError(
            f"derangement: {rows} row(s) cannot all change places; "
            "omit the consistency term for a batch of one row"
        )
    places = torch.arange(rows, device=generator.device)
    while True:  # a permutation is a derangement with probability 1/e, at least 1/3
        order = torch.randperm(rows, generator=generator, device=generator.device)
        if not bool((order == places).any()):
            return order
