"""SimCSE's module."""

from __future__ import annotations

from torch import Tensor

from train.batch import Batch
from train.objectives.modules.objective import Embeddings, Objective, text_head
from train.objectives.simcse import SimCSEParams


class SimCSE(Objective[SimCSEParams]):
    """L_text (Gao et al. 2021, eq. 4)."""

    def __init__(self, params: SimCSEParams, hidden: int) -> None:
        super().__init__(params)
        self.heads["text"] = text_head(hidden)

    def forward(self, batch: Batch, embeddings: Embeddings) -> dict[str, Tensor]:
        return {"text": self.text_term(embeddings["sentences"])}
