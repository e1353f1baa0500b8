"""MCSEO: MCSE, plus each phrase of a caption must find its own object among those of its image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from sightline.cache.caption_choice import CaptionPolicy
from sightline.errors import SightlineError
from train.objectives.parameters import FeatureNeed, GroundedParams

if TYPE_CHECKING:
    from train.objectives.modules.mcseo import MCSEO


class MCSEOParams(GroundedParams):
    """MCSEO's parameters.

    Attributes:
        image: encoder of both image and object features; one head projects both.
        image_weight: weight α of the image term's average over the two views.
        object_weight: β, of the object term's average over the two views.
        image_temperature, object_temperature: τ of the two terms.
    """

    name: ClassVar[str] = "mcseo"
    source: ClassVar[str] = "MCSEO (Zhao et al. 2025, arXiv 2508.00332)"

    caption: CaptionPolicy = "longest"
    image: str = Field(min_length=1)
    image_weight: float = Field(default=0.01, ge=0)
    object_weight: float = Field(default=0.005, ge=0)
    image_temperature: float = Field(default=0.05, gt=0)
    object_temperature: float = Field(default=0.05, gt=0)

    @property
    def weights(self) -> dict[str, float]:
        return {
            "text": self.text_weight,
            "image": self.image_weight,
            "object": self.object_weight,
        }

    @property
    def features(self) -> list[FeatureNeed]:
        needs = (
            FeatureNeed("image", self.image, ("image",), head="image"),
            FeatureNeed("object", self.image, ("object",), head="image"),
        )
        return [need for need in needs if self.on([need.kind])]

    def check_widths(self, dims: Mapping[str, int]) -> None:
        widths = {need.kind: dims[need.name] for need in self.features}
        if len(set(widths.values())) > 1:
            raise SightlineError(
                f"objective mcseo: images are {widths['image']} wide and objects "
                f"{widths['object']}; both must come from one encoder ({self.image}), as "
                "one head projects both"
            )

    def build(self, hidden: int, dims: Mapping[str, int]) -> MCSEO:
        from train.objectives.modules.mcseo import MCSEO

        return MCSEO(self, hidden, dims)
