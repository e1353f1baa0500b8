"""The task of any file of graded pairs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from train.evaluate.evaluation_set import EvaluationSet
from train.evaluate.similarity import (
    HEADER,
    evaluate_pairs,
    load_pairs,
    sentences_of,
)
from train.evaluate.task import Metric, Task, TaskScores, TaskSettings

if TYPE_CHECKING:
    from train.evaluate.evaluated_model import EvaluatedModel

NAME = "similarity"


class Similarity(Task[TaskSettings]):
    """Spearman × 100 on one set of graded pairs."""

    about = "your own graded pairs: Spearman ×100 of cosines with gold scores"
    needs = f"a TSV file with the header {', '.join(HEADER)}"
    Settings = TaskSettings

    def __init__(self, settings: TaskSettings) -> None:
        self.pairs = load_pairs(settings.data)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return (Metric(NAME, EvaluationSet.of_pairs([self.pairs])),)

    def sentences(self) -> Iterable[str]:
        return sentences_of([self.pairs])

    def score(self, model: EvaluatedModel) -> TaskScores:
        found = evaluate_pairs(model.encode, self.pairs)
        return TaskScores(
            {NAME: found.spearman}, reasons={NAME: found.reason} if found.reason else {}
        )
