"""MCSE: SimCSE, plus on paired batches each caption must find its image among the batch's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from train.batch import Batch
from train.objectives.objective import (
    Embeddings,
    FeatureNeed,
    GroundedObjective,
    GroundedParams,
    Heads,
    image_term,
    text_term,
)

if TYPE_CHECKING:
    from torch import Tensor


class MCSEParams(GroundedParams):
    """MCSE's parameters.

    Attributes:
        variant: which image term is logged: the sum over both views (`paper`, eq. 3) or their
            average (`released`). λ weights the average in both, as in the published runs: training
            is the same, the logged term is twice as large in `paper`.
        image: encoder of the image features.
        weight: λ.
        image_temperature: τ′ of the image term.
    """

    variant: Literal["paper", "released"] = "paper"
    image: str | None = Field(default=None, min_length=1)
    weight: float = Field(default=0.01, ge=0)
    image_temperature: float = Field(default=0.05, gt=0)

    @model_validator(mode="after")
    def _image_is_named(self) -> MCSEParams:
        if self.weight > 0 and self.image is None:
            raise ValueError("image is not given; name the image encoder, or set weight to 0")
        return self

    @property
    def every_weight(self) -> dict[str, float]:
        of_average = self.weight if self.variant == "released" else self.weight / 2
        return {"text": self.text_weight, "image": of_average}


class MCSE(GroundedObjective[MCSEParams]):
    """L_text + λ L_img (Zhang et al. 2022, eqs. 3–4; METHODS §2)."""

    name = "mcse"
    Params = MCSEParams
    source = "MCSE (Zhang et al., NAACL 2022, arXiv 2204.10931)"

    @property
    def features(self) -> list[FeatureNeed]:
        if self.params.image is None or self.params.weight == 0:
            return []
        return [FeatureNeed("image", self.params.image, ("image",), head="image")]

    def terms(self, batch: Batch, embeddings: Embeddings, heads: Heads) -> dict[str, Tensor]:
        sentences = embeddings["sentences"]
        terms: dict[str, Tensor] = {}
        if "text" in self.weights:
            terms["text"] = text_term(sentences, heads["text"], self.params.temperature)
        if "image" in self.weights and batch.stream == "pairs":
            images = heads["image"](batch.features_of("image", self.params.image))  # (N, 256)
            first, second = map(heads["grounding"], sentences)
            average = image_term(first, second, images, self.params.image_temperature)
            terms["image"] = average if self.params.variant == "released" else 2 * average
        return terms
