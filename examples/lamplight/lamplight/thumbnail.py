"""Images → a frozen projection of their thumbnails: what their layout alone is worth."""

from __future__ import annotations

from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor

from pipeline.encoders.config import EncoderConfig
from pipeline.encoders.encoder import ImageEncoder
from pipeline.encoders.preprocessing import ImagePreprocessing
from pipeline.encoders.weights import identity_of, load_exactly, read_state_dict, seeded
from sightline.devices import check_precision, computing
from sightline.errors import SightlineError

DIMS = {"small": 16, "large": 256}
"""The models there are, and the width of their features."""


class ThumbnailConfig(EncoderConfig):
    """A linear layer over a thumbnail.

    Attributes:
        side: of the thumbnail, in pixels.
    """

    side: int = Field(default=8, ge=1, le=64)

    def build_image(self, device: torch.device, precision: str) -> ImageEncoder:
        check_precision(precision)
        if self.model not in DIMS:
            raise SightlineError(
                f"unknown thumbnail model {self.model!r}; there are {', '.join(DIMS)}"
            )
        spec, size = self.weights_spec, (self.side, self.side)
        if spec.kind == "pretrained":
            raise SightlineError(
                "thumbnail: has no published weights; use file:PATH or random:SEED"
            )
        with seeded(spec.seed):
            layer = torch.nn.Linear(3 * self.side**2, DIMS[self.model])
        if spec.kind == "file":
            load_exactly(layer, read_state_dict(Path(spec.value)), spec.value, self.model)
        identity = identity_of(layer, f"thumbnail/{self.model}", spec)
        layer.eval().to(device)

        def encode(images: Tensor) -> Tensor:
            """float32 [n, 3, h, w] → float32 [n, dim], both on `device`, not normalised."""
            with computing(device, precision):
                return layer(images.flatten(1)).float()

        preprocessing = ImagePreprocessing(
            resize=size,
            crop=size,
            interpolation="bilinear",
            mean=(0.5, 0.5, 0.5),
            std=(0.5, 0.5, 0.5),
            resize_mode="squash",
        )
        return ImageEncoder(identity, DIMS[self.model], preprocessing, device, encode)
