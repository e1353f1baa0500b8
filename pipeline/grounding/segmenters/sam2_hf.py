"""The segmenter `sam2-hf`: SAM 2 with transformers' Sam2Model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Sam2Config, Sam2Model

from pipeline.encoders.config import parse_weights
from pipeline.encoders.weights import build_model
from pipeline.grounding.grounding_model import describe_weights
from pipeline.grounding.segmenters.prompted import Features, PromptedSegmenter
from pipeline.grounding.settings import Sam2HfSettings
from sightline.devices import check_precision
from sightline.errors import SightlineError
from sightline.pretrained import Pretrained

_KINDS = ("sam2", "sam2_video")
"""Published checkpoints are of the video model, which includes the image model."""


def build(settings: Sam2HfSettings, device: torch.device, precision: str) -> PromptedSegmenter:
    """SAM 2 as ``settings`` describe it, on ``device``.

    Raises:
        SightlineError: see `Pretrained`; or a checkpoint of a different model.
    """
    check_precision(precision)
    spec = parse_weights(settings.weights)
    source = Pretrained(settings.model, spec.revision)
    kind = source.config().model_type
    if kind not in _KINDS:
        raise SightlineError(
            f"{settings.model}: this is a checkpoint of {kind!r}, expected a SAM 2 "
            f"({' or '.join(map(repr, _KINDS))}); use one, such as facebook/sam2.1-hiera-large"
        )
    model = build_model(source, spec, Sam2Model, source.config(Sam2Config))
    identity = describe_weights(model, source, spec)
    return PromptedSegmenter(
        "sam2-hf", Sam2HfBackend(model.to(device)), identity, device, precision
    )


class Sam2HfBackend:
    """A `Sam2Model` of transformers; see `Backend`."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.image_size = int(model.config.prompt_encoder_config.image_size)

    def features(self, pixels: Tensor) -> Features:
        return list(self._model.get_image_embeddings(pixels))

    def logits(self, features: Features, boxes: Tensor) -> Tensor:
        output = self._model(
            image_embeddings=features, input_boxes=boxes[:, None], multimask_output=False
        )
        return output.pred_masks[:, 0, 0]
