"""Losses: pure functions of tensors, each with its equation, its source and its proof."""

from train.losses.adaptive_margin import adaptive_margin_nce, removed_share
from train.losses.checks import LossError
from train.losses.consistency import consistency_loss, derangement
from train.losses.contrastive import info_nce
from train.losses.distribution import cross_modal_alignment, kl_alignment
from train.losses.object_phrase import object_phrase_nce
from train.losses.ranking import list_mle

__all__ = [
    "LossError",
    "adaptive_margin_nce",
    "consistency_loss",
    "cross_modal_alignment",
    "derangement",
    "info_nce",
    "kl_alignment",
    "list_mle",
    "object_phrase_nce",
    "removed_share",
]
