"""Objects: each mask becomes a cut-out, stored or not, and the cut-out an encoder's input."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pipeline.encoders.preprocessing import KERNEL, ImagePreprocessing, resize
from pipeline.extract.decode import ImageError, load_image
from pipeline.extract.settings import CutoutRules
from sightline.cache import CacheError, Place
from sightline.cache.cutout_identity import CROP_RULE, cutout_key
from sightline.cache.keys import Keys, as_keys
from sightline.cache.record import TableSpec
from sightline.cache.rle import decode_mask
from sightline.cache.table_sets import open_tables
from sightline.identity import identity

if TYPE_CHECKING:
    from torch import Tensor

    from pipeline.extract.inputs import CutoutEntry

SPEC = TableSpec(kind="cutouts", description={"format": "cutouts/2", "crop_rule": CROP_RULE})
"""What determines the content of stored cut-outs, besides their phrases."""

COMPOSE = "margin round the longer side, square, premultiplied alpha resized to the input"
"""How a cut-out becomes an input. Part of every object fingerprint: keep in sync with the code."""

_OPAQUE = 255


def cut_out(image: Tensor, mask: NDArray[np.bool_]) -> Tensor:
    """Cut an object out of its image, cropped to its mask.

    Args:
        image: uint8 [3, H, W].
        mask: bool [H, W].

    Returns:
        uint8 [4, h, w] of the mask's box: the image's own RGB (straight, not premultiplied), and
        the mask as alpha, 0 or 255.

    Raises:
        ImageError: ``mask_empty``.
    """
    import torch

    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        raise ImageError("mask_empty", "the mask has no pixels")
    box = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    alpha = torch.from_numpy(np.ascontiguousarray(mask[box])).unsqueeze(0)
    return torch.cat([image[:, *box], alpha.to(torch.uint8) * 255])


def to_png(cutout: Tensor) -> bytes:
    """A cut-out as a set stores it: uint8 [4, h, w] → RGBA PNG."""
    data = io.BytesIO()
    Image.fromarray(cutout.permute(1, 2, 0).contiguous().numpy(), "RGBA").save(data, "PNG")
    return data.getvalue()


def from_png(data: bytes) -> Tensor:
    """The cut-out that `to_png` wrote: uint8 [4, h, w]."""
    import torch

    with Image.open(io.BytesIO(data), formats=["PNG"]) as picture:
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


class Cutter:
    """Cuts objects out of their images, but for those whose picture is stored.

    Keeps the last decoded image, or why it cannot be, so that an image with many objects is read
    once: a plan keeps them together.
    """

    def __init__(self) -> None:
        self._place: tuple[Place, bytes] | None = None
        self._image: Tensor | ImageError

    def __call__(self, entry: CutoutEntry) -> Tensor:
        """The object as returned by `cut_out`: uint8 [4, h, w].

        Raises:
            ImageError: the codes of `load_image`; ``changed`` also if the cut-out's key does not
                match this image, mask and crop rule; ``mask_size`` if the sizes of mask and image
                differ, ``mask_damaged`` if it cannot be decoded, or ``mask_empty``.
        """
        if entry.png is not None:
            return from_png(entry.png)
        size, counts = list(entry.size), entry.counts
        if cutout_key(entry.image_key, size, counts, CROP_RULE) != entry.key:
            raise ImageError(
                "changed",
                "the cut-out's key does not match its image and mask under the crop rule "
                f"{CROP_RULE}; recreate the phrases",
            )
        place = entry.place, entry.image_key
        if self._place != place:
            self._place = place
            try:
                self._image = load_image(*place)
            except ImageError as error:
                self._image = error
        if isinstance(self._image, ImageError):
            raise self._image
        height, width = self._image.shape[1:]
        if entry.size != (height, width):
            raise ImageError(
                "mask_size",
                f"the mask is {entry.size[1]} × {entry.size[0]} and the image "
                f"{width} × {height} pixels; recreate the phrases",
            )
        try:
            mask = decode_mask(size, counts)
        except CacheError as error:
            raise ImageError("mask_damaged", str(error).removeprefix("mask: ")) from error
        return cut_out(self._image, mask)


@dataclass(frozen=True)
class CutoutPreprocessing:
    """Turns a cut-out into an encoder's input. Frozen, picklable, holds no model.

    The whole object is always in the input: there is no centre crop, which would cut off a
    standing person's head and feet.

    Attributes:
        image: the encoder's preprocessing of whole images; its input size, resize filter and
            normalisation also apply here.
    """

    channels: ClassVar[int] = 4

    image: ImagePreprocessing
    rules: CutoutRules

    @property
    def size(self) -> tuple[int, int]:
        """(h, w) of the input in pixels."""
        return self.image.size

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """(h, w) of the square that a cut-out of `height` × `width` is padded to, in pixels."""
        longer = max(height, width)
        edge = longer + 2 * round(self.rules.margin * longer)
        return edge, edge

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
        edge, _ = self.resized(height, width)
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
            torch.tensor(channels).view(3, 1, 1).to(pixels.device, non_blocking=True)
            for channels in (self.image.mean, self.image.std)
        )
        clear = (_OPAQUE - alpha).to(torch.float32).div_(_OPAQUE)
        # bicubic overshoots, by more in a bright channel than in alpha
        out.copy_(torch.minimum(colour, alpha)).div_(_OPAQUE)
        behind = {"white": 1.0, "black": 0.0}.get(self.rules.background, mean)
        return out.add_(clear * behind).sub_(mean).div_(std)

    def describe(self) -> dict[str, object]:
        """Everything that determines a pixel, as JSON values: part of the fingerprint."""
        return dict(  # where a name stands twice, this is an error
            decoder=self.image.decoder,
            cutout=CROP_RULE,
            compose=COMPOSE,
            **identity(self.rules),
            size=list(self.size),
            kernel=f"{self.image.interpolation}, {KERNEL}",
            mean=list(self.image.mean),
            std=list(self.image.std),
        )


def file_reader() -> Callable[[CutoutEntry], bytes]:
    """A function from an object to its cut-out as an RGBA PNG; it raises as `Cutter`."""
    cut = Cutter()
    return lambda entry: to_png(cut(entry)) if entry.png is None else entry.png


class StoredCutouts:
    """The cut-outs of a set, which stand in for the photographs of their objects.

    Args:
        folder: a published set of cut-outs.

    Raises:
        CacheError: missing, damaged, of another kind, or cut out by other rules.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        record, self._rows, _ = open_tables(folder, "cutouts")
        if record.spec != SPEC:
            raise CacheError(
                f"{folder}: its cut-outs follow {record.spec.description}, expected "
                f"{SPEC.description}; run its stage again"
            )

    def holds(self, keys: Keys) -> NDArray[np.bool_]:
        """Which of these objects are stored: bool [n]."""
        return self._rows.find(keys) >= 0

    def filled(self, entries: Sequence[CutoutEntry]) -> list[CutoutEntry]:
        """The entries, those that are stored with their pictures."""
        places = self._rows.find(as_keys([entry.key for entry in entries]))
        pictures = iter(self._rows.gather(places[places >= 0])["png"].to_pylist())
        return [
            entry._replace(png=next(pictures)) if row >= 0 else entry
            for row, entry in zip(places, entries, strict=True)
        ]
