"""Every score of one finished encoder: similarity on the test set, geometry on the dev set."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from train.evaluate.geometry import evaluate_geometry
from train.evaluate.similarity import Encode, GradedPairs, evaluate_pairs, load_pairs
from train.evaluate.sts import evaluate_sts, load_sts, load_sts_benchmark


@dataclass(frozen=True)
class Scores:
    """Task → score, None where `reasons` says why it is not defined; doubts about the data."""

    scores: dict[str, float | None]
    reasons: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def load_graded(path: Path, split: str) -> GradedPairs:
    """A similarity TSV, or a split of STS-B in a folder of SentEval's layout.

    Raises:
        SightlineError: missing, or not in the format (names the file and the line).
    """
    return load_sts_benchmark(path, split) if path.is_dir() else load_pairs(path, split)


def score(encode: Encode, test: Path, dev: Path) -> Scores:
    """Score an encoder on ``test`` and measure its geometry on ``dev``.

    Args:
        encode: sentences → float [n, d].
        test: a similarity TSV (one score, ``similarity``), or a folder of SentEval's layout (the
            seven STS tasks and their average, METHODS §8).
        dev: a similarity TSV or a folder with STS-B, for alignment and uniformity.

    Raises:
        SightlineError: a file is missing or not in its format.
    """
    scores: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    warnings: tuple[str, ...] = ()
    if test.is_dir():
        found = evaluate_sts(encode, load_sts(test))
        scores.update(found.scores)
        scores["Avg"] = found.average
        warnings = found.warnings
        for task, each in found.tasks.items():
            if each.overall.reason:
                reasons[task] = reasons["Avg"] = each.overall.reason
    else:
        correlation = evaluate_pairs(encode, load_pairs(test, "test"))
        scores["similarity"] = correlation.spearman
        if correlation.reason:
            reasons["similarity"] = correlation.reason
    geometry = evaluate_geometry(encode, load_graded(dev, "dev"))
    scores["alignment"], scores["uniformity"] = geometry.alignment, geometry.uniformity
    for task in ("alignment", "uniformity"):
        if scores[task] is None:
            reasons[task] = "; ".join(geometry.reasons)
    return Scores(scores, reasons, warnings)
