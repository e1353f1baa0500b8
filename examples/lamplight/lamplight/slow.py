"""SimCSE beside Mean Teacher: each sentence is also near what a slow copy makes of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from train.batch import Batch, Embeddings
from train.objectives import Objective, ObjectiveModule

if TYPE_CHECKING:
    from train.model import Student


class Slow(Objective):
    """L_text + λ mean_i (1 − cos(h_i, s_i)), s_i the slow copy's second view.

    Attributes:
        weight: of the distance to the slow copy.
        decay: the share of itself that the copy keeps after a step.
    """

    name: ClassVar[str] = "slow"
    source: ClassVar[str] = (
        "Mean Teacher (Tarvainen and Valpola, NeurIPS 2017, arXiv 1703.01780) beside SimCSE"
    )

    weight: float = Field(default=0.1, ge=0)
    decay: float = Field(default=0.99, ge=0, le=1)

    @property
    def weights(self) -> dict[str, float]:
        return {"text": 1.0, "slow": self.weight}

    def build(self, hidden: int, dims: Mapping[str, int]) -> SlowCopy:
        return SlowCopy(self, hidden, dims)


class SlowCopy(ObjectiveModule):
    """The student's encoder as it was, moved a little towards it after each step."""

    def __init__(self, params: Slow, hidden: int, dims: Mapping[str, int]) -> None:
        super().__init__(params, hidden, dims)
        self.decay = params.decay

    def start(self, student: Student) -> None:
        self.copy = copy.deepcopy(student.encoder).requires_grad_(False)
        self.encode = student.encode

    def forward(self, batch: Batch, embeddings: Embeddings) -> dict[str, Tensor]:
        terms = super().forward(batch, embeddings)
        slow = self.encode(batch.sentences, self.copy)[1]  # (N, d)
        terms["slow"] = (1 - torch.cosine_similarity(embeddings["sentences"][0], slow)).mean()
        return terms

    @torch.no_grad()
    def after_step(self, student: Student) -> None:
        for own, new in zip(self.copy.parameters(), student.encoder.parameters(), strict=True):
            own.lerp_(new, 1 - self.decay)
