"""The ellipse inside a box as its mask."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from pipeline.grounding.settings import SegmenterSettings


class EllipseSettings(SegmenterSettings):
    """The ellipse that touches the sides of the box.

    Attributes:
        scale: of its axes; below 1 it touches nothing.
    """

    scale: float = Field(default=1.0, gt=0, le=1)

    def build(self, device: torch.device, precision: str) -> EllipseSegmenter:
        return EllipseSegmenter(self.scale)


class EllipseSegmenter:
    """Every pixel whose centre lies in the ellipse."""

    name = "ellipse"

    def __init__(self, scale: float) -> None:
        self._scale = scale

    def describe(self) -> dict[str, object]:
        return {"family": self.name, "scale": self._scale}

    def segment(self, images: Sequence[Tensor], boxes: Sequence[Tensor]) -> list[Tensor]:
        return [self._fill(image, some) for image, some in zip(images, boxes, strict=True)]

    def _fill(self, image: Tensor, boxes: Tensor) -> Tensor:
        height, width = image.shape[1:]
        x0, y0, x1, y1 = boxes[:, :, None].unbind(dim=1)  # (k, 1) each
        across = (2 * (torch.arange(width) + 0.5) - x0 - x1) / (x1 - x0)  # (k, w), -1 to 1 inside
        down = (2 * (torch.arange(height) + 0.5) - y0 - y1) / (y1 - y0)  # (k, h)
        return down[:, :, None] ** 2 + across[:, None, :] ** 2 <= self._scale**2
