"""EmbeddingGemma's recipe on sentences: contrast, spread-out embeddings, a teacher's geometry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import normalize

from train.batch import Batch
from train.objectives import Embeddings, FeatureNeed, GroundedObjective, GroundedParams


class SpreadOutParams(GroundedParams):
    """The objective as it is configured.

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

    def build(self, hidden: int, dims: Mapping[str, int]) -> SpreadOut:
        return SpreadOut(self, hidden, dims)


class SpreadOut(GroundedObjective[SpreadOutParams]):
    """L_text + w_S L_S + w_D L_D; the last on paired batches, whose captions have a teacher.

    `match` compares a linear map of an embedding, normalised, with the teacher's, normalised: the
    mean squared distance of both views.
    """

    def __init__(self, params: SpreadOutParams, hidden: int, dims: Mapping[str, int]) -> None:
        super().__init__(params, hidden, dims)
        for need in params.features:
            self.heads["teacher"] = nn.Linear(hidden, dims[need.name], bias=False)

    def forward(self, batch: Batch, embeddings: Embeddings) -> dict[str, Tensor]:
        params, sentences = self.params, embeddings["sentences"]
        terms: dict[str, Tensor] = {}
        if params.trains_on_text:
            terms["text"] = self.text_term(sentences)
        if params.spread_weight > 0:
            first, second = map(second_moment, sentences)
            terms["spread"] = first + second
        if params.match_weight > 0 and batch.stream == "pairs":
            target = normalize(batch.features_of("teacher", params.teacher), dim=1)  # (N, D)
            mapped = normalize(self.heads["teacher"](sentences), dim=2)  # (2, N, D)
            terms["match"] = (mapped - target).square().sum(dim=2).mean()
        return terms


def second_moment(embeddings: Tensor) -> Tensor:
    """The mean squared cosine of different rows of [N, d], which is 1/d on a uniform sphere."""
    unit = normalize(embeddings, dim=1)
    squares = (unit @ unit.T).square()
    count = len(unit)
    return (squares.sum() - squares.diagonal().sum()) / (count * (count - 1))
