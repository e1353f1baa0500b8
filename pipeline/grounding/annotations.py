"""The grounder `annotations`: human-drawn or ground-truth boxes instead of a model's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.grounding.entities import Entities
from pipeline.grounding.protocols import (
    Answer,
    Caption,
    Dropped,
    Grounded,
    Grounder,
    GroundingError,
)
from sightline.cache import PHRASES, CacheError, key_of_file, key_of_text, read_manifest
from sightline.cache.rle import decode_mask
from sightline.errors import SightlineError

if TYPE_CHECKING:
    from torch import Tensor


def open_annotations(path: Path) -> Grounder:
    """Annotations in ``path``: a phrases manifest (Parquet), or the folder of Flickr30k Entities.

    Raises:
        SightlineError: neither exists.
    """
    require_annotations(path)
    return PhrasesFile(path) if path.is_file() else Entities(path)


def require_annotations(path: Path) -> None:
    """Refuse a path without annotations, as `open_annotations` does."""
    if path.is_file() or all((path / name).is_dir() for name in ("Sentences", "Annotations")):
        return
    raise SightlineError(
        f"{path}: no annotations here; expected a phrases manifest (Parquet), or a folder with "
        "Sentences/*.txt and Annotations/*.xml as in Flickr30k Entities"
    )


class PhrasesFile:
    """Phrases, boxes and masks from a manifest, such as that of `scenes`."""

    name = "annotations"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sha256 = key_of_file(path).hex()
        self._rows: dict[tuple[bytes, bytes], list[dict[str, Any]]] = {}
        for row in read_manifest(path, PHRASES).to_pylist():
            self._rows.setdefault((row["image_key"], row["caption_key"]), []).append(row)

    def describe(self) -> dict[str, object]:
        return {"family": self.name, "format": "phrases", "sha256": self._sha256}

    def ground(self, images: Sequence[Tensor], captions: Sequence[Caption]) -> list[Answer]:
        """See `Grounder`. A phrase with several rows has several boxes."""
        return [
            self._answer(image, caption) for image, caption in zip(images, captions, strict=True)
        ]

    def _answer(self, image: Tensor, caption: Caption) -> Answer:
        import torch

        rows = self._rows.get((caption.image_key, key_of_text(caption.text)), [])
        if not rows:
            return [], [Dropped("", "no_phrase", f"{self.path.name} has none for this caption")]
        spans: dict[tuple[int, int], list[dict[str, Any]]] = {}
        dropped: list[Dropped] = []
        for row in rows:
            start, end = row["char_start"], row["char_end"]
            if caption.text[start:end] == row["phrase"]:
                spans.setdefault((start, end), []).append(row)
            else:
                detail = f"the caption reads {caption.text[start:end]!r} there"
                dropped.append(Dropped(row["phrase"], "not_in_caption", detail))
        phrases = [
            Grounded(
                some[0]["phrase"],
                start,
                end,
                torch.tensor([row["box"] for row in some], dtype=torch.float32),
                torch.tensor([row["score"] for row in some], dtype=torch.float32),
                torch.stack([self._mask(row, image, caption) for row in some]),
            )
            for (start, end), some in spans.items()
        ]
        return phrases, dropped

    def _mask(self, row: dict[str, Any], image: Tensor, caption: Caption) -> Tensor:
        """bool [h, w]; GroundingError if it is damaged or its size differs from the image's."""
        size, expected = list(row["mask"]["size"]), list(image.shape[1:])
        if size != expected:
            raise GroundingError(
                caption.image_key,
                "wrong_size",
                f"{self.path}: the mask of {row['phrase']!r} is {size[1]} × {size[0]} pixels, the "
                f"image {expected[1]} × {expected[0]}",
            )
        try:
            return _decoded(size[0], size[1], row["mask"]["counts"])
        except CacheError as error:
            reason = f"{self.path}: {error}"
            raise GroundingError(caption.image_key, "bad_mask", reason) from error


@lru_cache(maxsize=16)  # captions of an image name the same objects
def _decoded(height: int, width: int, counts: str) -> Tensor:
    import torch

    return torch.from_numpy(decode_mask([height, width], counts).copy())
