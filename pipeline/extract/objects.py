"""Objects: each mask becomes a cut-out, which is decoded, checked and made an encoder's input."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pipeline.encoders.preprocessing import MAX_PIXELS
from pipeline.extract.cutouts import CutoutEntry, CutoutPreprocessing
from pipeline.extract.decode import ImageError, load_image
from sightline.cache import CacheError, Place
from sightline.cache.rle import CROP_RULE, cutout_key, decode_mask

if TYPE_CHECKING:
    from torch import Tensor


def cut_out(image: Tensor, mask: NDArray[np.bool_], *, keep_background: bool = False) -> Tensor:
    """Cut an object out of its image, cropped to its mask.

    Args:
        image: uint8 [3, H, W].
        mask: bool [H, W].
        keep_background: keep the whole box opaque.

    Returns:
        uint8 [4, h, w] of the mask's box: RGB premultiplied with alpha, which is 0 or 255.

    Raises:
        ImageError: ``mask_empty``.
    """
    import torch

    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        raise ImageError("mask_empty", "the mask has no pixels")
    box = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    inside = np.ones_like(mask[box]) if keep_background else mask[box]
    alpha = torch.from_numpy(np.ascontiguousarray(inside)).unsqueeze(0)
    return torch.cat([image[:, *box] * alpha, alpha.to(torch.uint8) * 255])


class ObjectReader:
    """Reads objects as encoder inputs.

    Caches the last decoded image, so that an image with many objects is decoded once: a plan
    keeps them together.

    Args:
        preprocessing: preprocessing of cut-outs, for one encoder.
        max_pixels: largest width × height, of an image and of a padded cut-out.
    """

    channels = 4

    def __init__(self, preprocessing: CutoutPreprocessing, max_pixels: int = MAX_PIXELS) -> None:
        self.preprocessing = preprocessing
        self.size = preprocessing.size
        self._max_pixels = max_pixels
        self._last: tuple[tuple[Place, bytes], Tensor | ImageError] | None = None

    def __call__(self, entry: CutoutEntry) -> Tensor:
        """The pixels of an object's input: uint8 [4, h, w], premultiplied.

        Raises:
            ImageError: the codes of `load_image`; ``changed`` also if the cut-out's key does not
                match this image, mask and crop rule; ``mask_size`` if the sizes of mask and image
                differ, ``mask_damaged`` if it cannot be decoded, ``mask_empty``, or
                ``too_many_pixels`` once padded.
        """
        return self.preprocessing.fitted(self.cutout(entry))

    def cutout(self, entry: CutoutEntry) -> Tensor:
        """The object as returned by `cut_out`: uint8 [4, h, w]."""
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
        keep = self.preprocessing.rules.background == "keep"
        cutout = cut_out(image, mask, keep_background=keep)
        edge = self.preprocessing.edge(*cutout.shape[1:])
        if edge**2 > self._max_pixels:
            raise ImageError(
                "too_many_pixels",
                f"an object of {cutout.shape[2]} × {cutout.shape[1]} pixels would be padded to "
                f"{edge} × {edge}; at most {self._max_pixels:,} are allowed",
            )
        return cutout

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
