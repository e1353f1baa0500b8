"""The dev set that picks the best checkpoint, and its score."""

from __future__ import annotations

import math
from pathlib import Path

from sightline.errors import SightlineError
from train.embed import Embedder
from train.evaluate.similarity import GradedPairs, evaluate_pairs, load_pairs
from train.evaluate.sts import load_sts_benchmark


def load_dev_set(path: Path) -> GradedPairs:
    """STS-B's dev split from SentEval's `downstream` folder, or a similarity TSV.

    Raises:
        SightlineError: neither exists.
    """
    if path.is_dir():
        return load_sts_benchmark(path, "dev")
    if not path.is_file():
        raise SightlineError(
            f"{path}: no such dev set; give a TSV file with the columns score, sentence1, "
            "sentence2, or SentEval's `downstream` folder, which holds STS/STSBenchmark"
        )
    return load_pairs(path)


def dev_score(embedder: Embedder, pairs: GradedPairs, batch_size: int) -> float:
    """Spearman × 100 of ``pairs``; NaN if it is not defined."""
    result = evaluate_pairs(lambda texts: embedder.encode(texts, batch_size=batch_size), pairs)
    return math.nan if result.spearman is None else result.spearman
