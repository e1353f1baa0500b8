"""DALR's module."""

from __future__ import annotations

import torch
from torch import Tensor

from sightline.devices import to_device
from train.batch import Batch
from train.losses import (
    LossError,
    consistency_loss,
    cosine_matrix,
    cross_modal_alignment,
    kl_alignment,
    list_mle,
)
from train.objectives.dalr import NEEDS_IMAGES, DALRParams
from train.objectives.modules.objective import Embeddings, GroundedObjective, image_term


class DALR(GroundedObjective[DALRParams]):
    """L_text + w L_info + λ (L_cons + L_CMA) + μ (L_rank + L_IMA) (He et al. 2025; METHODS §4).

    All but `text` exist on paired batches. `image` is the mean over both views; the equations of
    `consistency` and `cross_modal` have one sentence embedding, which is the first view (as in the
    released code). `ranking` and `intra_modal` compare the first view with the second.
    """

    terms_of_text_head = ("text", "ranking", "intra_modal")

    def forward(self, batch: Batch, embeddings: Embeddings) -> dict[str, Tensor]:
        sentences = embeddings["sentences"]
        terms: dict[str, Tensor] = {}
        if batch.stream == "pairs":
            terms |= self._with_images(batch, sentences)
            terms |= self._of_texts(batch, sentences)
        if self.params.trains_on_text:
            terms["text"] = self.text_term(sentences)
        return {term: terms[term] for term in self.params.weights if term in terms}

    def _with_images(self, batch: Batch, sentences: Tensor) -> dict[str, Tensor]:
        """The terms in the grounded space."""
        params, terms = self.params, dict[str, Tensor]()
        if not params.on(NEEDS_IMAGES):
            return terms
        raw = batch.features_of("image", params.image)
        images = self.heads["image"](raw)  # (N, 256)
        first = self.heads["grounding"](sentences[0])  # (N, 256)
        if params.image_weight > 0:
            second = self.heads["grounding"](sentences[1])
            terms["image"] = image_term(first, second, images, params.image_temperature)
        if params.consistency_weight > 0:
            order = to_device(derangement(len(batch), batch.generator()), images.device)
            terms["consistency"] = consistency_loss(
                first, images, images[order], params.consistency_margin
            )
        if params.cross_modal_weight > 0:
            terms["cross_modal"] = cross_modal_alignment(
                first,
                images,
                self._mixed_features(batch),
                raw,
                params.target_temperature,
                params.student_temperature,
            )
        return terms

    def _of_texts(self, batch: Batch, sentences: Tensor) -> dict[str, Tensor]:
        """The terms on the text head's views: h_i against h′_j."""
        params, terms = self.params, dict[str, Tensor]()
        if not params.on(("ranking", "intra_modal")):
            return terms
        student = cosine_matrix(*map(self.heads["text"], sentences))  # (N, N)
        if params.ranking_weight > 0:
            # a separate generator, so that ties do not depend on which other terms are on
            terms["ranking"] = list_mle(
                student / params.ranking_temperature, self._mixed_cosines(batch), batch.generator()
            )
        if params.intra_modal_weight > 0:
            mixed = self._mixed_features(batch)
            terms["intra_modal"] = kl_alignment(
                cosine_matrix(mixed, mixed),
                student,
                params.target_temperature,
                params.student_temperature,
            )
        return terms

    def _mixed_features(self, batch: Batch) -> Tensor:
        """Σ weight × features of the teachers, [N, D]."""
        shares = [
            teacher.weight * batch.features_of(teacher.features, teacher.encoder)
            for teacher in self.params.mixed
        ]
        return sum(shares[1:], start=shares[0])

    def _mixed_cosines(self, batch: Batch) -> Tensor:
        """Σ weight × in-batch cosines of the teachers, [N, N]; their widths may differ."""
        shares = []
        for teacher in self.params.mixed:
            rows = batch.features_of(teacher.features, teacher.encoder)
            shares.append(teacher.weight * cosine_matrix(rows, rows))
        return sum(shares[1:], start=shares[0])


def derangement(rows: int, generator: torch.Generator) -> Tensor:
    """A random order in which no row keeps its place, for the mismatched images of DALR eq. 5.

    Every derangement is equally likely. A plain permutation leaves one row in place on average,
    and would treat that text's own image as a mismatch.

    Args:
        rows: N, at least 2.
        generator: The source of randomness; its state determines the result.

    Returns:
        [N] int64 on the generator's device: index the images with it.
    """
    if rows < 2:
        raise LossError(
            f"derangement: {rows} row(s) cannot all change places; "
            "omit the consistency term for a batch of one row"
        )
    places = torch.arange(rows, device=generator.device)
    while True:  # a permutation is a derangement with probability 1/e, at least 1/3
        order = torch.randperm(rows, generator=generator, device=generator.device)
        if not bool((order == places).any()):
            return order
