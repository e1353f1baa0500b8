"""The score on the dev set, which picks the best checkpoint."""

from __future__ import annotations

import math

from train.embed import Embedder
from train.evaluate.similarity import GradedPairs, evaluate_pairs


def dev_score(embedder: Embedder, pairs: GradedPairs, batch_size: int) -> float:
    """Spearman × 100 of ``pairs``; NaN if it is not defined."""
    result = evaluate_pairs(lambda texts: embedder.encode(texts, batch_size=batch_size), pairs)
    return math.nan if result.spearman is None else result.spearman
