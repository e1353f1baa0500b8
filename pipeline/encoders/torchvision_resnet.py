"""torchvision's ResNets up to global average pooling (METHODS: 2048 values for ResNet-50)."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlparse

from pydantic import Field

from pipeline.encoders.config import OF_INPUT, ImageConfig
from pipeline.encoders.encoder import ImageEncoder
from pipeline.encoders.preprocessing import IMAGENET_MEAN, IMAGENET_STD, ImagePreprocessing
from pipeline.encoders.weights import (
    identity_of,
    load_exactly,
    read_state_dict,
    seeded,
    unknown_tag,
)
from sightline.errors import SightlineError
from sightline.models.pretrained import quiet, reaching
from sightline.optional_imports import require

if TYPE_CHECKING:
    import torch
    from torch import Tensor

RESNETS = ("resnet18", "resnet50", "resnet101", "resnet152")
_Pixels = Annotated[int, Field(ge=1, le=4096)]


class TorchvisionConfig(ImageConfig):
    """ResNets: images.

    Attributes:
        resize, crop: in pixels: shorter side, and side of the centre crop.
    """

    family: Literal["torchvision"]
    resize: Annotated[_Pixels | None, OF_INPUT] = None
    crop: Annotated[_Pixels | None, OF_INPUT] = None

    def build_image(self, device: torch.device, precision: str) -> ImageEncoder:
        """The ResNet, on `device`: images → its global average pooling.

        Loads only the trunk: a checkpoint's classifier, with any number of classes, is dropped.

        Raises:
            SightlineError: unknown model, unknown tag, or weights that do not fit or are
                unavailable.
        """
        from torch import nn

        from pipeline.encoders.frozen_model import FrozenModel

        if self.model not in RESNETS:
            raise SightlineError(
                f"unknown torchvision model {self.model!r}; available: {', '.join(RESNETS)}"
            )
        models = require("torchvision", "this encoder").models
        spec = self.weights_spec
        with seeded(spec.seed), quiet():
            model = models.get_model(self.model, weights=None)
        dim = model.fc.in_features
        model.fc = nn.Identity()
        revision = ""
        if spec.kind == "file":
            load_exactly(model, _trunk(read_state_dict(Path(spec.value))), spec.value, self.model)
        elif spec.kind == "pretrained":
            tag, revision, state = _published(models, self.model, spec.value)
            load_exactly(model, _trunk(state), f"pretrained:{tag}", self.model)
            spec = replace(spec, value=tag)
        identity = identity_of(model, f"torchvision/{self.model}", spec, revision)
        # Convolutions are 1.2 to 5 times as fast with channels last on a CPU, and rows stay
        # independent of their position in the batch.
        frozen = FrozenModel(model, device, precision, channels_last=True, compiled=self.compile)
        return frozen.image_encoder(identity, dim, _preprocessing(self))


def _trunk(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if not name.startswith("fc.")}


def _published(models: Any, model: str, tag: str) -> tuple[str, str, dict[str, Tensor]]:
    """(tag, file name, state dict) of published weights. Resolves the tag ``DEFAULT``."""
    import torch

    choices = models.get_model_weights(model)
    if tag not in choices.__members__:
        raise unknown_tag(model, tag, [*choices.__members__])
    weights = choices[tag]
    with reaching(model, f"weights {weights.name!r}"), quiet(), redirect_stdout(sys.stderr):
        # The file's name ends in a prefix of its SHA-256, which torch checks on download. torch
        # also reports the download on standard output, which is reserved for results.
        state = torch.hub.load_state_dict_from_url(
            weights.url, map_location="cpu", progress=False, check_hash=True, weights_only=True
        )
    return weights.name, PurePosixPath(urlparse(weights.url).path).stem, state


def _preprocessing(config: TorchvisionConfig) -> ImagePreprocessing:
    """METHODS §7: shorter side 256, centre crop 224, ImageNet mean and std, bilinear."""
    # If only one is given, it sets both: 64 means small images, not a patch of 256.
    resize = config.resize or config.crop or 256
    crop = config.crop or config.resize or 224
    if crop > resize:
        raise SightlineError(
            f"{config.model}: crop {crop} is larger than resize {resize}, which would frame every "
            "image in black; make crop at most resize"
        )
    return ImagePreprocessing(
        resize=(resize, resize),
        crop=(crop, crop),
        interpolation=config.interpolation or "bilinear",
        mean=config.mean or IMAGENET_MEAN,
        std=config.std or IMAGENET_STD,
    )
