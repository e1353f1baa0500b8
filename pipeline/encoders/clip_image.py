"""The image tower of an open_clip model, with its published preprocessing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pipeline.encoders.clip_model import ClipModel, load_clip
from pipeline.encoders.frozen_model import FrozenModel
from pipeline.encoders.own_families import OpenClipConfig
from pipeline.encoders.preprocessing import ImagePreprocessing
from pipeline.encoders.protocols import EncoderIdentity
from sightline.devices import check_precision
from sightline.errors import SightlineError

_TEXT_MODULES = ("text", "text_decoder", "transformer", "token_embedding", "ln_final")


class ClipImageEncoder:
    """Images → projected CLIP features, not normalised. Build it with `build_image`."""

    def __init__(
        self, clip: ClipModel, config: OpenClipConfig, device: torch.device, precision: str
    ) -> None:
        self.preprocessing: ImagePreprocessing = preprocessing_of(clip)
        self.dim: int = clip.dim
        for name in _TEXT_MODULES:
            if isinstance(getattr(clip.model, name, None), torch.nn.Module):
                delattr(clip.model, name)
        self._frozen = FrozenModel(
            clip.model,
            device,
            precision,
            channels_last=config.channels_last,
            compiled=config.compile,
        )
        self.device = device
        self.identity: EncoderIdentity = self._frozen.identity(clip.identity)

    def encode(self, images: Tensor) -> Tensor:
        """float32 [n, 3, h, w] → float32 [n, dim] on `device`."""
        frozen = self._frozen
        # CoCa's towers normalise by default, which cannot be undone.
        rows: Tensor = frozen(frozen.model.encode_image, frozen.images(images), normalize=False)
        return rows.float()


def build_image(config: OpenClipConfig, device: torch.device, precision: str) -> ClipImageEncoder:
    """The image tower that `config` names, on `device`."""
    return ClipImageEncoder(load_clip(config), config, device, check_precision(precision))


def preprocessing_of(clip: ClipModel) -> ImagePreprocessing:
    """open_clip's evaluation transform for this model and these weights, on uint8 tensors."""
    cfg = clip.image_preprocessing
    size = cfg["size"]
    height, width = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    interpolation, mode = cfg["interpolation"], cfg["resize_mode"]
    if interpolation == "random":  # open_clip's name for "any"; it evaluates with bicubic
        interpolation = "bicubic"
    if interpolation not in ("bilinear", "bicubic"):
        raise SightlineError(
            f"{clip.identity.name}: interpolation {interpolation!r} in its preprocess_cfg; "
            "expected bilinear or bicubic"
        )
    if mode not in ("shortest", "longest", "squash"):
        raise SightlineError(
            f"{clip.identity.name}: resize_mode {mode!r} in its preprocess_cfg; "
            "expected shortest, longest or squash"
        )
    return ImagePreprocessing(
        resize=(height, width),
        crop=(height, width),
        interpolation=interpolation,
        mean=_triple(cfg["mean"]),
        std=_triple(cfg["std"]),
        resize_mode=mode,
        fill=int(cfg.get("fill_color", 0)),
    )


def _triple(value: Any) -> tuple[float, float, float]:
    values = [float(value)] * 3 if isinstance(value, int | float) else [float(v) for v in value]
    return values[0], values[1], values[2]
