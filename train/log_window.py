"""Means of the losses and statistics of a few steps, without a wait for the device in each."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from torch import Tensor

from train.model import TOTAL


class LogWindow:
    """Sums since the last log entry; they stay on the device until they are needed."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, list[Any]] = defaultdict(lambda: [0.0, 0])
        self._loss: Any = 0.0
        self._norm: Any = 0.0
        self._steps = self._sentences = 0
        self.seconds = 0.0

    def add(self, terms: dict[str, Tensor], statistics: dict[str, Tensor], parts: int) -> None:
        """Take the terms of one of ``parts`` micro-batches of a step."""
        self._loss = self._loss + terms[TOTAL] / parts
        figures = {f"loss_{name}": term for name, term in terms.items() if name != TOTAL}
        for name, figure in {**figures, **statistics}.items():
            sums = self._sums[name]
            sums[0] = sums[0] + figure.float()
            sums[1] += 1

    def step(self, norm: Tensor, sentences: int) -> None:
        self._steps, self._norm = self._steps + 1, norm
        self._sentences += sentences

    def means(self, rate: float) -> dict[str, float]:
        """The log entry: means of the terms, the last gradient norm and learning rate."""
        entry = {"loss": float(self._loss) / self._steps, "grad_norm": float(self._norm)}
        entry["learning_rate"] = rate
        entry |= {name: float(value) / count for name, (value, count) in self._sums.items()}
        if self.seconds > 0:
            entry["sentences_per_second"] = self._sentences / self.seconds
        return entry
