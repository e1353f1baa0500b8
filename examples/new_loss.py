"""A new loss: SigLIP's, between sentences and images, beside SimCSE's; trained on drawings.

    python examples/new_loss.py

It draws its data and takes under a minute.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, normalize

import sightline as sl
from train.batch import Batch, Embeddings
from train.objectives import FeatureNeed, GroundedObjective


def sigmoid_loss(texts: Tensor, images: Tensor, scale: float = 10.0, bias: float = -5.0) -> Tensor:
    """Every pair of a text and an image on its own: is it a match or not?

        −1/N Σᵢⱼ log σ(zᵢⱼ (s cos(tᵢ, vⱼ) + b)),  zᵢⱼ = 1 if i = j, else −1

    SigLIP (Zhai et al., ICCV 2023, arXiv 2303.15343), equation 1, with a fixed scale and bias.

    Args:
        texts, images: [N, d]; row i of one belongs to row i of the other.

    Returns:
        A scalar.
    """
    logits = scale * normalize(texts, dim=1) @ normalize(images, dim=1).T + bias  # (N, N)
    matches = 2 * torch.eye(len(logits), device=logits.device) - 1
    return -logsigmoid(matches * logits).sum() / len(logits)


class Sigmoid(GroundedObjective):
    """L_text + λ times the average loss over the two views.

    Attributes:
        image: encoder of the image features.
        weight: of the loss.
        scale: s.
    """

    name: ClassVar[str] = "sigmoid"
    source: ClassVar[str] = "SigLIP (Zhai et al., ICCV 2023, arXiv 2303.15343) beside SimCSE"

    image: str = Field(min_length=1)
    weight: float = Field(default=0.1, gt=0)
    scale: float = Field(default=10.0, gt=0)

    @property
    def features(self) -> list[FeatureNeed]:
        return [FeatureNeed("image", self.image, ("sigmoid",), head="image")]

    @property
    def weights(self) -> dict[str, float]:
        return {"text": self.text_weight, "sigmoid": self.weight}

    def terms(
        self, heads: nn.ModuleDict, batch: Batch, embeddings: Embeddings
    ) -> dict[str, Tensor]:
        terms = self.text_term(heads, embeddings)
        if batch.stream == "pairs":
            images = heads["image"](batch.features_of("image", self.image))  # (N, 256)
            first, second = (
                sigmoid_loss(heads["grounding"](view), images, self.scale)
                for view in embeddings["sentences"]
            )
            terms["sigmoid"] = (first + second) / 2
        return terms


def main() -> None:
    sl.OBJECTIVES.places["sigmoid"] = "new_loss:Sigmoid"  # a package uses an entry point instead
    small = {"train_pairs": 60, "dev_pairs": 60, "test_pairs": 60, "student_hidden": 32}
    steps = {"resnet_steps": 5, "clip_steps": 0, "teacher_steps": 0}
    data = sl.prepare_dataset("scenes", "loss/data", scenes=60, sentences=60, **small, **steps)
    resnet = sl.named_encoder("resnet18", "file:loss/data/encoders/resnet.safetensors")
    images = sl.extract_features(data, resnet, "loss/features")
    sl.tokenize(data.texts, "loss/data/student", 32, "loss/tokens")
    summary = sl.train_model(
        sl.make_objective("sigmoid", {"image": "resnet"}),
        "loss/data/student",
        "loss/run",
        tokens="loss/tokens",
        pairs=data.folder,
        features={"image-resnet": images},
        dev="loss/data/similarity/dev.tsv",
        max_steps=20,
        eval_steps=10,
        logging_steps=5,
        batch_size=16,
    )
    for entry in summary.log:
        print(entry)


if __name__ == "__main__":
    main()
