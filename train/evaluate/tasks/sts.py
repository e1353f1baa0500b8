"""The tasks STS12 to STS16, STS-B and SICK-R of SentEval's folder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from train.evaluate.evaluation_set import EvaluationSet
from train.evaluate.similarity import sentences_of
from train.evaluate.sts import evaluate_sts, load_sts
from train.evaluate.task import Metric, Task, TaskScores, TaskSettings

if TYPE_CHECKING:
    from train.evaluate.evaluated_model import EvaluatedModel

AVERAGE = "Avg"
"""Mean over the seven tasks."""


class Sts(Task[TaskSettings]):
    """Spearman × 100 in the "all" setting (SimCSE, appendix B)."""

    about = "STS12-16, STS-B, SICK-R: Spearman ×100 of cosines with gold scores"
    needs = "SentEval's `downstream` folder (its data/downstream/get_transfer_data.bash)"
    Settings = TaskSettings

    def __init__(self, settings: TaskSettings) -> None:
        self.data = load_sts(settings.data)
        self.warnings = self.data.warnings

    @property
    def metrics(self) -> tuple[Metric, ...]:
        of_tasks = {name: EvaluationSet.of_pairs(parts) for name, parts in self.data.tasks.items()}
        every = [pairs for parts in self.data.tasks.values() for pairs in parts]
        return (
            *(Metric(name, data) for name, data in of_tasks.items()),
            Metric(AVERAGE, EvaluationSet.of_pairs(every)),
        )

    def sentences(self) -> Iterable[str]:
        return sentences_of([pairs for parts in self.data.tasks.values() for pairs in parts])

    def score(self, model: EvaluatedModel) -> TaskScores:
        found = evaluate_sts(model.encode, self.data)
        subsets: dict[str, dict[str, float | None]] = {}
        reasons: dict[str, str] = {}
        for task, each in found.tasks.items():
            if each.overall.reason:
                reasons[task] = reasons[AVERAGE] = each.overall.reason
            if each.subsets:
                subsets[task] = {name: part.spearman for name, part in each.subsets.items()}
            for name, part in each.subsets.items():
                if part.reason:
                    reasons[f"{task}/{name}"] = part.reason
        return TaskScores({**found.scores, AVERAGE: found.average}, subsets, reasons)
