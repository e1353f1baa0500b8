"""MCSE's module."""

from __future__ import annotations

from torch import Tensor

from train.batch import Batch
from train.objectives.mcse import MCSEParams
from train.objectives.modules.objective import Embeddings, GroundedObjective, image_term


class MCSE(GroundedObjective[MCSEParams]):
    """L_text + λ L_img (Zhang et al. 2022, eqs. 3–4; METHODS §2)."""

    def forward(self, batch: Batch, embeddings: Embeddings) -> dict[str, Tensor]:
        params, sentences = self.params, embeddings["sentences"]
        terms: dict[str, Tensor] = {}
        if params.trains_on_text:
            terms["text"] = self.text_term(sentences)
        if params.weight > 0 and batch.stream == "pairs":
            images = self.heads["image"](batch.features_of("image", params.image))  # (N, 256)
            first, second = map(self.heads["grounding"], sentences)
            average = image_term(first, second, images, params.image_temperature)
            terms["image"] = average if params.variant == "released" else 2 * average
        return terms
