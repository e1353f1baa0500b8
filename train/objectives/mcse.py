"""MCSE: SimCSE, and on paired batches each caption finds its image among the batch's images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator
from torch import Tensor, nn

from train.batch import Batch
from train.objectives.base import (
    PROJECTION_DIM,
    FeatureNeed,
    Objective,
    ObjectiveParams,
    Views,
    head,
    text_head,
)
from train.objectives.terms import image_term, text_term


class MCSEParams(ObjectiveParams):
    """MCSE's parameters.

    Attributes:
        variant: what the image term is called: the sum over both views (`paper`, eq. 3) or their
            average (`released`). λ belongs to the average in both, since the published runs had it
            there: training is the same, the logged term is twice as large in `paper`.
        image: encoder whose features the images have.
        weight: λ. At 0 the image term is gone, and so are its features.
        text_weight: of the text term; at 0 the run cannot have a stream of plain sentences.
        image_temperature: τ′ of the image term.
        projection_dim: width of the grounding and image heads.
    """

    variant: Literal["paper", "released"] = "paper"
    image: str | None = Field(default=None, min_length=1)
    weight: float = Field(default=0.01, ge=0)
    text_weight: float = Field(default=1.0, ge=0)
    image_temperature: float = Field(default=0.05, gt=0)
    projection_dim: int = Field(default=PROJECTION_DIM, ge=1)

    @model_validator(mode="after")
    def _image_is_named(self) -> MCSEParams:
        if self.weight > 0 and self.image is None:
            raise ValueError("image is not given; name the image encoder, or set weight to 0")
        if self.weight == self.text_weight == 0:
            raise ValueError("every weight is 0, so there is nothing to train")
        return self


class MCSE(Objective[MCSEParams]):
    """L_text + λ L_img (Zhang et al. 2022, eqs. 3–4; METHODS §2)."""

    name = "mcse"
    Params = MCSEParams
    source = "MCSE (Zhang et al., NAACL 2022, arXiv 2204.10931)"

    @classmethod
    def features(cls, params: MCSEParams) -> dict[str, FeatureNeed]:
        if params.weight == 0:
            return {}
        return {"image": FeatureNeed("image", str(params.image), ("image",))}

    def heads(self, hidden: int, dims: Mapping[str, int]) -> nn.ModuleDict:
        heads = nn.ModuleDict()
        if "text" in self.weights:
            heads["text"] = text_head(hidden)
        if "image" in self.weights:
            heads["grounding"] = head(hidden, self.params.projection_dim)
            heads["image"] = head(dims["image"], self.params.projection_dim)
        return heads

    @property
    def weights(self) -> dict[str, float]:
        params = self.params
        of_average = params.weight if params.variant == "released" else params.weight / 2
        weights = {"text": params.text_weight, "image": of_average}
        return {term: weight for term, weight in weights.items() if weight > 0}

    def terms(self, batch: Batch, views: Views, heads: nn.ModuleDict) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = {}
        if "text" in self.weights:
            terms["text"] = text_term(views, heads["text"], self.params.temperature)
        if "image" in self.weights and batch.stream == "pairs":
            images = heads["image"](batch.features["image"])  # (N, 256)
            first, second = heads["grounding"](views.first), heads["grounding"](views.second)
            average = image_term(first, second, images, self.params.image_temperature)
            terms["image"] = average if self.params.variant == "released" else 2 * average
        return terms
