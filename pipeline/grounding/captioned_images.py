"""The unit of grounding: an image and its captions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from pipeline.grounding.protocols import Caption
from pipeline.grounding.settings import CaptionChoice
from sightline.cache import Place, key_of_text, places_of
from sightline.cache.prepared import PreparedDataset
from sightline.errors import SightlineError


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


def units_of(data: PreparedDataset, choice: CaptionChoice) -> list[CaptionedImage]:
    """The images of a data set with the captions to ground; skips images without captions.

    Files with equal content count as one image with the captions of all of them.

    Args:
        choice: every caption, or the longest of each image as chosen in training.

    Raises:
        SightlineError: a manifest or the folder is missing, an image has an invalid place, or a
            caption's image is not in the manifest.
    """
    from sightline.cache.caption_choice import choose_captions

    root, table = data.require_images(), data.images
    units: dict[bytes, CaptionedImage] = {}
    by_id: dict[str, CaptionedImage] = {}
    for row, place in zip(table.to_pylist(), places_of(data.images_manifest, table), strict=True):
        unit = CaptionedImage(place.below(root), row["key"], row["height"], row["width"])
        by_id[row["image_id"]] = units.setdefault(row["key"], unit)
    table = data.captions
    image_ids, texts = table["image_id"].to_pylist(), table["text"].to_pylist()
    absent = [image_id for image_id in image_ids if image_id not in by_id]
    if absent:
        raise SightlineError(
            f"{data.images_manifest}: {len(absent)} captions of {data.captions_manifest} belong to "
            f"images that are not in it, such as {absent[0]!r}; prepare the data set again"
        )
    for row in choose_captions(image_ids, texts, choice, 0):
        unit = by_id[image_ids[row]]
        if all(caption.text != texts[row] for caption in unit.captions):
            unit.captions.append(Caption(image_ids[row], unit.key, texts[row]))
    return [unit for unit in units.values() if unit.captions]
