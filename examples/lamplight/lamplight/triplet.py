"""SimCSE, and on paired batches a triplet loss against another row; short captions come first."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, cosine_similarity, nn

from train.batch import Batch, Embeddings
from train.objectives import FeatureNeed, GroundedObjective
from train.rows import ExtraTexts, StreamRows


class Triplet(GroundedObjective):
    """L_text + λ mean_i [0.2 + cos(t_i, v'_i) + cos(t'_i, v_i) − 2 cos(t_i, v_i)]₊.

    Attributes:
        image: encoder whose features the images have.
    """

    name = "triplet"
    source = "a triplet loss beside SimCSE"

    image: str

    @property
    def features(self) -> list[FeatureNeed]:
        return [FeatureNeed("image", self.image, ("triplet",), head="image")]

    @property
    def weights(self) -> dict[str, float]:
        return {"text": self.text_weight, "triplet": 0.1}

    def extra_texts(self, rows: StreamRows) -> Mapping[str, ExtraTexts]:
        if rows.stream == "text":
            return {}
        others = np.random.default_rng(self.data_seed).permutation(len(rows))
        return {"others": rows.extra(others, [need.name for need in self.features])}

    def order(self, rows: StreamRows, pass_number: int, seed: int) -> NDArray[np.int64] | None:
        return None if pass_number else np.argsort([*map(len, rows.texts)], kind="stable")

    def terms(
        self, heads: nn.ModuleDict, batch: Batch, embeddings: Embeddings
    ) -> dict[str, Tensor]:
        terms = self.text_term(heads, embeddings)
        if batch.stream == "pairs":
            text, other = (heads["grounding"](embeddings[of][0]) for of in ("sentences", "others"))
            image, others = (
                heads["image"](batch.features_of("image", self.image, of=of))
                for of in (None, "others")
            )
            own = cosine_similarity(text, image)
            wrong = cosine_similarity(text, others) + cosine_similarity(other, image)
            terms["triplet"] = (0.2 + wrong - 2 * own).relu().mean()
        return terms
