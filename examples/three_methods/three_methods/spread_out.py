"""EmbeddingGemma's recipe on sentences: contrast, spread-out embeddings, a teacher's geometry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import normalize

from train.batch import Batch, Embeddings
from train.objectives import FeatureNeed, GroundedObjective, ObjectiveModule


class SpreadOut(GroundedObjective):
    """L_text + w_S L_S + w_D L_D; the last on paired batches, whose captions have a teacher.

    `match` compares a linear map of an embedding, normalised, with the teacher's, normalised: the
    mean squared distance of both views.

    Attributes:
        teacher: whose embeddings are matched.
        spread_weight: of the spread-out term.
        match_weight: of the term that matches the teacher.
    """

    name: ClassVar[str] = "spread-out"
    source: ClassVar[str] = "EmbeddingGemma (Vera et al. 2025, arXiv 2509.20354), beside SimCSE"

    teacher: str = Field(min_length=1)
    spread_weight: float = Field(default=1.0, ge=0)
    match_weight: float = Field(default=1.0, ge=0)

    @property
    def features(self) -> list[FeatureNeed]:
        return [FeatureNeed("teacher", self.teacher, ("match",))] if self.match_weight else []

    @property
    def weights(self) -> dict[str, float]:
        return {
            "text": self.text_weight,
            "spread": self.spread_weight,
            "match": self.match_weight,
        }

    def build(self, hidden: int, dims: Mapping[str, int]) -> ObjectiveModule:
        module = super().build(hidden, dims)
        for need in self.features:
            module.heads["teacher"] = nn.Linear(hidden, dims[need.name], bias=False)
        return module

    def terms(
        self, heads: nn.ModuleDict, batch: Batch, embeddings: Embeddings
    ) -> dict[str, Tensor]:
        terms, sentences = self.text_term(heads, embeddings), embeddings["sentences"]
        if self.spread_weight > 0:
            first, second = map(second_moment, sentences)
            terms["spread"] = first + second
        if self.match_weight > 0 and batch.stream == "pairs":
            target = normalize(batch.features_of("teacher", self.teacher), dim=1)  # (N, D)
            mapped = normalize(heads["teacher"](sentences), dim=2)  # (2, N, D)
            terms["match"] = (mapped - target).square().sum(dim=2).mean()
        return terms


def second_moment(embeddings: Tensor) -> Tensor:
    """The mean squared cosine of different rows of [N, d], which is 1/d on a uniform sphere."""
    unit = normalize(embeddings, dim=1)
    squares = (unit @ unit.T).square()
    count = len(unit)
    return (squares.sum() - squares.diagonal().sum()) / (count * (count - 1))
