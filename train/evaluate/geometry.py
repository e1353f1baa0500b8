"""Alignment and uniformity of an embedding space (Wang and Isola 2020, as SimCSE reports them)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from sightline.errors import SightlineError
from train.evaluate.ranking import NotDefinedError, norms_of, unit_rows
from train.evaluate.results import TaskResult
from train.evaluate.similarity import Encode, GradedPairs, sentences_of, set_of_pairs
from train.evaluate.sts import load_graded_pairs
from train.evaluate.task import MEASURED, Metric, Task, TaskSettings

if TYPE_CHECKING:
    from train.evaluate.models import EvaluatedModel

_CHUNK = 1024  # rows of the distance matrix held at once
_RELEASED_BATCH = 128
_POSITIVE = 4.0  # gold score
GEOMETRY = ("alignment", "uniformity", "alignment_released", "uniformity_released")
"""Figures as results name them, all better when lower: as the papers define them, over all pairs
with gold > 4 and over every two distinct sentences; and as the released evaluation computes them
(`released_geometry`), which published figures are of."""


def evaluate_geometry(encode: Encode, pairs: GradedPairs) -> TaskResult:
    """Alignment over the pairs with gold > 4, uniformity over all distinct sentences; and both
    as the released evaluation has them.

    KDMCSE and DALR use STS-B's dev split; MCSE used all of STS-B.
    """
    texts = pairs.distinct
    embeddings = np.asarray(encode(texts))
    row_of = {text: row for row, text in enumerate(texts)}
    rows = np.array([[row_of[text] for text in side] for side in (pairs.first, pairs.second)])
    positives = np.flatnonzero(pairs.gold > _POSITIVE)
    scores: dict[str, float | None] = dict.fromkeys(GEOMETRY)
    reasons: dict[str, str] = {}
    try:
        norms_of(embeddings)
    except NotDefinedError as error:
        return TaskResult(scores=scores, reasons=dict.fromkeys(GEOMETRY, str(error)))
    if len(positives):
        scores["alignment"] = alignment(*embeddings[rows[:, positives]])
    else:
        reasons["alignment"] = f"no pair has a gold score above {_POSITIVE:g}"
    if len(texts) > 1:
        scores["uniformity"] = uniformity(embeddings)
    else:
        reasons["uniformity"] = f"{len(texts)} distinct sentences; uniformity needs two"
    scores |= dict(zip(GEOMETRY[2:], released_geometry(embeddings, rows, pairs), strict=True))
    return TaskResult(scores=scores, reasons=reasons)


def released_geometry(
    embeddings: np.ndarray, rows: np.ndarray, pairs: GradedPairs
) -> tuple[float, float]:
    """Alignment and uniformity as MCSE's evaluation computes them (its SentEval/senteval/sts.py).

    Pairs are sorted by the words of both sentences and by gold and cut into batches of 128. A
    batch's alignment is over its pairs with gold ≥ 4, 0 if it has none; its uniformity over both
    sides, repeated sentences included. The result is the mean over batches.

    Args:
        embeddings: float [m, d] of the distinct sentences.
        rows: int [2, n], their rows of both sides of the pairs.
    """
    first_words, second_words = (
        np.array([len(text.split()) for text in side]) for side in (pairs.first, pairs.second)
    )
    order = np.lexsort((pairs.gold, second_words, first_words))
    close, spread = [], []
    for start in range(0, len(order), _RELEASED_BATCH):
        batch = order[start : start + _RELEASED_BATCH]
        first, second = embeddings[rows[:, batch]]
        positive = pairs.gold[batch] >= _POSITIVE
        close.append(alignment(first[positive], second[positive]) if positive.any() else 0.0)
        spread.append(uniformity(np.concatenate([first, second])))
    return float(np.mean(close)), float(np.mean(spread))


def alignment(first: np.ndarray, second: np.ndarray) -> float:
    """Mean squared distance of matching rows, E‖f(x) − f(x⁺)‖², of normalised [n, d] and [n, d]."""
    difference = unit_rows(first) - unit_rows(second)
    return float(np.mean(np.sum(difference**2, axis=1)))


def uniformity(embeddings: np.ndarray) -> float:
    """log E exp(−2 ‖f(x) − f(y)‖²) over all pairs of different rows of [n, d], normalised.

    Exact over the whole set, in float64; at most 1024 rows of the n × n distances are in memory
    at a time.
    """
    points = unit_rows(embeddings)
    n, total = len(points), 0.0
    for start in range(0, n, _CHUNK):
        block = points[start : start + _CHUNK]
        # Each unordered pair once: this block with all rows from its own on.
        squared = 2.0 - 2.0 * (block @ points[start:].T)
        kernel = np.exp(-2.0 * np.maximum(squared, 0.0))
        total += float(np.triu(kernel, k=1).sum())
    return float(np.log(total / (n * (n - 1) / 2)))


class GeometrySettings(TaskSettings):
    """
    Attributes:
        split: of STS-B; a TSV has none.
    """

    split: Annotated[Literal["train", "dev", "test", "all"], MEASURED] = Field(
        default="dev", description="of STS-B: train, dev, test or all (MCSE's figure 2)"
    )


class GeometryTask(Task[GeometrySettings]):
    """Alignment and uniformity in two definitions."""

    about = "alignment and uniformity, as defined in papers and as in the released evaluation"
    needs = "SentEval's `downstream` folder (STS-B's dev split), or a table of graded pairs"
    Settings = GeometrySettings

    def __init__(self, settings: GeometrySettings) -> None:
        if "split" in settings.model_fields_set and settings.data.is_file():
            raise SightlineError(
                f"{settings.data}: split is of SentEval's folder, and a table has none; leave it "
                "out"
            )
        self.pairs = load_graded_pairs(settings.data, settings.split)
        self.warnings = self.pairs.notes

    @property
    def metrics(self) -> tuple[Metric, ...]:
        data = set_of_pairs([self.pairs])
        return tuple(
            Metric(name, data, higher_is_better=False, shown="released" not in name)
            for name in GEOMETRY
        )

    def sentences(self) -> Iterable[str]:
        return sentences_of([self.pairs])

    def score(self, model: EvaluatedModel) -> TaskResult:
        return evaluate_geometry(model.encode, self.pairs)
