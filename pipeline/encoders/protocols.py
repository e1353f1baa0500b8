"""Two small protocols that define a frozen encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pipeline.encoders.preprocessing import ImagePreprocessing


@dataclass(frozen=True)
class EncoderIdentity:
    """The model that computed a row.

    Attributes:
        name: family and architecture, such as ``torchvision/resnet50`` or ``open_clip/ViT-B-32``.
        source: where the weights came from: ``random:0``, ``pretrained:laion2b_s34b_b79k``,
            ``file:clip.safetensors`` (a file name, never a path), followed by the sentence in a
            ``provenance.json`` beside the weights.
        revision: revision of that source if it has one (a commit, a file name), or empty.
        weights_sha256: digest of the state dict that was actually loaded
            (`pipeline.encoders.weights.state_dict_sha256`).
        untrained: the weights are random; every report says so.
        casts_weights: below fp32 the weights are cast once, instead of autocast; part of the
            fingerprint of such rows.
        options: how the model is run where that changes the last bits of a row, such as
            ``compiled``; part of the plan and of the record.
    """

    name: str
    source: str
    revision: str
    weights_sha256: str
    untrained: bool
    casts_weights: bool = False
    options: tuple[str, ...] = ()


class ImageEncoder(Protocol):
    """A frozen model that maps images to vectors.

    A row depends only on its own image as long as the number of rows per call is fixed;
    floating-point sums change with that number, so it is part of an extraction's plan.

    Attributes:
        preprocessing: turns a decoded image into the model's input. Picklable, for worker
            processes.
    """

    identity: EncoderIdentity
    dim: int
    preprocessing: ImagePreprocessing
    device: torch.device

    def encode(self, images: Tensor) -> Tensor:
        """Features of a batch, not normalised: float32 [n, 3, h, w] → float32 [n, dim].

        Both are on `device`; a GPU need not be waited for.
        """
        ...


class TextEncoder(Protocol):
    """A frozen model that maps texts to vectors. Rows are as independent as an `ImageEncoder`'s.

    Attributes:
        preprocessing: what determines the model's input (tokenizer digest, lengths, pooling); JSON
            values.
    """

    identity: EncoderIdentity
    dim: int
    preprocessing: dict[str, object]

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """The padded length, in tokens, at which each text is computed.

        It depends only on that text, so that texts of one length can share a batch.
        """
        ...

    def encode(self, texts: Sequence[str], length: int) -> Tensor:
        """Features of a batch, every text padded to `length` tokens, not normalised.

        Returns:
            float32 [n, dim] on the CPU.

        Raises:
            ValueError: a text needs more tokens than `length`.
        """
        ...
