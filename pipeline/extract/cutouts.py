"""A cut-out, and its way to a model input: margin, square, one resize, background colour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import Field

from pipeline.encoders.preprocessing import KERNEL, ImagePreprocessing, resize
from sightline.cache import Place
from sightline.cache.rle import CROP_RULE
from sightline.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

Background = Literal["mean", "white", "black", "keep"]

COMPOSE = "margin round the longer side, square, premultiplied alpha resized to the input"
"""How a cut-out becomes an input. Part of every object fingerprint: keep in sync with the code."""

_OPAQUE = 255


class CutoutRules(Settings):
    """Options for turning a cut-out into an input.

    Attributes:
        margin: on every side, as a fraction of the longer side.
        background: what transparent pixels are composited on: the encoder's ``mean`` colour
            (which normalises to 0), ``white`` or ``black``. ``keep`` leaves the image's own
            pixels in the box; only what lies outside the box is the mean colour.
    """

    margin: float = Field(default=0.1, ge=0, le=1)
    background: Background = "mean"


@dataclass(frozen=True)
class CutoutPreprocessing:
    """Turns a cut-out into an encoder's input. Frozen, picklable, holds no model.

    The whole object is always in the input: there is no centre crop, which would cut off a
    standing person's head and feet.

    Attributes:
        image: the encoder's preprocessing of whole images; its input size, resize filter and
            normalisation also apply here.
    """

    image: ImagePreprocessing
    rules: CutoutRules

    @property
    def size(self) -> tuple[int, int]:
        """(h, w) of the input in pixels."""
        return self.image.crop

    def edge(self, height: int, width: int) -> int:
        """Edge in pixels of the square that a cut-out of `height` × `width` is padded to."""
        longer = max(height, width)
        return longer + 2 * round(self.rules.margin * longer)

    def __call__(self, cutout: Tensor) -> Tensor:
        """uint8 [4, H, W], straight → float32 [3, h, w]: `fitted`, then `normalised`."""
        return self.normalised(self.fitted(cutout))

    def fitted(self, cutout: Tensor) -> Tensor:
        """Premultiply a cut-out, pad it to a square and resize it.

        Resizing straight alpha would bleed the colours of transparent pixels into the object's
        edge.

        Args:
            cutout: uint8 [4, H, W], RGB (straight) and alpha, which is 0 or 255.

        Returns:
            uint8 [4, h, w], RGB premultiplied with alpha: black where transparent.
        """
        import torch
        from torch.nn import functional

        colour, alpha = cutout[:3], cutout[3:]
        if self.rules.background == "keep":
            alpha = torch.full_like(alpha, _OPAQUE)
        cutout = torch.cat([colour * (alpha > 0), alpha])
        height, width = cutout.shape[-2:]
        edge = self.edge(height, width)
        left, top = (edge - width) // 2, (edge - height) // 2
        square = functional.pad(cutout, [left, edge - width - left, top, edge - height - top])
        return resize(square, self.size, self.image.interpolation)

    def normalised(self, pixels: Tensor, out: Tensor | None = None) -> Tensor:
        """Compose on the background and normalise: uint8 [..., 4, h, w] → float32 [..., 3, h, w].

        Args:
            out: float32 [..., 3, h, w], filled and returned.
        """
        import torch

        colour, alpha = pixels[..., :3, :, :], pixels[..., 3:, :, :]
        if out is None:
            out = torch.empty(colour.shape, dtype=torch.float32, device=pixels.device)
        mean, std = (
            torch.tensor(each).view(3, 1, 1).to(pixels.device, non_blocking=True)
            for each in (self.image.mean, self.image.std)
        )
        clear = (_OPAQUE - alpha).to(torch.float32).div_(_OPAQUE)
        # bicubic overshoots, by more in a bright channel than in alpha
        out.copy_(torch.minimum(colour, alpha)).div_(_OPAQUE)
        return out.add_(clear * self._behind(mean)).sub_(mean).div_(std)

    def _behind(self, mean: Tensor) -> Tensor:
        """The colour behind the cut-out: float32 [3, 1, 1], 0–1."""
        import torch

        match self.rules.background:
            case "white":
                return torch.ones_like(mean)
            case "black":
                return torch.zeros_like(mean)
        return mean

    def describe(self) -> dict[str, object]:
        """Everything that determines a pixel, as JSON values: part of the fingerprint."""
        return {
            "decoder": self.image.decoder,
            "cutout": CROP_RULE,
            "compose": COMPOSE,
            **self.rules.model_dump(mode="json"),
            "size": list(self.size),
            "kernel": f"{self.image.interpolation}, {KERNEL}",
            "mean": list(self.image.mean),
            "std": list(self.image.std),
        }


class CutoutEntry(NamedTuple):
    """One object: its image and its mask, or its stored picture.

    Attributes:
        place: where the image is, or the set that stores the picture.
        key: key of the cut-out, from `sightline.cache.rle.cutout_key` (32 bytes).
        image_key: SHA-256 of the image's bytes (32 bytes).
        size: (height, width) of the mask in pixels.
        counts: COCO's compressed runs.
        png: the stored picture; None: cut it out of the image.
    """

    place: Place
    key: bytes
    image_key: bytes
    size: tuple[int, int]
    counts: str
    png: bytes | None = None
