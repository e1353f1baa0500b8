"""Every score of one finished encoder: similarity on the test set, geometry on the dev set."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from train.evaluate.geometry import GEOMETRY, evaluate_geometry
from train.evaluate.similarity import Encode, GradedPairs, evaluate_pairs, load_pairs
from train.evaluate.sts import StsData, evaluate_sts, load_sts, load_sts_benchmark
from train.report.results import EvaluationSet


@dataclass(frozen=True)
class Scores:
    """Task → score (None if undefined; `reasons` says why), and `warnings` about the data.

    `subsets` holds the scores of the parts of a task (STS12–16), whose keys in `reasons` are
    "task/subset".
    """

    scores: dict[str, float | None]
    subsets: dict[str, dict[str, float | None]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def load_graded(path: Path, split: str) -> GradedPairs:
    """A similarity TSV, or a split of STS-B in a folder with SentEval's layout.

    Raises:
        SightlineError: missing or malformed (names the file and the line).
    """
    return load_sts_benchmark(path, split) if path.is_dir() else load_pairs(path, split)


@dataclass(frozen=True)
class Evaluation:
    """What encoders are scored on, read once for all of them.

    Attributes:
        test: the STS tasks, or one set of graded pairs.
        dev: graded pairs for alignment and uniformity.
        evaluated_on: task → its pairs.
    """

    test: StsData | GradedPairs
    dev: GradedPairs
    evaluated_on: dict[str, EvaluationSet]

    @classmethod
    def load(cls, test: Path, dev: Path) -> Evaluation:
        """Read both sets.

        Args:
            test: a similarity TSV (one score, ``similarity``), or a folder with SentEval's layout
                (the seven STS tasks and their average, METHODS §8).
            dev: a similarity TSV or a folder with STS-B, for alignment and uniformity, in both
                definitions of `train.evaluate.geometry`.

        Raises:
            SightlineError: a file is missing or malformed.
        """
        graded = load_graded(dev, "dev")
        of_dev = {task: _evaluation_set([graded]) for task in GEOMETRY}
        if test.is_dir():
            data = load_sts(test)
            of_test = {task: _evaluation_set(parts) for task, parts in data.tasks.items()}
            return cls(data, graded, {**of_test, **of_dev})
        pairs = load_pairs(test, "test")
        return cls(pairs, graded, {"similarity": _evaluation_set([pairs]), **of_dev})

    def score(self, encode: Encode) -> Scores:
        """Score an encoder (sentences → float [n, d])."""
        scores: dict[str, float | None] = {}
        subsets: dict[str, dict[str, float | None]] = {}
        reasons: dict[str, str] = {}
        warnings: tuple[str, ...] = ()
        if isinstance(self.test, GradedPairs):
            correlation = evaluate_pairs(encode, self.test)
            scores["similarity"] = correlation.spearman
            if correlation.reason:
                reasons["similarity"] = correlation.reason
        else:
            found = evaluate_sts(encode, self.test)
            scores.update(found.scores)
            scores["Avg"] = found.average
            warnings = found.warnings
            for task, each in found.tasks.items():
                if each.overall.reason:
                    reasons[task] = reasons["Avg"] = each.overall.reason
                if each.subsets:
                    subsets[task] = {name: part.spearman for name, part in each.subsets.items()}
                for name, part in each.subsets.items():
                    if part.reason:
                        reasons[f"{task}/{name}"] = part.reason
        geometry = evaluate_geometry(encode, self.dev)
        scores |= {task: getattr(geometry, task) for task in GEOMETRY}
        for task in GEOMETRY:
            if scores[task] is None:
                reasons[task] = "; ".join(geometry.reasons)
        return Scores(scores, subsets, reasons, warnings)


def _evaluation_set(parts: Sequence[GradedPairs]) -> EvaluationSet:
    digest = hashlib.sha256("".join(pairs.sha256 for pairs in parts).encode())
    return EvaluationSet(pairs=sum(map(len, parts)), sha256=digest.hexdigest())
