"""Which cut-out: the key of an image cut out by a mask, and the rule by which it is cropped."""

from __future__ import annotations

import hashlib

CROP_RULE = "mask-transparent,tight-box/1"
"""Everything outside the mask is transparent; the cut-out is cropped to the mask's box."""


def cutout_key(image_key: bytes, size: list[int], counts: str, crop_rule: str) -> bytes:
    """Key of the cut-out of an image by a mask: 32 raw bytes.

    Args:
        image_key: key of the image, 32 raw bytes.
        size: (height, width) of the mask.
        counts: the compressed runs, unique for each mask.
        crop_rule: name and version of the cropping rule.
    """
    mask = f"\n{size[0]} {size[1]} {counts}\n{crop_rule}"
    return hashlib.sha256(image_key + mask.encode("utf-8")).digest()
