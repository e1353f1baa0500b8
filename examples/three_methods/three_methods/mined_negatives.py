"""Hard negatives that a cached teacher finds: each caption's nearest one of another image."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from train.batch import Batch, Embeddings
from train.losses import cosine_matrix
from train.objectives import FeatureNeed, Objective
from train.rows import ExtraTexts, StreamRows

HARD = "hard_negatives"


class MinedNegatives(Objective):
    """Each sentence finds its second view among the batch's and among all hard negatives.

        mean_i −log( exp(cos(h_i, h′_i)/τ) / Σ_j (exp(cos(h_i, h′_j)/τ) + exp(cos(h_i, n_j)/τ)) )

    Plain sentences have no hard negatives, which leaves SimCSE's term. The teacher's cosine between
    a sentence and its negative is logged (`hardness`).

    Attributes:
        teacher: whose embeddings of the captions say which are near.
        too_near: cosine from which a caption counts as a paraphrase, not as a negative.
    """

    name: ClassVar[str] = "mined-negatives"
    source: ClassVar[str] = (
        "supervised SimCSE's hard negatives (Gao et al. 2021, eq. 5), mined as ANCE does (Xiong et "
        "al., ICLR 2021, arXiv 2007.00808)"
    )

    teacher: str = Field(min_length=1)
    too_near: float = Field(default=0.95, gt=-1, le=1)

    @property
    def features(self) -> list[FeatureNeed]:
        return [FeatureNeed("teacher", self.teacher, ("text",))]

    @property
    def weights(self) -> dict[str, float]:
        return {"text": 1.0}

    def extra_texts(self, rows: StreamRows) -> dict[str, ExtraTexts]:
        if rows.stream != "pairs":
            return {}
        need = self.features[0].name
        return {HARD: rows.extra(nearest_negatives(rows, need, self.too_near), [need])}

    def terms(
        self, heads: nn.ModuleDict, batch: Batch, embeddings: Embeddings
    ) -> dict[str, Tensor]:
        first, second = map(heads["text"], embeddings["sentences"])  # (N, d)
        logits = cosine_matrix(first, second)
        if HARD in embeddings:
            negatives = heads["text"](embeddings[HARD][0])
            logits = torch.cat([logits, cosine_matrix(first, negatives)], dim=1)
        own = torch.arange(len(logits), device=logits.device)
        return {"text": cross_entropy(logits / self.temperature, own)}

    def statistics(self, batch: Batch) -> dict[str, Tensor]:
        if HARD not in batch.blocks:
            return {}
        sides = (batch.features_of("teacher", self.teacher, of) for of in (None, HARD))
        return {"hardness": torch.cosine_similarity(*sides).mean()}


def nearest_negatives(rows: StreamRows, name: str, too_near: float) -> NDArray[np.int64]:
    """For each caption the most similar one of another image, below ``too_near``: int64 [n].

    Cosines have four decimals before they are compared, and the first of equal ones is taken, so
    every machine finds the same.
    """
    assert rows.images is not None
    numbers = np.arange(len(rows))
    unit = rows.features(name, numbers).astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    _, image = np.unique(rows.images, axis=0, return_inverse=True)
    nearest = np.empty(len(rows), dtype=np.int64)
    for start in range(0, len(rows), 1024):
        part = numbers[start : start + 1024]
        cosines = np.round(unit[part] @ unit.T, 4)
        of_own_image = image.ravel()[part][:, None] == image.ravel()[None]
        cosines[of_own_image | (cosines >= too_near)] = -2
        nearest[part] = cosines.argmax(axis=1)
    return nearest
