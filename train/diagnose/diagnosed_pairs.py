"""The image–caption pairs of a training, as rows of the feature sets that are diagnosed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.cache import FeatureSet
from sightline.cache.caption_choice import CaptionPolicy
from sightline.cache.keys import Keys, KeyTable, unique_sorted
from sightline.errors import SightlineError
from train.diagnose.unit_rows import Scan
from train.pairs import read_pairs


@dataclass(frozen=True)
class OpenSet:
    """A feature set and what one pass over it found."""

    features: FeatureSet
    found: Scan

    def rows_of(self, keys: Keys) -> NDArray[np.int64]:
        """Row of each key; −1 where the set has none or the row has no direction: int64 [n]."""
        rows = self.features.find(keys)
        usable = np.zeros(len(self.features) + 1, dtype=bool)  # the last answers for −1
        usable[self.found.usable] = True
        return np.where(usable[rows], rows, -1)


@dataclass(frozen=True)
class DiagnosedPairs:
    """Training pairs whose rows can be compared, in the manifest's order.

    Attributes:
        pictures: int64 [n], a number for each distinct image: captions of one image share it.
        image_rows: int64 [n], row in the image set; None without one.
        text_rows: int64 [n], row in the text set.
        failed: pairs whose image could not be extracted; a training leaves them out too.
        without_image, without_text: pairs left out because a set lacks the row, or because it has
            no direction.
    """

    pictures: NDArray[np.int64]
    image_rows: NDArray[np.int64] | None
    text_rows: NDArray[np.int64]
    failed: int
    without_image: int
    without_text: int

    def __len__(self) -> int:
        return len(self.text_rows)

    def distinct(self) -> DiagnosedPairs:
        """Each pair of an image and a text once, though an image may list a caption twice."""
        rows = np.stack([self.pictures, self.text_rows], axis=1)
        _, first = np.unique(rows, axis=0, return_index=True)
        return self.only(np.sort(first))

    def only(self, chosen: NDArray[np.int64]) -> DiagnosedPairs:
        """Some of the pairs."""
        return replace(
            self,
            pictures=self.pictures[chosen],
            image_rows=None if self.image_rows is None else self.image_rows[chosen],
            text_rows=self.text_rows[chosen],
        )


def find_pairs(
    captions: Path,
    images: Path,
    image_set: OpenSet | None,
    text_set: OpenSet,
    policy: CaptionPolicy,
    data_seed: int,
) -> DiagnosedPairs:
    """The pairs that a training with this caption policy reads, without those that lack a row.

    Raises:
        SightlineError: a manifest is missing or of another kind, or the sets hold no row of any of
            its pairs.
    """
    pairs = read_pairs(captions, images, policy, data_seed)
    every_pair = len(pairs)
    if image_set is not None:
        pairs = pairs.without_images(set(image_set.features.failed))
        if not len(pairs):
            raise SightlineError(
                f"{image_set.features.path}: the images of all {every_pair:,} training captions of "
                f"{captions} failed; see the failures file beside the set"
            )
    text_rows = text_set.rows_of(pairs.caption_keys)
    lost_text = text_rows < 0
    if lost_text.all():
        raise SightlineError(
            f"{text_set.features.path}: holds none of the {len(pairs):,} training captions of "
            f"{captions}; give the captions that it was extracted from, or the set that was "
            "extracted from these"
        )
    image_rows, lost_image = None, np.zeros(len(pairs), dtype=bool)
    if image_set is not None:
        image_rows = image_set.rows_of(pairs.image_keys)
        lost_image = image_rows < 0
        if lost_image.all():
            raise SightlineError(
                f"{image_set.features.path}: holds none of the images of {len(pairs):,} training "
                f"captions of {captions} in {images}; give the manifest that it was extracted "
                "from, or the set that was extracted from these images"
            )
    every = DiagnosedPairs(
        _numbered(pairs.image_keys),
        image_rows,
        text_rows,
        pairs.dropped,
        int(lost_image.sum()),
        int((lost_text & ~lost_image).sum()),
    )
    kept = every.only(np.flatnonzero(~(lost_text | lost_image)))
    if len(np.unique(kept.pictures)) < 2:
        raise SightlineError(
            f"{captions}: the sets hold the rows of {len(np.unique(kept.pictures))} of its "
            "images; there is nothing to compare below two"
        )
    return kept


def _numbered(keys: Keys) -> NDArray[np.int64]:
    """A number for each distinct key: int64 [n]."""
    return KeyTable(keys[unique_sorted(keys)]).find(keys)
