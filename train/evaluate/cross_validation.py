"""SentEval's cross-validation: which rows train, which choose a penalty, and which are tested.

Folds are those of scikit-learn's `StratifiedKFold`, shuffled from seed 1111, as in SentEval
(`senteval/tools/validation.py`); rows are numbered across all splits of a task, `train` first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from sightline.errors import SightlineError

if TYPE_CHECKING:
    from train.evaluate.transfer import TransferTask

Protocol = Literal["nested", "k-fold", "split"]
"""How the accuracy is measured and l2 is chosen.

`nested`: no test set; every outer fold is tested once, inner folds choose. `k-fold`: folds of the
training set choose. `split`: a dev set chooses.
"""


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


def selections(task: TransferTask, count: int, seed: int) -> list[Selection]:
    """The selections of a task: one for each outer fold if it is nested, else one.

    Args:
        count: number of outer and of inner folds.
    """
    _check_classes(task, count)
    labels, ends = task.labels, np.cumsum([len(split) for split in task.splits.values()])
    rows = dict(zip(task.splits, np.split(np.arange(len(labels)), ends[:-1]), strict=True))
    train = rows["train"]
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


def folds_of(task: TransferTask, count: int) -> int:
    """How many distinct folds the `selections` of a task have."""
    return {"nested": count * (count + 1), "k-fold": count + 1, "split": 1}[task.protocol]


def choose(accuracies: np.ndarray) -> tuple[int, float]:
    """Index of the best penalty, the first if several tie, and its mean accuracy ×100.

    Args:
        accuracies: float64 [inner folds, penalties], 0 to 1. SentEval compares means rounded to
            two decimals.
    """
    means = [
        percent(float(np.mean(accuracies[:, penalty]))) for penalty in range(accuracies.shape[1])
    ]
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
    counts = np.bincount(task.splits["train"].labels, minlength=task.classes)
    smallest = int(counts.min())
    if task.protocol == "split":
        if not smallest:
            raise SightlineError(
                f"{task.name}: class {int(counts.argmin())} of {task.classes} has no training "
                "example; expected SentEval's complete files"
            )
        return
    # An outer fold takes its share before the inner ones do.
    left = smallest - math.ceil(smallest / count) if task.protocol == "nested" else smallest
    if left < count:
        raise SightlineError(
            f"{task.name}: the smallest class has {smallest} training examples, too few for "
            f"{count} stratified folds; expected SentEval's complete files"
        )
