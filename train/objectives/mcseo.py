"""MCSEO: MCSE, plus each phrase of a caption must find its own object among those of its image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sightline.cache.caption_choice import CaptionPolicy
from sightline.errors import SightlineError
from train.objectives.needs import FeatureNeed
from train.objectives.objective import GroundedObjective

if TYPE_CHECKING:
    from torch import Tensor, nn

    from train.batch import Batch, Embeddings


class MCSEO(GroundedObjective):
    """L_text + α L_img + β L_obj (Zhao et al. 2025, eqs. 5–8; METHODS §5).

    `object` is the mean over both views, and over the captions that have two phrases or more.

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

    def terms(
        self, heads: nn.ModuleDict, batch: Batch, embeddings: Embeddings
    ) -> dict[str, Tensor]:
        from train.losses import image_term, object_phrase_nce

        terms = self.text_term(heads, embeddings)
        if batch.stream == "text":
            return terms
        if self.image_weight > 0:
            images = heads["image"](batch.features_of("image", self.image))  # (N, 256)
            first, second = map(heads["grounding"], embeddings["sentences"])
            terms["image"] = image_term(first, second, images, self.image_temperature)
        if self.object_weight > 0:
            objects = heads["image"](batch.features_of("object", self.image))  # (P, 256)
            owners, temperature = batch.phrases.owners, self.object_temperature
            first, second = (
                object_phrase_nce(heads["grounding"](view), objects, owners, temperature)
                for view in embeddings["phrases"]
            )
            terms["object"] = (first + second) / 2
        return terms

    def statistics(self, batch: Batch) -> dict[str, Tensor]:
        """Phrases per caption, and the share of captions that contribute to the object term."""
        import torch

        if "phrases" not in batch.blocks:
            return {}
        return {
            "phrases_per_caption": torch.tensor(len(batch.phrases) / len(batch)),
            "captions_with_objects": torch.tensor(np.mean(contrasted(batch), dtype=np.float32)),
        }

    def warnings(self, batches: Iterable[Batch]) -> list[str]:
        """One line if no caption of the batches has two phrases: the object term is 0 then."""
        if self.object_weight == 0:
            return []
        count = 0
        for batch in batches:
            count += 1
            if contrasted(batch).any():
                return []
        return [
            f"no caption of the first {count} paired steps has two phrases with objects, so the "
            "object term is 0. Check the phrases, or set object_weight to 0"
        ]


def contrasted(batch: Batch) -> NDArray[np.bool_]:
    """Which captions have two phrases or more: bool [N]."""
    return batch.phrases.counts >= 2
