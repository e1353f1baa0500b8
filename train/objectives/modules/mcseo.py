"""MCSEO's module."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from train.batch import Batch
from train.losses import object_phrase_nce
from train.objectives.mcseo import MCSEOParams
from train.objectives.modules.objective import Embeddings, GroundedObjective, image_term


class MCSEO(GroundedObjective[MCSEOParams]):
    """L_text + α L_img + β L_obj (Zhao et al. 2025, eqs. 5–8; METHODS §5).

    `object` is the mean over both views, and over the captions that have two phrases or more.
    """

    def forward(self, batch: Batch, embeddings: Embeddings) -> dict[str, Tensor]:
        params, sentences = self.params, embeddings["sentences"]
        terms: dict[str, Tensor] = {}
        if params.trains_on_text:
            terms["text"] = self.text_term(sentences)
        if batch.stream == "text":
            return terms
        if params.image_weight > 0:
            images = self.heads["image"](batch.features_of("image", params.image))  # (N, 256)
            first, second = map(self.heads["grounding"], sentences)
            terms["image"] = image_term(first, second, images, params.image_temperature)
        if params.object_weight > 0:
            objects = self.heads["image"](batch.features_of("object", params.image))  # (P, 256)
            phrases_to_objects, objects_to_phrases = (
                object_phrase_nce(
                    self.heads["grounding"](phrases),
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
        return {
            "phrases_per_caption": torch.tensor(len(batch.phrases) / len(batch)),
            "captions_with_objects": contrasted(batch).float().mean(),
        }

    def warnings(self, batches: Iterable[Batch]) -> list[str]:
        """One line if no caption of the batches has two phrases: the object term is 0 then."""
        if self.params.object_weight == 0:
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
    return torch.from_numpy(batch.phrases.counts >= 2)
