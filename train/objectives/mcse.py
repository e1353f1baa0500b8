"""MCSE: SimCSE, plus on paired batches each caption must find its image among the batch's."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from train.objectives.needs import FeatureNeed
from train.objectives.objective import GroundedObjective

if TYPE_CHECKING:
    from torch import Tensor, nn

    from train.batch import Batch, Embeddings


class MCSE(GroundedObjective):
    """L_text + λ L_img (Zhang et al. 2022, eqs. 3–4; METHODS §2).

    Attributes:
        variant: which image term is logged: the sum over both views (`paper`, eq. 3) or their
            average (`released`). λ weights the average in both, as in the published runs: training
            is the same, the logged term is twice as large in `paper`.
        image: encoder of the image features.
        weight: weight λ of the image term.
        image_temperature: temperature τ′ of the image term.
    """

    name: ClassVar[str] = "mcse"
    source: ClassVar[str] = "MCSE (Zhang et al., NAACL 2022, arXiv 2204.10931)"

    variant: Literal["paper", "released"] = "paper"
    image: str | None = Field(default=None, min_length=1)
    weight: float = Field(default=0.01, ge=0)
    image_temperature: float = Field(default=0.05, gt=0)

    @model_validator(mode="after")
    def _image_is_named(self) -> MCSE:
        if self.weight > 0 and self.image is None:
            raise ValueError("image is not given; name the image encoder, or set weight to 0")
        return self

    @property
    def weights(self) -> dict[str, float]:
        of_average = self.weight if self.variant == "released" else self.weight / 2
        return {"text": self.text_weight, "image": of_average}

    @property
    def features(self) -> list[FeatureNeed]:
        if self.image is None or self.weight == 0:
            return []
        return [FeatureNeed("image", self.image, ("image",), head="image")]

    def terms(
        self, heads: nn.ModuleDict, batch: Batch, embeddings: Embeddings
    ) -> dict[str, Tensor]:
        from train.losses import image_term

        terms = self.text_term(heads, embeddings)
        if self.weight > 0 and batch.stream == "pairs":
            images = heads["image"](batch.features_of("image", self.image))  # (N, 256)
            first, second = map(heads["grounding"], embeddings["sentences"])
            average = image_term(first, second, images, self.image_temperature)
            terms["image"] = average if self.variant == "released" else 2 * average
        return terms
