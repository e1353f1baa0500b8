"""Shared by objectives with images or teachers: a weight for each term, and the heads."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from pydantic import Field, model_validator

from train.objectives.objective import (
    PROJECTION_DIM,
    Objective,
    ObjectiveParams,
    head,
    text_head,
)

if TYPE_CHECKING:
    from torch import nn


class GroundedParams(ObjectiveParams):
    """Their common parameters. Weight 0 switches a term off, with its heads and features.

    Attributes:
        text_weight: of the text term; at 0 the run cannot have a stream of plain sentences.
        projection_dim: output width of the grounding head and of those that project features.
    """

    text_weight: float = Field(default=1.0, ge=0)
    projection_dim: int = Field(default=PROJECTION_DIM, ge=1)

    @model_validator(mode="after")
    def _trains_something(self) -> GroundedParams:
        if not self.term_weights:
            raise ValueError("every weight is 0, so there is nothing to train")
        return self

    @property
    @abstractmethod
    def every_weight(self) -> dict[str, float]:
        """Term → weight in the total, those of weight 0 included."""

    @property
    def term_weights(self) -> dict[str, float]:
        """Term → weight in the total, of the terms that are on."""
        return {term: weight for term, weight in self.every_weight.items() if weight > 0}


G = TypeVar("G", bound=GroundedParams)


class GroundedObjective(Objective[G]):
    """An objective whose parameters are `GroundedParams`."""

    @property
    def weights(self) -> dict[str, float]:
        return self.params.term_weights

    def make_heads(self, hidden: int, projected: Mapping[str, int], *, text: bool) -> nn.ModuleDict:
        """g_text if a term reads it; if anything is projected, g_s and the projection heads.

        Args:
            hidden: width of the student's embedding.
            projected: name of a head → width of the features that it projects.
            text: whether there is a text head.
        """
        from torch import nn

        heads = nn.ModuleDict()
        if text:
            heads["text"] = text_head(hidden)
        if projected:
            heads["grounding"] = head(hidden, self.params.projection_dim)
        for name, width in projected.items():
            heads[name] = head(width, self.params.projection_dim)
        return heads
