"""The task of alignment and uniformity."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from train.evaluate.evaluation_set import EvaluationSet
from train.evaluate.geometry import GEOMETRY, evaluate_geometry
from train.evaluate.similarity import sentences_of
from train.evaluate.sts import load_dev_set
from train.evaluate.task import Metric, Task, TaskScores, TaskSettings

if TYPE_CHECKING:
    from train.evaluate.evaluated_model import EvaluatedModel


class Geometry(Task[TaskSettings]):
    """Alignment and uniformity in two definitions (`train.evaluate.geometry`)."""

    about = "alignment and uniformity, as defined in papers and as in the released evaluation"
    needs = "SentEval's `downstream` folder (STS-B's dev split), or a TSV of graded pairs"
    Settings = TaskSettings

    def __init__(self, settings: TaskSettings) -> None:
        self.pairs = load_dev_set(settings.data)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        data = EvaluationSet.of_pairs([self.pairs])
        return tuple(
            Metric(name, data, higher_is_better=False, shown="released" not in name)
            for name in GEOMETRY
        )

    def sentences(self) -> Iterable[str]:
        return sentences_of([self.pairs])

    def score(self, model: EvaluatedModel) -> TaskScores:
        found = evaluate_geometry(model.encode, self.pairs)
        scores = {name: getattr(found, name) for name in GEOMETRY}
        why = "; ".join(found.reasons)
        return TaskScores(scores, reasons={name: why for name in GEOMETRY if scores[name] is None})
