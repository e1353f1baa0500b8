"""The unit of grounding: an image and its captions."""

# pyarrow.compute makes its functions when it is imported:
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.grounding.grounding_settings import CaptionChoice
from pipeline.grounding.protocols import Caption
from sightline.cache import Place, key_column, key_of_text, places_of
from sightline.cache.keys import Keys, find_keys, unique_sorted
from sightline.cache.prepared import PreparedDataset
from sightline.errors import SightlineError
from sightline.tables.arrow_arrays import number_array

_AT_ONCE = 1024


@dataclass
class CaptionedImage:
    """An image and its captions to ground, each text once.

    Attributes:
        place: where the image is.
        key: key of the image, 32 raw bytes.
        height, width: from the manifest; 0 if the header could not be read.
    """

    place: Place
    key: bytes
    height: int
    width: int
    captions: list[Caption] = field(default_factory=list)

    @property
    def unit_key(self) -> bytes:
        """SHA-256 of the image's key and its captions' keys: 32 raw bytes."""
        texts = b"".join(key_of_text(caption.text) for caption in self.captions)
        return hashlib.sha256(self.key + texts).digest()


@dataclass(frozen=True, eq=False)
class CaptionedImages(Sequence[CaptionedImage]):
    """Images with their captions, each made when it is asked for.

    Attributes:
        manifest, root: of the images.
        images: the images manifest.
        captions: the columns ``caption_id``, ``image_id`` and ``text`` of the captions manifest.
        image_rows: int64 [n], the rows of the images that have captions.
        caption_rows: int64 [m], the rows of the captions, those of one image after the other.
        ends: int64 [n], where the captions of each image end among them.
    """

    manifest: Path
    root: Path | str
    images: pa.Table
    captions: pa.Table
    image_rows: NDArray[np.int64]
    caption_rows: NDArray[np.int64]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.image_rows)

    def __iter__(self) -> Iterator[CaptionedImage]:
        for start in range(0, len(self), _AT_ONCE):
            yield from self._made(slice(start, start + _AT_ONCE))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        at = range(len(self))[index]
        return self._made(slice(at, at + 1))[0]

    def _made(self, chunk: slice) -> list[CaptionedImage]:
        table = self.images.take(number_array(self.image_rows[chunk]))
        ends = self.ends[chunk].tolist()
        start = int(self.ends[chunk.start - 1]) if chunk.start else 0
        rows = self.captions.take(number_array(self.caption_rows[start : ends[-1]])).to_pylist()
        units = []
        places = places_of(self.manifest, table)
        for row, place, stop in zip(table.to_pylist(), places, ends, strict=True):
            unit = CaptionedImage(place.below(self.root), row["key"], row["height"], row["width"])
            texts: dict[str, Caption] = {}
            for of in rows[start - ends[-1] : stop - ends[-1] or None]:
                caption = Caption(of["image_id"], unit.key, of["text"], of["caption_id"])
                texts.setdefault(caption.text, caption)
            unit.captions += texts.values()
            units.append(unit)
            start = stop
        return units


def units_of(data: PreparedDataset, choice: CaptionChoice) -> CaptionedImages:
    """The images of a data set with the captions to ground; skips images without captions.

    Files with equal content count as one image with the captions of all of them.

    Args:
        choice: every caption, or the longest of each image as chosen in training.

    Raises:
        SightlineError: a manifest or the folder is missing, an image has an invalid place, or a
            caption's image is not in the manifest.
    """
    from sightline.cache.caption_choice import choose_captions

    root, images = data.require_images(), data.images
    for start in range(0, len(images), _AT_ONCE):
        places_of(data.images_manifest, images.slice(start, _AT_ONCE))
    captions = data.captions.select(["caption_id", "image_id", "text"])
    rows = pc.index_in(captions["image_id"], images["image_id"])
    if rows.null_count:
        name = captions["image_id"].filter(pc.is_null(rows))[0].as_py()
        raise SightlineError(
            f"{data.images_manifest}: {rows.null_count} captions of {data.captions_manifest} "
            f"belong to images that are not in it, such as {name!r}; prepare the data set again"
        )
    image_ids, texts = captions["image_id"], captions["text"]
    if choice != "all":  # which reads no text
        image_ids, texts = image_ids.to_pylist(), texts.to_pylist()
    chosen = choose_captions(image_ids, texts, choice, 0)
    owners = _first_rows(key_column(images["key"]))[rows.to_numpy()[chosen]]
    order = np.argsort(owners, kind="stable")
    image_rows, counts = np.unique(owners, return_counts=True)
    ends = np.cumsum(counts)
    return CaptionedImages(
        data.images_manifest, root, images, captions, image_rows, chosen[order], ends
    )


def _first_rows(keys: Keys) -> NDArray[np.int64]:
    """The first row with the key of each row: int64 [n]."""
    first = unique_sorted(keys)
    return first[find_keys(keys[first], keys)]
