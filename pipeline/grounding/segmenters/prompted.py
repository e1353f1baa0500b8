"""Shared by SAM 2's two back ends: the model's input, boxes as prompts, and masks from logits.

The arithmetic around the model is that of `SAM2ImagePredictor` in Meta's code
(github.com/facebookresearch/sam2, `sam2_image_predictor.py` and `utils/transforms.py`): the image
squeezed to a square, one mask per box, logits resized to the image and thresholded at 0. Its
script predicts one image at a time; here all images of a call share one pass of the image encoder,
and all their boxes the passes of the mask decoder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pipeline.encoders.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from sightline.devices import computing

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Features = list[Tensor]
    """Feature maps of images, [n, c, h, w] each, the coarsest last."""

BOXES = 64
"""Boxes per pass of the mask decoder; high-resolution features take 10 MB per box."""

RULE = "squeezed to a square with antialiasing; one mask a box; logits above 0 at the image's size"
"""Processing around the model. Part of every fingerprint: keep in sync with the code."""

_PIXELS = 1 << 26  # of masks resized at once: 256 MiB of logits


class PromptedSegmenter(ABC):
    """Masks of boxes by a SAM 2; a subclass runs the model of one library.

    Args:
        model: in evaluation mode, on ``device``.
        image_size: edge of its square input, in pixels.
        identity: what determines a mask, JSON values.

    Attributes:
        name: the family.
    """

    name: str

    def __init__(
        self,
        model: Any,
        image_size: int,
        identity: dict[str, object],
        device: torch.device,
        precision: str,
    ) -> None:
        self.model, self.image_size = model, image_size
        self._identity = identity
        self._device = device
        self._precision = precision

    @abstractmethod
    def encode(self, pixels: Tensor) -> Features:
        """Feature maps of float32 [n, 3, s, s]."""

    @abstractmethod
    def decode(self, features: Features, boxes: Tensor) -> Tensor:
        """Logits [k, h, w] of one mask for each box.

        Args:
            features: of each box's image, k rows.
            boxes: float32 [k, 4], x0, y0, x1, y1 in pixels of the model's input.
        """

    def describe(self) -> dict[str, object]:
        # where a name stands twice, this is an error
        return dict(family=self.name, rule=RULE, **self._identity, precision=self._precision)

    def segment(self, images: Sequence[Tensor], boxes: Sequence[Tensor]) -> list[Tensor]:
        """See `Segmenter`. Images without boxes cost nothing."""
        import torch

        logits = iter(self.logits(images, boxes))
        masks = []
        for image, image_boxes in zip(images, boxes, strict=True):
            height, width = image.shape[1:]
            if len(image_boxes):
                parts = next(logits).split(max(1, _PIXELS // (height * width)))
                masks.append(torch.cat([_at_size(part, height, width) for part in parts]))
            else:
                masks.append(torch.zeros(0, height, width, dtype=torch.bool))
        return masks

    def logits(self, images: Sequence[Tensor], boxes: Sequence[Tensor]) -> list[Tensor]:
        """Logits float32 [k, s/4, s/4] on the device, for each image that has a box."""
        import torch

        size = self.image_size
        counts = [len(image_boxes) for image_boxes in boxes if len(image_boxes)]
        if not counts:
            return []
        prompts = torch.cat([_to_input(i, b, size) for i, b in zip(images, boxes, strict=True)])
        owners = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        with computing(self._device, self._precision):
            prompted = [image for image, part in zip(images, boxes, strict=True) if len(part)]
            pixels = torch.stack([model_input(image.to(self._device), size) for image in prompted])
            features = self.encode(pixels)
            parts = []
            for rows, part in zip(owners.split(BOXES), prompts.split(BOXES), strict=True):
                index = rows.to(self._device)
                maps = [level[index] for level in features]
                parts.append(self.decode(maps, part.to(self._device)).float())
        return list(torch.cat(parts).split(counts))


def model_input(image: Tensor, size: int) -> Tensor:
    """uint8 [3, h, w] → float32 [3, size, size], normalised; the aspect ratio is not kept."""
    import torch
    from torch.nn import functional

    pixels = functional.interpolate(
        image[None].float() / 255, (size, size), mode="bilinear", antialias=True
    )[0]
    mean, std = (
        torch.tensor(values, device=image.device)[:, None, None]
        for values in (IMAGENET_MEAN, IMAGENET_STD)
    )
    return (pixels - mean) / std


def _to_input(image: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Boxes in pixels of the image → in pixels of the model's input."""
    import torch

    height, width = image.shape[1:]
    return boxes / torch.tensor([width, height, width, height]) * size


def _at_size(logits: Tensor, height: int, width: int) -> Tensor:
    """Logits [k, h, w] of the model → masks bool [k, height, width] on the CPU."""
    from torch.nn import functional

    whole = functional.interpolate(
        logits[:, None], (height, width), mode="bilinear", align_corners=False
    )
    return (whole[:, 0] > 0).cpu()
