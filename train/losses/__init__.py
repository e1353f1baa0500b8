"""Losses: pure functions of tensors, one per file, each with its equation and its source."""

from train.losses.checks import LossError
from train.losses.contrastive import info_nce

__all__ = ["LossError", "info_nce"]
