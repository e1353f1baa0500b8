"""Odd one out: lines of three sentences, of which the third does not belong."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from sightline.errors import SightlineError
from sightline.user_files import read_lines
from train.evaluate.models import EvaluatedModel
from train.evaluate.ranking import cosine
from train.evaluate.results import EvaluationSet, TaskResult
from train.evaluate.task import Metric, Task, TaskSettings


class OddOneOut(Task[TaskSettings]):
    """Share of the triples × 100 whose first two sentences are closest to each other."""

    about = "odd one out: share of triples whose odd sentence is found, ×100"
    needs = "a TSV file without header; the third column is the odd sentence"
    title = "Odd one out"
    Settings = TaskSettings

    def __init__(self, settings: TaskSettings) -> None:
        lines = read_lines(settings.data, self.needs)
        self.triples = [tuple(line.split("\t")) for line in lines]
        for number, triple in enumerate(self.triples, start=1):
            if len(triple) != 3:
                raise SightlineError(
                    f"{settings.data}, line {number}: {len(triple)} tab-separated columns, "
                    "expected 3 sentences; fix or remove the line"
                )
        self.sha256 = hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return (Metric("odd one out", EvaluationSet.of(len(self.triples), self.sha256)),)

    def sentences(self) -> Iterable[str]:
        return (sentence for triple in self.triples for sentence in triple)

    def score(self, model: EvaluatedModel) -> TaskResult:
        first, second, odd = (model.encode(column) for column in zip(*self.triples, strict=True))
        pair = cosine(first, second)
        found = (pair > cosine(first, odd)) & (pair > cosine(second, odd))
        return TaskResult(scores={"odd one out": 100 * float(np.mean(found))})
