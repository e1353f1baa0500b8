"""AdapACSE: KDMCSE's contrast: negatives moved nearer by an angle and filtered by a teacher."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from train.losses.arithmetic import (
    cosines,
    diagonal,
    diagonal_nll,
    full_precision,
    without_autocast,
)
from train.losses.checks import (
    LossError,
    check_number,
    check_rows,
    check_same_shape,
    check_square,
    check_temperature,
)

_LOSS = "adaptive_margin_nce"


def adaptive_margin_nce(
    queries: Tensor,
    keys: Tensor,
    soft_labels: Tensor,
    margin: float = 0.125,
    temperature: float = 0.05,
    threshold: float | None = None,
    *,
    filter_scores: Tensor | None = None,
    margin_gate: bool = False,
) -> Tensor:
    """KDMCSE eq. 13: in-batch contrast with an angular margin that shrinks for likely matches.

        mean_i −log( e^{cos θ_ii/τ} / ( e^{cos θ_ii/τ} + Σ_{j≠i} φ_ij e^{cos(θ_ij − m Δ_ij)/τ} ) )
        θ_ij = the angle between q_i and k_j,   Δ_ij = |1 − α_ij|,   φ_ij = 0 if α_ij ≥ threshold

    θ − mΔ is clamped at 0. The positive has no margin and is never removed. With margin 0
    and no threshold this is `info_nce`. Eq. 8 prints the two cases of φ the wrong way round; its
    text and the released code agree with the formula above. The authors' code and paper differ;
    for the released arithmetic call with

    - `margin=0.15, margin_gate=True`: only negatives with θ_ij > m are moved (the loss jumps at
      θ_ij = m, where it has no gradient);
    - the image term: `soft_labels` from cos(v̂_i, v̂_j) instead of cos(t̂_i, v̂_j);
    - its filter: `filter_scores` of raw products of texts and images in both terms, t̂_i·v̂_j
      where images are the keys and v̂_i·t̂_j where texts are. The authors remove above the
      threshold, we at or above it: that differs only for an exactly equal score;
    - its text term: `soft_labels` of zeros, so that Δ = 1 makes the margin the same for all.

    The angle is the arccos of the cosine, computed in float64 whatever the input: near 0 and π
    arccos loses half its digits, and in float32, with the clamp of 1e-6 that its gradient needs
    there, opposite rows change the loss by 2e-3 of its value. Here negatives are clamped a few
    roundings inside (−1, 1), the positive is not. At θ = mΔ the loss is smooth: the cosine has
    slope 0 where its angle is clamped at 0.

    Args:
        queries: [N, d], any floating dtype and any norm.
        keys: [N, d].
        soft_labels: α, [N, N]: the teacher's cosine of query i and key j. The diagonal is ignored.
        margin: m in radians, at least 0.
        temperature: τ, above 0.
        threshold: Negatives that score at least this are removed; None removes none.
        filter_scores: [N, N], compared with the threshold in place of `soft_labels`.
        margin_gate: Do not move negatives nearer than the margin.

    Returns:
        A scalar of at least 0: float64 if an input is, else float32. `removed_share` gives the
        share of negatives that the threshold removed.

    Raises:
        LossError: mismatched shapes, a temperature or margin out of range, or `filter_scores`
            without a threshold.
    """
    check_temperature(_LOSS, "temperature", temperature)
    check_number(_LOSS, "margin", margin, low=0.0, high=math.pi)
    check_rows(_LOSS, queries=queries, keys=keys)
    check_same_shape(_LOSS, queries=queries, keys=keys)
    check_square(_LOSS, "soft_labels", soft_labels, len(queries))
    if filter_scores is not None:
        check_square(_LOSS, "filter_scores", filter_scores, len(queries))
        if threshold is None:
            raise LossError(
                f"{_LOSS}: filter_scores are given but threshold is None, so they would do "
                "nothing; give a threshold, or omit filter_scores"
            )
    with without_autocast(queries):
        queries, keys, labels = full_precision(queries, keys, soft_labels)
        wide = _widest(queries)
        similarity = cosines(queries.to(wide), keys.to(wide))  # (N, N)
        bound = 1.0 - 4 * torch.finfo(wide).eps
        theta = torch.acos(similarity.clamp(-bound, bound))
        shift = margin * (1.0 - labels.to(wide)).abs()
        if margin_gate:
            shift = shift.masked_fill(theta <= margin, 0.0)
        moved = torch.cos((theta - shift).clamp_min(0.0))
        logits = torch.where(diagonal(theta), similarity, moved) / temperature
        if threshold is not None:
            scores = soft_labels if filter_scores is None else filter_scores
            logits = logits.masked_fill(_removed(scores, threshold), -math.inf)
        return diagonal_nll(logits).mean().to(queries.dtype)


def removed_share(scores: Tensor, threshold: float | None) -> Tensor:
    """The share of negatives that the threshold removes, for the log.

    Args:
        scores: [N, N], what the loss compares: its `filter_scores`, or else its `soft_labels`.
        threshold: As given to the loss.

    Returns:
        A float32 scalar from 0 to 1 on the scores' device; 0 for N = 1 and without a threshold.

    Raises:
        LossError: `scores` is not square, or the threshold is not finite.
    """
    check_rows("removed_share", scores=scores)
    check_square("removed_share", "scores", scores, len(scores))
    if threshold is None:
        return torch.zeros((), device=scores.device)
    negatives = len(scores) * (len(scores) - 1)
    return _removed(scores, threshold).sum().float() / max(negatives, 1)


def _removed(scores: Tensor, threshold: float) -> Tensor:
    check_number(_LOSS, "threshold", threshold)
    (scores,) = full_precision(scores)  # rounding a threshold to bfloat16 would change it
    return (scores >= threshold).masked_fill(diagonal(scores), False)


def _widest(rows: Tensor) -> torch.dtype:
    """float64; on Apple's MPS, which has none, the rows' own dtype."""
    return rows.dtype if rows.device.type == "mps" else torch.float64
