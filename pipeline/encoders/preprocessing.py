"""From a decoded image to a model's input: resize, centre crop, normalise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

if TYPE_CHECKING:
    from torch import Tensor

ResizeMode = Literal["shortest", "longest", "squash"]
Interpolation = Literal["bilinear", "bicubic"]
_Side = Annotated[int, Field(ge=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

Mean = tuple[Finite, Finite, Finite]
Deviation = tuple[Positive, Positive, Positive]
"""Of the channels, of values in 0–1."""

DECODER = (
    "torchvision decode_image for JPEG and for PNG without transparency, Pillow for the rest; "
    "EXIF orientation applied; first frame; 16 bits scaled by 1/257; alpha composited on white"
)
"""How pixels come out of a file (`pipeline.extract.decode`). Part of every image fingerprint."""

KERNEL = "torch interpolate on uint8, antialias"
"""The resize kernel. Within one level of Pillow's; not the same bits."""

MAX_PIXELS = 89_478_485
"""The largest image that is decoded, in pixels: Pillow's own limit, 256 MiB of RGB."""

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def resize(image: Tensor, size: tuple[int, int], interpolation: Interpolation) -> Tensor:
    """uint8 [c, H, W] → uint8 [c, h, w] with (h, w) = ``size``, antialiased."""
    from torch.nn import functional

    if size == tuple(image.shape[-2:]):
        return image
    resized = functional.interpolate(
        image.unsqueeze(0), size=size, mode=interpolation, antialias=True, align_corners=False
    )
    return resized.squeeze(0)


@dataclass(frozen=True)
class ImagePreprocessing:
    """Resize, centre crop and normalisation of one model. Frozen, picklable, holds no model.

    Attributes:
        resize: target (h, w) in pixels of `resize_mode`.
        resize_mode: ``shortest`` scales until the image covers (h, w) and ``longest`` until it
            fits inside, both keeping its aspect ratio; ``squash`` makes it exactly (h, w).
        crop: (h, w) in pixels of the centre crop; a smaller image is padded with
            `fill` (0–255).
        interpolation: the resize filter, always with antialiasing.
        mean, std: per channel, of values in 0–1.
        decoder: how the pixels were decoded.
    """

    channels: ClassVar[int] = 3

    resize: tuple[_Side, _Side]
    crop: tuple[_Side, _Side]
    interpolation: Interpolation
    mean: Mean
    std: Deviation
    resize_mode: ResizeMode = "shortest"
    fill: Annotated[int, Field(ge=0, le=255)] = 0
    decoder: str = DECODER

    @property
    def size(self) -> tuple[int, int]:
        """(h, w) of the input in pixels."""
        return self.crop

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """(h, w) of an image of `height` × `width` after resizing, before cropping.

        Rounding follows torchvision's ``Resize`` for a square target and open_clip's
        ``ResizeKeepRatio`` for every other.
        """
        target_height, target_width = self.resize
        if self.resize_mode == "squash":
            return target_height, target_width
        if self.resize_mode == "shortest" and target_height == target_width:
            short, long = min(height, width), max(height, width)
            scaled = max(1, int(target_height * long / short))
            return (target_height, scaled) if height <= width else (scaled, target_height)
        ratios = (height / target_height, width / target_width)
        ratio = min(ratios) if self.resize_mode == "shortest" else max(ratios)
        return max(1, round(height / ratio)), max(1, round(width / ratio))

    def __call__(self, image: Tensor) -> Tensor:
        """uint8 [3, H, W] → float32 [3, h, w] with (h, w) = `crop`."""
        return self.normalised(self.fitted(image))

    def fitted(self, image: Tensor) -> Tensor:
        """Resize and crop: uint8 [3, H, W] → uint8 [3, h, w] with (h, w) = `crop`."""
        size = self.resized(image.shape[-2], image.shape[-1])
        return self._centre(resize(image, size, self.interpolation))

    def normalised(self, pixels: Tensor, out: Tensor | None = None) -> Tensor:
        """uint8 [..., 3, h, w] → float32 of this shape, in 0–1, minus `mean`, over `std`.

        Args:
            out: float32 of this shape, filled and returned.
        """
        import torch

        if out is None:
            out = torch.empty(pixels.shape, dtype=torch.float32, device=pixels.device)
        mean, std = (
            torch.tensor(channels).view(3, 1, 1).to(pixels.device, non_blocking=True)
            for channels in (self.mean, self.std)
        )
        return out.copy_(pixels).div_(255).sub_(mean).div_(std)

    def _centre(self, image: Tensor) -> Tensor:
        """The centre [3, h, w] of [3, H, W], padded where it is too small."""
        from torch.nn import functional

        sides: list[int] = []
        for size, target in zip(image.shape[:0:-1], self.crop[::-1], strict=True):
            padding = target - size  # on both sides together; to crop is to pad by less than 0
            before = padding // 2 if padding > 0 else -round(-padding / 2)
            sides += [before, padding - before]
        return functional.pad(image, sides, value=self.fill)

    def describe(self) -> dict[str, object]:
        """Everything that determines a pixel, as JSON values: part of the fingerprint."""
        return {
            "decoder": self.decoder,
            "resize": list(self.resize),
            "resize_mode": self.resize_mode,
            "kernel": f"{self.interpolation}, {KERNEL}",
            "crop": list(self.crop),
            "fill": self.fill,
            "mean": list(self.mean),
            "std": list(self.std),
        }
