"""The seven transfer tasks of SentEval."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pydantic import Field

from train.evaluate.evaluation_set import EvaluationSet
from train.evaluate.task import Metric, Task, TaskScores, TaskSettings
from train.evaluate.transfer import Classifier, evaluate_transfer, sentences_of_tasks
from train.evaluate.transfer_data import load_transfer

if TYPE_CHECKING:
    from train.evaluate.evaluated_model import EvaluatedModel

AVERAGE = "transfer Avg"
"""Mean over the seven tasks."""


class TransferSettings(TaskSettings):
    """
    Attributes:
        classifier: see `train.evaluate.transfer`.
    """

    classifier: Classifier = Field(
        default="senteval",
        description="`senteval` trains as published results were; `sklearn` is the exact optimum",
    )


class Transfer(Task[TransferSettings]):
    """Accuracy × 100 of logistic regression on frozen embeddings."""

    about = "MR, CR, SUBJ, MPQA, SST-2, TREC, MRPC: accuracy ×100 of a linear classifier"
    needs = "SentEval's `downstream` folder (its data/downstream/get_transfer_data.bash)"
    title = "Transfer: accuracy ×100"
    Settings = TransferSettings

    def __init__(self, settings: TransferSettings) -> None:
        self.settings = settings
        self.data = load_transfer(settings.data)
        self.warnings = self.data.warnings

    @property
    def metrics(self) -> tuple[Metric, ...]:
        data = {name: EvaluationSet.of(len(t), t.sha256) for name, t in self.data.tasks.items()}
        every = EvaluationSet.of(
            sum(map(len, self.data.tasks.values())), *(each.sha256 for each in data.values())
        )
        return (*(Metric(name, each) for name, each in data.items()), Metric(AVERAGE, every))

    def sentences(self) -> Iterable[str]:
        return sentences_of_tasks(self.data.tasks.values())

    def score(self, model: EvaluatedModel) -> TaskScores:
        found = evaluate_transfer(
            model.encode,
            self.data,
            self.settings.classifier,
            device=str(model.embedder.model.device),
        )
        reasons = {name: each.reason for name, each in found.tasks.items() if each.reason}
        if found.average is None:
            reasons[AVERAGE] = next(iter(reasons.values()))
        return TaskScores({**found.scores, AVERAGE: found.average}, reasons=reasons)

    def settings_of_result(self) -> dict[str, object]:
        return {"classifier": self.settings.classifier}
