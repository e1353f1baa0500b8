"""SimCSE, and on paired batches the hardest negatives of VSE++ between captions and images."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field
from torch import Tensor, nn

from train.batch import Batch, Embeddings
from train.losses import check_number, check_shapes, cosine_matrix, diagonal
from train.objectives import FeatureNeed, GroundedObjective


def hardest_negative_hinge(texts: Tensor, images: Tensor, margin: float = 0.2) -> Tensor:
    """Each text against the most similar wrong image, and each image against such a text.

        mean_i [m + max_{j≠i} cos(t_i, v_j) − cos(t_i, v_i)]₊
             + [m + max_{j≠i} cos(t_j, v_i) − cos(t_i, v_i)]₊

    The "max of hinges" of VSE++ (Faghri et al., BMVC 2018, arXiv 1707.05612).

    Args:
        texts: [N, d], of any norm.
        images: [N, d], row i is text i's.
        margin: m, at least 0.

    Returns:
        A scalar of at least 0; N = 1 gives 0.

    Raises:
        LossError: the shapes differ, a batch is empty, or the margin is below 0.
    """
    check_number("hardest_negative_hinge", "margin", margin, low=0)
    check_shapes("hardest_negative_hinge", texts=(texts, "nd"), images=(images, "nd"))
    scores = cosine_matrix(texts, images)  # (N, N)
    own, wrong = scores.diagonal(), scores.masked_fill(diagonal(scores), -math.inf)
    of_texts = (margin + wrong.amax(dim=1) - own).relu()
    of_images = (margin + wrong.amax(dim=0) - own).relu()
    return (of_texts + of_images).mean()


class Hardest(GroundedObjective):
    """L_text + λ times the average hinge over the two views.

    Attributes:
        image: encoder whose features the images have.
        weight: of the hinges.
        margin: m.
    """

    name: ClassVar[str] = "hardest"
    source: ClassVar[str] = "VSE++ (Faghri et al., BMVC 2018, arXiv 1707.05612) beside SimCSE"

    image: str = Field(min_length=1)
    weight: float = Field(default=0.05, ge=0)
    margin: float = Field(default=0.2, ge=0)

    @property
    def features(self) -> list[FeatureNeed]:
        if self.weight == 0:
            return []
        return [FeatureNeed("image", self.image, ("hinge",), head="image")]

    @property
    def weights(self) -> dict[str, float]:
        return {"text": self.text_weight, "hinge": self.weight}

    def terms(
        self, heads: nn.ModuleDict, batch: Batch, embeddings: Embeddings
    ) -> dict[str, Tensor]:
        terms = self.text_term(heads, embeddings)
        if self.weight > 0 and batch.stream == "pairs":
            images = heads["image"](batch.features_of("image", self.image))  # (N, 256)
            first, second = (
                hardest_negative_hinge(heads["grounding"](view), images, self.margin)
                for view in embeddings["sentences"]
            )
            terms["hinge"] = (first + second) / 2
        return terms
