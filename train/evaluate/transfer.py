"""Accuracy of classifiers on frozen embeddings: SentEval's seven transfer tasks (METHODS §8).

    data = load_transfer("senteval/downstream")
    scores = evaluate_transfer(embedder.encode, data)

MR, CR, SUBJ and MPQA use nested 10-fold cross-validation; l2 is chosen with 10 folds of the
training set for TREC and MRPC, with the dev set for SST-2. A pair's features are |u − v| and u · v.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from sightline.devices import pick_device
from sightline.errors import SightlineError
from train.evaluate.similarity import Encode
from train.evaluate.transfer_data import TransferData, TransferTask
from train.evaluate.transfer_folds import Choice, selections, task_labels

if TYPE_CHECKING:
    from train.evaluate.softmax_classifiers import Recipe

Classifier = Literal["senteval", "sklearn"]
"""`senteval` replays the classifier behind published figures; `sklearn` is the exact optimum."""


@dataclass(frozen=True)
class TransferScore:
    """One task. Accuracies are ×100 and rounded as SentEval rounds them.

    Attributes:
        accuracy: on the test set, or the mean over the outer folds; None for the `reason` given.
        dev_accuracy: by which the penalty was chosen, the mean over the outer folds.
        penalties: the chosen l2 (`senteval`) or C (`sklearn`), one for each outer fold.
        tested: examples behind `accuracy`.
        sha256: digest of the task's data.
    """

    accuracy: float | None
    dev_accuracy: float | None
    penalties: tuple[float, ...]
    tested: int
    sha256: str
    reason: str | None = None


@dataclass(frozen=True)
class TransferScores:
    """Scores of one classifier by task. `warnings` are about the data."""

    classifier: Classifier
    settings: str
    tasks: dict[str, TransferScore]
    warnings: tuple[str, ...] = ()

    @property
    def scores(self) -> dict[str, float | None]:
        """Accuracy ×100 by task."""
        return {task: score.accuracy for task, score in self.tasks.items()}

    @property
    def average(self) -> float | None:
        """Mean over the tasks; None if a task has no score, never a mean over the others."""
        scores = [score for score in self.scores.values() if score is not None]
        return float(np.mean(scores)) if scores and len(scores) == len(self.tasks) else None

    def to_json(self) -> dict[str, object]:
        """As a JSON object; an undefined score is null with its reason beside it."""
        return {
            "classifier": self.classifier,
            "settings": self.settings,
            "average": self.average,
            "tasks": {
                task: {**asdict(score), "penalties": list(score.penalties)}
                for task, score in self.tasks.items()
            },
            "warnings": list(self.warnings),
        }


def evaluate_transfer(
    encode: Encode,
    data: TransferData,
    classifier: Classifier = "senteval",
    *,
    device: str = "cpu",
    folds: int = 10,
    recipe: Recipe | None = None,
) -> TransferScores:
    """Accuracy of every task.

    Every distinct sentence of all tasks together is encoded once, in one call of `encode`.

    Args:
        encode: sentences → float [n, d], e.g. `Embedder.encode`; used as float32.
        classifier: `senteval` trains softmax classifiers as SentEval's PyTorch code does, with the
            same orders and initial weights; `sklearn` fits logistic regressions to the optimum.
        device: where `senteval` trains: auto, cpu, cuda, cuda:1 or mps.
        folds: number of outer and of inner folds; published figures use 10.
        recipe: for `senteval`; None uses that of SimCSE's evaluation.

    Raises:
        SightlineError: an unknown classifier or device; a class with fewer examples than folds
            need; a logistic regression that does not converge.
    """
    if classifier not in get_args(Classifier):
        raise SightlineError(f"unknown classifier {classifier!r}; use senteval or sklearn")
    import torch

    from train.evaluate.logistic_regression import DESCRIPTION, choose_by_logistic_regression
    from train.evaluate.softmax_classifiers import Recipe, choose_by_senteval

    recipe = recipe or Recipe()
    where = pick_device(device)
    planned = {name: selections(task, folds, recipe.seed) for name, task in data.tasks.items()}
    embeddings, row_of = _encode_distinct(encode, list(data.tasks.values()))
    scores = {}
    for name, task in data.tasks.items():
        tested = sum(len(selection.test) for selection in planned[name])
        features = task_features(task, embeddings, row_of)
        broken = int((~np.isfinite(features).all(axis=1)).sum())
        if broken:
            reason = f"features of {broken} of {len(features)} examples are not finite"
            scores[name] = TransferScore(None, None, (), tested, task.sha256, reason)
            continue
        labels = task_labels(task)
        if classifier == "sklearn":
            choices = choose_by_logistic_regression(features, labels, planned[name], task.protocol)
        else:
            choices = choose_by_senteval(
                torch.from_numpy(features).to(where),
                torch.from_numpy(labels).to(where),
                task.classes,
                planned[name],
                recipe,
            )
        scores[name] = _score(choices, tested, task.sha256)
    settings = DESCRIPTION if classifier == "sklearn" else str(recipe)
    return TransferScores(classifier, f"{settings}, {folds} folds", scores, data.warnings)


def task_features(task: TransferTask, embeddings: np.ndarray, row_of: dict[str, int]) -> np.ndarray:
    """Features of all examples of all splits: float32 [n, d], [n, 2 d] for pairs.

    Args:
        embeddings: float32 [m, d].
        row_of: sentence → its row of `embeddings`.
    """
    parts = []
    for examples in task.splits.values():
        first = embeddings[[row_of[sentence] for sentence in examples.first]]
        if examples.second:
            second = embeddings[[row_of[sentence] for sentence in examples.second]]
            first = np.concatenate([np.abs(first - second), first * second], axis=1)
        parts.append(first)
    return np.concatenate(parts)


def sentences_of_tasks(tasks: Iterable[TransferTask]) -> Iterator[str]:
    """Every sentence of every split of every task."""
    return (
        sentence
        for task in tasks
        for examples in task.splits.values()
        for side in (examples.first, examples.second)
        for sentence in side
    )


def _encode_distinct(
    encode: Encode, tasks: Sequence[TransferTask]
) -> tuple[np.ndarray, dict[str, int]]:
    row_of = {text: row for row, text in enumerate(dict.fromkeys(sentences_of_tasks(tasks)))}
    embeddings = np.asarray(encode(list(row_of)), dtype=np.float32)
    if embeddings.ndim != 2 or len(embeddings) != len(row_of):
        raise ValueError(f"encode gave {embeddings.shape} for {len(row_of)} sentences")
    return embeddings, row_of


def _score(choices: Sequence[Choice], tested: int, sha256: str) -> TransferScore:
    return TransferScore(
        round(float(np.mean([choice.accuracy for choice in choices])), 2),
        round(float(np.mean([choice.dev_accuracy for choice in choices])), 2),
        tuple(choice.penalty for choice in choices),
        tested,
        sha256,
    )
