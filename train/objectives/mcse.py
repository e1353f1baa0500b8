"""MCSE: SimCSE, and on paired batches each caption finds its image among the batch's images."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field
from torch import Tensor, nn

from train.data import Batch
from train.losses import info_nce
from train.objectives.base import (
    PROJECTION_DIM,
    FeatureNeed,
    Objective,
    ObjectiveParams,
    Views,
    head,
    text_head,
)


class MCSEParams(ObjectiveParams):
    """MCSE's parameters.

    Attributes:
        image: encoder whose features the images have.
        weight: λ of the image term's **average** over the two views (the paper's eq. 3 sums them).
        image_temperature: τ′ of the image term.
        projection_dim: width of the grounding and image heads.
    """

    image: str
    weight: float = Field(default=0.01, ge=0)
    image_temperature: float = Field(default=0.05, gt=0)
    projection_dim: int = Field(default=PROJECTION_DIM, ge=1)


class MCSE(Objective[MCSEParams]):
    """L_text + λ L_img (Zhang et al. 2022, eqs. 3–4; METHODS §2)."""

    name = "mcse"
    Params = MCSEParams
    source = "MCSE (Zhang et al., NAACL 2022, arXiv 2204.10931)"

    @classmethod
    def features(cls, params: MCSEParams) -> dict[str, FeatureNeed]:
        return {"image": FeatureNeed("image", params.image)}

    def heads(self, hidden: int, dims: Mapping[str, int]) -> nn.ModuleDict:
        width = self.params.projection_dim
        return nn.ModuleDict(
            {
                "text": text_head(hidden),
                "grounding": head(hidden, width),
                "image": head(dims["image"], width),
            }
        )

    @property
    def weights(self) -> dict[str, float]:
        return {"text": 1.0, "image": self.params.weight}

    def terms(self, batch: Batch, views: Views, heads: nn.ModuleDict) -> dict[str, Tensor]:
        text = heads["text"]
        terms = {"text": info_nce(text(views.first), text(views.second), self.params.temperature)}
        if batch.stream == "pairs":
            images = heads["image"](batch.features["image"])  # (N, 256)
            grounding = heads["grounding"]
            of_views = [
                info_nce(grounding(view), images, self.params.image_temperature)
                for view in (views.first, views.second)
            ]
            terms["image"] = (of_views[0] + of_views[1]) / 2
        return terms
