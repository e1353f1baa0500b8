"""The segmenter `box`: the rectangle itself is the mask. Needs no model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pipeline.grounding.settings import SegmenterSettings

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pipeline.grounding.protocols import Segmenter


class BoxSettings(SegmenterSettings):
    """The rectangle itself."""

    needs_device = False
    family: Literal["box"]

    def build(self, device: torch.device, precision: str) -> Segmenter:
        return BoxSegmenter()


class BoxSegmenter:
    """Every pixel whose centre is in the box."""

    name = "box"

    def describe(self) -> dict[str, object]:
        return {"family": self.name}

    def segment(self, images: Sequence[Tensor], boxes: Sequence[Tensor]) -> list[Tensor]:
        """See `Segmenter`. A box without any pixel centre has an empty mask."""
        return [_fill(image, image_boxes) for image, image_boxes in zip(images, boxes, strict=True)]


def _fill(image: Tensor, boxes: Tensor) -> Tensor:
    import torch

    height, width = image.shape[1:]
    x0, y0, x1, y1 = boxes.unbind(dim=1)  # (k,) each
    x, y = torch.arange(width) + 0.5, torch.arange(height) + 0.5
    across = (x >= x0[:, None]) & (x < x1[:, None])  # (k, w)
    down = (y >= y0[:, None]) & (y < y1[:, None])  # (k, h)
    return down[:, :, None] & across[:, None, :]
