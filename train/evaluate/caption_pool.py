"""The distinct captions of a data set, among which neighbours are found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sightline.cache import CAPTIONS
from sightline.cache.manifest import read_split
from sightline.errors import SightlineError
from sightline.outside import read_lines


@dataclass(frozen=True)
class CaptionPool:
    """Distinct texts in the order of their first caption.

    Attributes:
        texts: n distinct captions.
        ids: of each text, the ids of the captions that read so.
        images: of each text, the ids of the images that it describes.
        row_of: text → its row.
    """

    texts: tuple[str, ...]
    ids: tuple[tuple[str, ...], ...]
    images: tuple[tuple[str, ...], ...]
    row_of: dict[str, int]

    def __len__(self) -> int:
        return len(self.texts)

    def images_of(self, text: str) -> tuple[str, ...]:
        """Images that a caption of this text describes; empty if there is no such caption."""
        row = self.row_of.get(text)
        return () if row is None else self.images[row]

    def captions_of_images(self) -> dict[str, str]:
        """Image id → one of its captions, the first in the order here."""
        texts = zip(reversed(self.texts), reversed(self.images), strict=True)
        return {image: text for text, images in texts for image in images}

    def sample(self, count: int, seed: int) -> list[str]:
        """``count`` of the texts (or all), drawn without replacement, in their order here."""
        drawn = np.random.default_rng(seed).permutation(len(self))[:count]
        return [self.texts[row] for row in np.sort(drawn)]


def read_pool(manifest: Path, split: str | None = None) -> CaptionPool:
    """The captions of a manifest.

    Args:
        split: those of one split only; None for all.

    Raises:
        SightlineError: no such manifest or a malformed one, no caption, or an unknown split.
    """
    table = read_split(manifest, CAPTIONS, split)
    columns = (table[name].to_pylist() for name in ("caption_id", "image_id", "text"))
    found: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for caption_id, image_id, text in zip(*columns, strict=True):
        ids, images = found.setdefault(text, ({}, {}))
        ids[caption_id] = images[image_id] = None
    return CaptionPool(
        tuple(found),
        tuple(tuple(ids) for ids, _ in found.values()),
        tuple(tuple(images) for _, images in found.values()),
        {text: row for row, text in enumerate(found)},
    )


def read_queries(given: Sequence[str], file: Path | None) -> list[str]:
    """Distinct queries: those given, then the lines of a UTF-8 file; empty lines are skipped.

    Raises:
        SightlineError: a given one is empty, the file is missing or not UTF-8, or has no sentence.
    """
    queries = [each.strip() for each in given]
    if not all(queries):
        raise SightlineError("a query is empty; give a sentence")
    if file is not None:
        lines = [line.strip() for line in read_lines(file, "one sentence per line")]
        if not any(lines):
            raise SightlineError(f"{file}: contains no sentence; expected one per line")
        queries += filter(None, lines)
    return list(dict.fromkeys(queries))
