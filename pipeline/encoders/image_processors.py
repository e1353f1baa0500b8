"""What an image processor of transformers does, as our own preprocessing."""

from __future__ import annotations

from pipeline.encoders.preprocessing import ImagePreprocessing, Interpolation
from sightline.errors import SightlineError
from sightline.models.pretrained import Pretrained

_FILTERS: dict[int, Interpolation] = {2: "bilinear", 3: "bicubic"}
"""Pillow's numbers of resize filters, as image processors name them, that `resize` has."""


def preprocessing_of(source: Pretrained) -> ImagePreprocessing:
    """What the image processor does, on our own path: decode, resize on uint8, crop, normalise.

    The processors of DINOv3 scale to floats before they resize, so their pixels are not rounded
    to 1/255 in between; all others do the same as here.
    """
    values = source.image_processor().to_dict()

    def refuse(key: str, expected: str) -> SightlineError:
        return SightlineError(
            f"{source.name}: its image processor has {key} {values.get(key)!r}, expected "
            f"{expected}; this model cannot be used as an image encoder"
        )

    size = values.get("size") or {}
    if not values.get("do_resize", False) or not size.keys() & {"height", "shortest_edge"}:
        raise refuse("size", "height and width, or the shortest edge, to resize to")
    squash = "height" in size
    edges = (size["height"], size["width"]) if squash else (size["shortest_edge"],) * 2
    crop = values.get("crop_size") if values.get("do_center_crop") else None
    if crop is None and not squash:
        raise refuse("do_center_crop", "a centre crop after resizing the shortest edge")
    if values.get("resample") not in _FILTERS:
        raise refuse("resample", "2 (bilinear) or 3 (bicubic)")
    if values.get("do_pad"):
        raise refuse("do_pad", "no padding")
    if not values.get("do_rescale") or abs(values["rescale_factor"] * 255 - 1) > 1e-6:
        raise refuse("rescale_factor", "1/255")
    plain = not values.get("do_normalize")
    return ImagePreprocessing(
        resize=edges,
        crop=(crop["height"], crop["width"]) if crop else edges,
        interpolation=_FILTERS[int(values["resample"])],
        mean=(0.0, 0.0, 0.0) if plain else tuple(values["image_mean"]),
        std=(1.0, 1.0, 1.0) if plain else tuple(values["image_std"]),
        resize_mode="squash" if squash else "shortest",
    )
