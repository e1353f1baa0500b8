"""Objects: each mask becomes a cut-out, stored or not, and the cut-out an encoder's input."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pipeline.encoders.preprocessing import MAX_PIXELS
from pipeline.extract.cutouts import CutoutEntry, CutoutPreprocessing
from pipeline.extract.decode import ImageError, load_image
from sightline.cache import CacheError, Place
from sightline.cache.keys import Keys, as_keys
from sightline.cache.record import TableSpec
from sightline.cache.rle import CROP_RULE, cutout_key, decode_mask
from sightline.cache.sets import open_tables

if TYPE_CHECKING:
    from torch import Tensor

SPEC = TableSpec(kind="cutouts", description={"format": "cutouts/2", "crop_rule": CROP_RULE})
"""What determines the content of stored cut-outs, besides their phrases."""


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

    with Image.open(io.BytesIO(data)) as picture:
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


class Cutter:
    """Cuts objects out of their images.

    Keeps the last decoded image, so that an image with many objects is decoded once: a plan keeps
    them together.

    Args:
        max_pixels: largest width × height of an image.
    """

    def __init__(self, max_pixels: int = MAX_PIXELS) -> None:
        self._max_pixels = max_pixels
        self._last: tuple[tuple[Place, bytes], Tensor | ImageError] | None = None

    def __call__(self, entry: CutoutEntry) -> Tensor:
        """The object as returned by `cut_out`: uint8 [4, h, w].

        Raises:
            ImageError: the codes of `load_image`; ``changed`` also if the cut-out's key does not
                match this image, mask and crop rule; ``mask_size`` if the sizes of mask and image
                differ, ``mask_damaged`` if it cannot be decoded, or ``mask_empty``.
        """
        size, counts = list(entry.size), entry.counts
        if cutout_key(entry.image_key, size, counts, CROP_RULE) != entry.key:
            raise ImageError(
                "changed",
                "the cut-out's key does not match its image and mask under the crop rule "
                f"{CROP_RULE}; recreate the phrases",
            )
        image = self._image(entry.place, entry.image_key)
        height, width = image.shape[1:]
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
        return cut_out(image, mask)

    def _image(self, place: Place, key: bytes) -> Tensor:
        """The decoded image, or its error."""
        if self._last is None or self._last[0] != (place, key):
            try:
                image = load_image(place, key, self._max_pixels)
            except ImageError as error:
                image = error
            self._last = (place, key), image
        image = self._last[1]
        if isinstance(image, ImageError):
            raise image
        return image


class ObjectReader:
    """Reads objects as encoder inputs: a stored cut-out where the entry has one, else its image.

    Args:
        preprocessing: preprocessing of cut-outs, for one encoder.
        max_pixels: largest width × height, of an image and of a padded cut-out.
    """

    channels = 4

    def __init__(self, preprocessing: CutoutPreprocessing, max_pixels: int = MAX_PIXELS) -> None:
        self.preprocessing = preprocessing
        self.size = preprocessing.size
        self._max_pixels = max_pixels
        self._cut = Cutter(max_pixels)

    def __call__(self, entry: CutoutEntry) -> Tensor:
        """The pixels of an object's input: uint8 [4, h, w], premultiplied.

        Raises:
            ImageError: as `Cutter`; ``too_many_pixels`` once padded.
        """
        cutout = self._cut(entry) if entry.png is None else from_png(entry.png)
        edge = self.preprocessing.edge(*cutout.shape[1:])
        if edge**2 > self._max_pixels:
            raise ImageError(
                "too_many_pixels",
                f"an object of {cutout.shape[2]} × {cutout.shape[1]} pixels would be padded to "
                f"{edge} × {edge}; at most {self._max_pixels:,} are allowed",
            )
        return self.preprocessing.fitted(cutout)


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
        found = self._rows.find(as_keys([entry.key for entry in entries]))
        pictures = iter(self._rows.gather(found[found >= 0])["png"].to_pylist())
        return [
            entry._replace(png=next(pictures)) if row >= 0 else entry
            for row, entry in zip(found, entries, strict=True)
        ]
