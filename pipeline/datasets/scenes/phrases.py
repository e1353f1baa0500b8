"""The true phrases of drawn scenes: which words of a caption name which pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.datasets.scenes.captions import Caption
from pipeline.datasets.scenes.draw import box_of
from sightline.cache.keys import key_of_text
from sightline.cache.manifest import PHRASES, write_manifest
from sightline.cache.rle import CROP_RULE, cutout_key, encode_mask


class PhraseRows:
    """Collects the rows of ``phrases.parquet``."""

    def __init__(self) -> None:
        self._columns: dict[str, list[object]] = {name: [] for name in PHRASES.names}

    def __len__(self) -> int:
        return len(self._columns["phrase"])

    def add(
        self, image_key: bytes, masks: list[NDArray[np.bool_]], captions: list[Caption]
    ) -> None:
        """Add the noun phrases of an image's captions.

        Args:
            image_key: 32 raw bytes.
            masks: bool [height, width] for each thing of the scene.
            captions: each with the span of every thing, in the order of ``masks``.
        """
        codes = [encode_mask(mask) for mask in masks]
        boxes = [box_of(mask) for mask in masks]
        cutouts = [cutout_key(image_key, c["size"], c["counts"], CROP_RULE) for c in codes]
        for caption in captions:
            caption_key = key_of_text(caption.text)
            for i, (start, end) in enumerate(caption.spans):
                row = (
                    image_key,
                    caption_key,
                    caption.text[start:end],
                    start,
                    end,
                    boxes[i],
                    1.0,  # the truth
                    codes[i],
                    cutouts[i],
                )
                for column, value in zip(self._columns.values(), row, strict=True):
                    column.append(value)

    def write(self, path: Path) -> None:
        """Write the rows added so far."""
        write_manifest(path, pa.table(self._columns, schema=PHRASES), PHRASES)
