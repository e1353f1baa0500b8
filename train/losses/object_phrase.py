"""MCSEO's object term: a phrase finds its own object among those of the same picture."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from train.losses.arithmetic import cosines, diagonal_nll, full_precision, without_autocast
from train.losses.checks import LossError, check_same_shape, check_temperature

_LOSS = "object_phrase_nce"


def object_phrase_nce(
    phrases: Tensor, objects: Tensor, owners: Tensor, temperature: float = 0.05
) -> Tensor:
    """MCSEO eq. 7: contrast of phrases with objects inside each caption.

        mean over captions of Σ_k −log( exp(cos(p_k, o_k)/τ) / Σ_j exp(cos(p_k, o_j)/τ) )

    k and j run over one caption's pairs; objects of other captions do not count. Captions with
    fewer than 2 pairs are left out, of the mean as well; when none is left the value is exactly
    0, and still has a graph.

    All pairs of the batch are compared in one P×P matrix and those across captions masked: no
    loop over captions, no scatter with a nondeterministic order of addition, nothing read back
    from the accelerator. P is about 4 per caption.

    Args:
        phrases: p, [P, d], any floating dtype and any norm.
        objects: o, [P, d]: row k is phrase k's own.
        owners: [P], integers: the row of the caption that pair k belongs to, in any order.
        temperature: τ, above 0.

    Returns:
        A scalar of at least 0: float64 if an input is, else float32. P may be 0.

    Raises:
        LossError: mismatched shapes, owners that are not integers, or τ not above 0.
    """
    check_temperature(_LOSS, "temperature", temperature)
    _check_pairs(phrases, objects, owners)
    with without_autocast(phrases):
        phrases, objects = full_precision(phrases, objects)
        if len(phrases) == 0:
            return phrases.sum() + objects.sum()  # 0, with a graph
        same_caption = owners.unsqueeze(1) == owners.unsqueeze(0)  # (P, P)
        logits = cosines(phrases, objects) / temperature  # (P, P)
        per_pair = diagonal_nll(logits.masked_fill(~same_caption, -math.inf))
        # A single pair has no negatives, so its loss is already 0: only the mean must exclude it.
        first_of_caption = ~same_caption.tril(diagonal=-1).any(dim=1)  # (P,)
        captions = (first_of_caption & (same_caption.sum(dim=1) >= 2)).sum()
        return per_pair.sum() / captions.clamp_min(1)


def _check_pairs(phrases: Tensor, objects: Tensor, owners: Tensor) -> None:
    if phrases.ndim != 2:
        raise LossError(f"{_LOSS}: phrases has shape {list(phrases.shape)}; give [pairs, columns]")
    check_same_shape(_LOSS, phrases=phrases, objects=objects)
    if owners.shape != phrases.shape[:1]:
        raise LossError(
            f"{_LOSS}: owners has shape {list(owners.shape)} for {len(phrases)} pairs; "
            f"give [{len(phrases)}], the row of each pair's caption"
        )
    if owners.is_floating_point() or owners.is_complex() or owners.dtype == torch.bool:
        raise LossError(f"{_LOSS}: owners is {owners.dtype}; give integers, such as torch.int64")
