"""SimCSE: two dropout views of one sentence attract, the rest of the batch repels.

The text term of METHODS §1. It reads the captions of the paired stream as plain sentences, so that
it trains on exactly the batches of a grounded objective (MCSE's table 1, "wiki+flickr").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from train.batch import Batch
from train.objectives.objective import (
    Embeddings,
    FeatureNeed,
    Heads,
    Objective,
    ObjectiveParams,
    text_head,
    text_term,
)

if TYPE_CHECKING:
    from torch import Tensor, nn


class SimCSEParams(ObjectiveParams):
    """SimCSE has no parameters beyond the common ones."""


class SimCSE(Objective[SimCSEParams]):
    """L_text (Gao et al. 2021, eq. 4)."""

    name = "simcse"
    Params = SimCSEParams
    source = "SimCSE (Gao et al. 2021, arXiv 2104.08821), unsupervised"

    @property
    def features(self) -> list[FeatureNeed]:
        return []

    def heads(self, hidden: int, dims: Mapping[str, int]) -> nn.ModuleDict:
        from torch import nn

        return nn.ModuleDict({"text": text_head(hidden)})

    @property
    def weights(self) -> dict[str, float]:
        return {"text": 1.0}

    def terms(self, batch: Batch, embeddings: Embeddings, heads: Heads) -> dict[str, Tensor]:
        return {"text": text_term(embeddings["sentences"], heads["text"], self.params.temperature)}
