"""What a frozen encoder is: two small protocols."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pipeline.encoders.preprocessing import ImagePreprocessing

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "EncoderIdentity",
    "ImageEncoder",
    "ImagePreprocessing",
    "TextEncoder",
]


@dataclass(frozen=True)
class EncoderIdentity:
    """Which model computed a row.

    Attributes:
        name: family and architecture, such as ``torchvision/resnet50`` or ``open_clip/ViT-B-32``.
        source: where the weights came from: ``random:0``, ``pretrained:laion2b_s34b_b79k``,
            ``file:clip.safetensors`` (a file name, never a path), followed by the sentence that
            a ``provenance.json`` beside the weights gives.
        revision: revision of that source where it has one (a commit, a file name), or empty.
        weights_sha256: digest of the state dict that was really loaded
            (`pipeline.encoders.weights.state_dict_sha256`).
        untrained: the weights are random; every report says so.
    """

    name: str
    source: str
    revision: str
    weights_sha256: str
    untrained: bool


class ImageEncoder(Protocol):
    """A frozen model from images to vectors.

    A row depends on its own image alone as long as the number of rows per call stays the same;
    floating-point sums change with that number, which is why it belongs to an extraction's plan.
    """

    @property
    def identity(self) -> EncoderIdentity: ...

    @property
    def dim(self) -> int: ...

    @property
    def preprocessing(self) -> ImagePreprocessing:
        """From a decoded image to the model's input. Picklable: it goes to worker processes."""
        ...

    def encode(self, images: Tensor) -> Tensor:
        """Features of a batch, not normalised.

        Args:
            images: float32 [n, 3, h, w] on the CPU, pinned or not, as `preprocessing` makes them.

        Returns:
            float32 [n, dim] on the CPU.
        """
        ...


class TextEncoder(Protocol):
    """A frozen model from texts to vectors. Rows are as independent as an `ImageEncoder`'s."""

    @property
    def identity(self) -> EncoderIdentity: ...

    @property
    def dim(self) -> int: ...

    @property
    def preprocessing(self) -> dict[str, object]:
        """What decides the model's input (tokenizer digest, lengths, pooling); JSON values."""
        ...

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """The padded length, in tokens, at which each text is computed.

        It depends on that text alone, so that texts of one length can share a batch.
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
