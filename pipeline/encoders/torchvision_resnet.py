"""torchvision's ResNets up to global average pooling (METHODS: 2048 values for ResNet-50)."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlparse

import torch
from torch import Tensor, nn

from pipeline.encoders.config import TorchvisionConfig
from pipeline.encoders.frozen_model import FrozenModel
from pipeline.encoders.preprocessing import IMAGENET_MEAN, IMAGENET_STD, ImagePreprocessing
from pipeline.encoders.protocols import EncoderIdentity
from pipeline.encoders.weights import (
    describe_source,
    load_exactly,
    read_state_dict,
    seeded,
    state_dict_sha256,
)
from sightline.devices import check_precision
from sightline.errors import SightlineError
from sightline.extras import require
from sightline.loading import quiet, reaching

DIMS = {"resnet18": 512, "resnet50": 2048, "resnet101": 2048, "resnet152": 2048}
"""The available models, and the width of their pooled features."""


class ResNetEncoder:
    """Images → the output of a ResNet's global average pooling. Build it with `build_image`."""

    def __init__(
        self,
        identity: EncoderIdentity,
        preprocessing: ImagePreprocessing,
        dim: int,
        frozen: FrozenModel,
    ) -> None:
        self.identity = frozen.identity(identity)
        self.preprocessing = preprocessing
        self.dim = dim
        self.device = frozen.device
        self._frozen = frozen

    def encode(self, images: Tensor) -> Tensor:
        """float32 [n, 3, h, w] → float32 [n, dim] on `device`."""
        return self._frozen(self._frozen.model, self._frozen.images(images)).float()


def build_image(config: TorchvisionConfig, device: torch.device, precision: str) -> ResNetEncoder:
    """The ResNet that `config` names, on `device`.

    Loads only the trunk: a checkpoint's classifier, with any number of classes, is dropped.

    Raises:
        SightlineError: unknown model, unknown tag, or weights that do not fit or are unavailable.
    """
    check_precision(precision)
    if config.model not in DIMS:
        raise SightlineError(
            f"unknown torchvision model {config.model!r}; available: {', '.join(DIMS)}"
        )
    models = require("torchvision", "this encoder").models
    spec = config.weights_spec
    with seeded(spec.seed if spec.kind == "random" else 0), quiet():
        model: nn.Module = getattr(models, config.model)(weights=None)
    model.fc = nn.Identity()
    tag = revision = ""
    if spec.kind == "file":
        path = Path(spec.value)
        load_exactly(model, _trunk(read_state_dict(path)), str(path), config.model)
    elif spec.kind == "pretrained":
        tag, revision, state = _published(models, config.model, spec.value)
        load_exactly(model, _trunk(state), f"pretrained:{tag}", config.model)
    identity = EncoderIdentity(
        name=f"torchvision/{config.model}",
        source=describe_source(spec, tag),
        revision=revision,
        weights_sha256=state_dict_sha256(model.state_dict()),
        untrained=spec.kind == "random",
    )
    # Convolutions are 1.2 to 5 times as fast with channels last on a CPU, and rows stay
    # independent of their position in the batch.
    frozen = FrozenModel(model, device, precision, channels_last=True, compiled=config.compile)
    return ResNetEncoder(identity, _preprocessing(config), DIMS[config.model], frozen)


def _trunk(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if not name.startswith("fc.")}


def _published(models: Any, model: str, tag: str) -> tuple[str, str, dict[str, Tensor]]:
    """(tag, file name, state dict) of published weights. Resolves the tag ``DEFAULT``."""
    choices = models.get_model_weights(model)
    if tag not in choices.__members__:
        there = ", ".join(choices.__members__)
        found = f"has no weights {tag!r}" if tag else "needs the tag of its weights"
        raise SightlineError(f"{model} {found}; use pretrained: with one of {there}")
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
