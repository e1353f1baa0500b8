"""MCSEO: MCSE, plus each phrase of a caption must find its own object among those of its image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pydantic import Field

from sightline.cache.caption_choice import CaptionPolicy
from sightline.errors import SightlineError
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


class MCSEOParams(GroundedParams):
    """MCSEO's parameters.

    Attributes:
        image: encoder of both image and object features; one head projects both.
        image_weight: α, of the image term's average over the two views.
        object_weight: β, of the object term's average over the two views.
        image_temperature, object_temperature: τ of the two terms.
    """

    caption: CaptionPolicy = "longest"
    image: str = Field(min_length=1)
    image_weight: float = Field(default=0.01, ge=0)
    object_weight: float = Field(default=0.005, ge=0)
    image_temperature: float = Field(default=0.05, gt=0)
    object_temperature: float = Field(default=0.05, gt=0)

    @property
    def every_weight(self) -> dict[str, float]:
        return {
            "text": self.text_weight,
            "image": self.image_weight,
            "object": self.object_weight,
        }


class MCSEO(GroundedObjective[MCSEOParams]):
    """L_text + α L_img + β L_obj (Zhao et al. 2025, eqs. 5–8; METHODS §5).

    `object` is the mean over both views, and over the captions that have two phrases or more.
    """

    name = "mcseo"
    Params = MCSEOParams
    source = "MCSEO (Zhao et al. 2025, arXiv 2508.00332)"

    @property
    def features(self) -> list[FeatureNeed]:
        needs = (
            FeatureNeed("image", self.params.image, ("image",), head="image"),
            FeatureNeed("object", self.params.image, ("object",), head="image"),
        )
        return [need for need in needs if need.kind in self.weights]

    def check_widths(self, dims: Mapping[str, int]) -> None:
        widths = {need.kind: dims[need.name] for need in self.features}
        if len(set(widths.values())) > 1:
            raise SightlineError(
                f"objective mcseo: images are {widths['image']} wide and objects "
                f"{widths['object']}; both must come from one encoder ({self.params.image}), as "
                "one head projects both"
            )

    def terms(self, batch: Batch, embeddings: Embeddings, heads: Heads) -> dict[str, Tensor]:
        from train.losses import object_phrase_nce

        params, sentences, terms = self.params, embeddings["sentences"], {}
        if "text" in self.weights:
            terms["text"] = text_term(sentences, heads["text"], params.temperature)
        if batch.stream == "text":
            return terms
        if "image" in self.weights:
            images = heads["image"](batch.features_of("image", params.image))  # (N, 256)
            first, second = map(heads["grounding"], sentences)
            terms["image"] = image_term(first, second, images, params.image_temperature)
        if "object" in self.weights:
            objects = heads["image"](batch.features_of("object", params.image))  # (P, 256)
            phrases_to_objects, objects_to_phrases = (
                object_phrase_nce(
                    heads["grounding"](phrases),
                    objects,
                    batch.phrases.owners,
                    params.object_temperature,
                )
                for phrases in embeddings["phrases"]
            )
            terms["object"] = (phrases_to_objects + objects_to_phrases) / 2
        return terms

    def statistics(self, batch: Batch) -> dict[str, Tensor]:
        """Phrases per caption, and the share of captions that contribute to the object term."""
        if "phrases" not in batch.blocks:
            return {}
        import torch

        return {
            "phrases_per_caption": torch.tensor(len(batch.phrases) / len(batch)),
            "captions_with_objects": contrasted(batch).float().mean(),
        }

    def warnings(self, batches: Iterable[Batch]) -> list[str]:
        """One line if no caption of the batches has two phrases: the object term is 0 then."""
        if "object" not in self.weights:
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


def contrasted(batch: Batch) -> Tensor:
    """Which captions have two phrases or more: bool [N], on the host."""
    import torch

    return torch.from_numpy(batch.phrases.counts >= 2)
