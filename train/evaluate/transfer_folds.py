"""Which rows of a transfer task train, select and test: SentEval's three protocols.

Folds are those of scikit-learn's `StratifiedKFold`, shuffled from seed 1111, as in SentEval
(`senteval/tools/validation.py`); rows are numbered across all splits of a task, `train` first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sightline.errors import SightlineError
from train.evaluate.transfer_data import TransferTask


@dataclass(frozen=True, eq=False)
class Fold:
    """Rows to train on and rows to score, int64; without `dev` the classifier finds its own."""

    train: np.ndarray
    dev: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Selection:
    """One choice of a penalty: the best mean accuracy over `inner`; `final` is tested on `test`."""

    inner: tuple[Fold, ...]
    final: Fold
    test: np.ndarray


@dataclass(frozen=True)
class Choice:
    """A selection's outcome: the penalty, its accuracy ×100 over the inner folds, and on test."""

    penalty: float
    dev_accuracy: float
    accuracy: float


def task_labels(task: TransferTask) -> np.ndarray:
    """Labels of all splits of a task, int64 [n]."""
    return np.concatenate([examples.labels for examples in task.splits.values()])


def selections(task: TransferTask, count: int, seed: int) -> list[Selection]:
    """The selections of a task: one for each outer fold if it is nested, else one.

    Args:
        count: number of outer and of inner folds.

    Raises:
        SightlineError: a class has too few examples for that many folds.
    """
    labels = task_labels(task)
    rows, start = {}, 0
    for name, examples in task.splits.items():
        rows[name] = np.arange(start, start + len(examples))
        start += len(examples)
    train = rows["train"]
    _check_classes(task, count)
    if task.protocol == "split":
        fold = Fold(train, rows["dev"])
        return [Selection((fold,), fold, rows["test"])]
    if task.protocol == "k-fold":
        return [Selection(_folds(train, labels, count, seed), Fold(train), rows["test"])]
    return [
        Selection(_folds(outer.train, labels, count, seed), Fold(outer.train), outer.dev)
        for outer in _folds(train, labels, count, seed)
        if outer.dev is not None
    ]


def choose(penalties: Sequence[float], accuracies: np.ndarray) -> tuple[int, float]:
    """Index of the best penalty, the first if several tie, and its mean accuracy ×100.

    Args:
        accuracies: float64 [inner folds, penalties], 0 to 1. SentEval compares means rounded to
            two decimals.
    """
    means = [percent(float(np.mean(accuracies[:, each]))) for each in range(len(penalties))]
    best = int(np.argmax(means))
    return best, means[best]


def percent(share: float) -> float:
    """×100, to two decimals, as SentEval rounds."""
    return round(100 * share, 2)


def _folds(rows: np.ndarray, labels: np.ndarray, count: int, seed: int) -> tuple[Fold, ...]:
    from sklearn.model_selection import StratifiedKFold  # takes seconds

    splitter = StratifiedKFold(n_splits=count, shuffle=True, random_state=seed)
    return tuple(Fold(rows[train], rows[dev]) for train, dev in splitter.split(rows, labels[rows]))


def _check_classes(task: TransferTask, count: int) -> None:
    labels = task.splits["train"].labels
    counts = np.bincount(labels, minlength=task.classes)
    smallest = int(counts.min())
    if task.protocol == "split" and not smallest:
        raise SightlineError(
            f"{task.name}: class {int(counts.argmin())} of {task.classes} has no training example; "
            "expected SentEval's complete files"
        )
    if task.protocol == "split":
        return
    # An outer fold takes its share before the inner ones do.
    left = smallest - math.ceil(smallest / count) if task.protocol == "nested" else smallest
    if left < count:
        raise SightlineError(
            f"{task.name}: the smallest class has {smallest} training examples, too few for "
            f"{count} stratified folds; expected SentEval's complete files"
        )
