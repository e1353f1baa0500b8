"""The segmenter `sam2-hf`: SAM 2 with transformers' Sam2Model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from pipeline.encoders.config import parse_weights
from pipeline.encoders.weights import build_model
from pipeline.grounding.grounding_model import describe_weights
from pipeline.grounding.segmenters.prompted import PromptedSegmenter
from pipeline.grounding.segmenters.sam2 import Sam2Settings
from pipeline.grounding.settings import DESCRIBED
from sightline.devices import check_precision
from sightline.errors import SightlineError
from sightline.models.pretrained import Pretrained

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pipeline.grounding.segmenters.prompted import Features

_KINDS = ("sam2", "sam2_video")
"""Published checkpoints are of the video model, which includes the image model."""


class Sam2HfSettings(Sam2Settings):
    """SAM 2 with transformers' Sam2Model, with the parameters of `Sam2Settings`.

    Attributes:
        model: folder, or hub name; weights of a file have its configuration.
    """

    family: Literal["sam2-hf"] = "sam2-hf"  # pyright: ignore[reportIncompatibleVariableOverride]
    model: Annotated[str, DESCRIBED] = Field(default="facebook/sam2.1-hiera-large", min_length=1)

    def build(self, device: torch.device, precision: str) -> PromptedSegmenter:
        """SAM 2 as they describe it, on ``device``.

        Raises:
            SightlineError: see `Pretrained`; or a checkpoint of a different model.
        """
        from transformers import Sam2Config, Sam2Model

        check_precision(precision)
        spec = parse_weights(self.weights)
        source = Pretrained(self.model, spec.revision)
        kind = source.config().model_type
        if kind not in _KINDS:
            raise SightlineError(
                f"{self.model}: this is a checkpoint of {kind!r}, expected a SAM 2 "
                f"({' or '.join(map(repr, _KINDS))}); use one, such as facebook/sam2.1-hiera-large"
            )
        model = build_model(source, spec, Sam2Model, source.config(Sam2Config))
        identity = describe_weights(model, source, spec)
        size = int(model.config.prompt_encoder_config.image_size)
        return Sam2HfSegmenter(model.to(device), size, identity, device, precision)


class Sam2HfSegmenter(PromptedSegmenter):
    """A `Sam2Model` of transformers."""

    name = "sam2-hf"

    def encode(self, pixels: Tensor) -> Features:
        return list(self.model.get_image_embeddings(pixels))

    def decode(self, features: Features, boxes: Tensor) -> Tensor:
        output = self.model(
            image_embeddings=features, input_boxes=boxes[:, None], multimask_output=False
        )
        return output.pred_masks[:, 0, 0]
