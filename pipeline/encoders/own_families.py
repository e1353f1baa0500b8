"""Sightline's encoder families, with their parameters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from pipeline.encoders.encoder_config import EncoderConfig
from sightline.errors import SightlineError
from sightline.pooling_names import Pooling

if TYPE_CHECKING:
    import torch

    from pipeline.encoders.protocols import ImageEncoder, TextEncoder

_Pixels = Annotated[int, Field(ge=1, le=4096)]
_Triple = tuple[float, float, float]
_Interpolation = Literal["bilinear", "bicubic"]


class TorchvisionConfig(EncoderConfig):
    """ResNets: images.

    Attributes:
        resize, crop: in pixels: shorter side, and side of the centre crop.
        interpolation, mean, std: override the published values.
        compile: run the model with ``torch.compile``.
    """

    family: Literal["torchvision"]
    resize: _Pixels | None = None
    crop: _Pixels | None = None
    interpolation: _Interpolation | None = None
    mean: _Triple | None = None
    std: _Triple | None = None
    compile: bool = False

    def build_image(self, device: torch.device, precision: str) -> ImageEncoder:
        from pipeline.encoders import torchvision_resnet

        return torchvision_resnet.build_image(self, device, precision)


class OpenClipConfig(EncoderConfig):
    """Both towers of a CLIP: images and texts.

    Attributes:
        model: an open_clip name, or the path of a model config (JSON).
        interpolation, mean, std: override the published values.
        compile: run the model with ``torch.compile``.
        channels_last: the memory layout of images and convolutions, for towers made of these
            (ResNets are always run so).
    """

    family: Literal["open_clip"]
    interpolation: _Interpolation | None = None
    mean: _Triple | None = None
    std: _Triple | None = None
    compile: bool = False
    channels_last: bool = False

    def require_files(self) -> None:
        if self.model.endswith(".json") and not Path(self.model).is_file():
            raise SightlineError(
                f"{self.model}: no such file; expected the JSON of an open_clip model config"
            )
        super().require_files()

    def build_image(self, device: torch.device, precision: str) -> ImageEncoder:
        from pipeline.encoders import clip_image

        return clip_image.build_image(self, device, precision)

    def build_text(self, device: torch.device, precision: str) -> TextEncoder:
        from pipeline.encoders import clip_text

        return clip_text.build_text(self, device, precision)


class TransformersConfig(EncoderConfig):
    """A teacher: texts.

    Attributes:
        model: a folder or a hub name.
        weights: ``pretrained`` alone uses the folder's content or the hub's main branch, and
            ``pretrained:REVISION`` one revision of a hub name.
        pooling: ``cls``, the default, is the raw last layer at [CLS].
        max_length: in tokens; default: the encoder's own.
        compile: run the model with ``torch.compile``, once for each padded length.
    """

    family: Literal["transformers"]
    pooling: Pooling | None = None
    max_length: Annotated[int, Field(ge=2)] | None = None
    compile: bool = False

    def require_files(self) -> None:
        from sightline.pretrained import Pretrained

        Pretrained(self.model, self.weights_spec.revision)
        super().require_files()

    def build_text(self, device: torch.device, precision: str) -> TextEncoder:
        from pipeline.encoders import teacher

        return teacher.build_text(self, device, precision)
