"""Terms of two papers in one objective: MCSE's image term, and KDMCSE's of a teacher's captions.

    python examples/combined_terms.py demo/data

`make demo` fills that folder. Images are a ResNet's, the teacher is a CLIP; both terms see the
sentences through one head, and each can have other encoders, weights and losses.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

from pydantic import Field
from torch import Tensor, nn

import sightline as sl
from train.batch import Batch, Embeddings
from train.losses import adaptive_margin_nce, cosine_matrix, image_term
from train.objectives import FeatureNeed, GroundedObjective


class ImagesAndTeacher(GroundedObjective):
    """L_text + λ (L_img + L_t): MCSE's eq. 3, KDMCSE's eq. 13 over a teacher's text features.

    Attributes:
        image, text: encoders of the image features and of the teacher's text features.
        weight: λ.
        margin: of L_t, radians.
    """

    name: ClassVar[str] = "images-and-teacher"
    source: ClassVar[str] = "L_img of MCSE (arXiv 2204.10931) and L_t of KDMCSE (arXiv 2403.17486)"

    image: str = Field(min_length=1)
    text: str = Field(min_length=1)
    weight: float = Field(default=1.0, gt=0)
    margin: float = Field(default=0.125, ge=0)

    @property
    def features(self) -> list[FeatureNeed]:
        return [
            FeatureNeed("image", self.image, ("image",), head="image"),
            FeatureNeed("text", self.text, ("teacher_text",), head="teacher_text"),
        ]

    @property
    def weights(self) -> dict[str, float]:
        return {"text": self.text_weight, "image": self.weight, "teacher_text": self.weight}

    def terms(
        self, heads: nn.ModuleDict, batch: Batch, embeddings: Embeddings
    ) -> dict[str, Tensor]:
        terms = self.text_term(heads, embeddings)
        if batch.stream == "pairs":
            views = [heads["grounding"](view) for view in embeddings["sentences"]]  # (N, 256)
            images = heads["image"](batch.features_of("image", self.image))  # (N, 256)
            terms["image"] = image_term(*views, images)
            captions = batch.features_of("text", self.text)  # (N, D)
            alike, keys = cosine_matrix(captions, captions), heads["teacher_text"](captions)
            first, second = (adaptive_margin_nce(view, keys, alike, self.margin) for view in views)
            terms["teacher_text"] = (first + second) / 2
        return terms


def main(folder: Path) -> None:
    # a package uses an entry point instead
    sl.OBJECTIVES.places[ImagesAndTeacher.name] = "combined_terms:ImagesAndTeacher"
    parameters = {"image": "resnet", "text": "clip", "caption": "all"}
    objective = sl.make_objective(ImagesAndTeacher.name, parameters)
    pairs = folder / "datasets/scenes"
    summary = sl.train_model(
        objective,
        pairs / "student",
        "combined/run",
        tokens=folder / "tokens/scenes-bert",
        pairs=pairs,
        sentences=pairs,
        features={
            need.name: sl.FeatureSet.open(folder / "features/scenes" / need.kind / need.encoder)
            for need in objective.features
        },
        dev=pairs / "similarity/dev.tsv",
        batch_size=64,
        learning_rate=2e-3,
        max_steps=180,
        eval_steps=90,
    )
    print(f"dev {max(score for _, score in summary.dev_history):.2f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
