"""The grounder `annotations`: human-drawn or ground-truth boxes instead of a model's."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pipeline.grounding.entities import (
    NOT_VISUAL,
    Annotation,
    Mention,
    Sentence,
    align,
    read_annotation,
    read_sentences,
)
from pipeline.grounding.protocols import (
    Answer,
    Caption,
    Dropped,
    Grounded,
    Grounder,
    GroundingError,
)
from sightline.cache import (
    PHRASES,
    CacheError,
    key_of_bytes,
    key_of_file,
    key_of_text,
    read_manifest,
)
from sightline.cache.rle import decode_mask
from sightline.errors import SightlineError
from sightline.outside import read_data

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
        found = [
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
        return found, dropped

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


class Entities:
    """Flickr30k Entities: phrases and boxes, no masks."""

    name = "annotations"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def describe(self) -> dict[str, object]:
        digest = hashlib.sha256()
        for path in sorted(self.folder.glob("Sentences/*.txt")) + sorted(
            self.folder.glob("Annotations/*.xml")
        ):
            digest.update(f"{path.relative_to(self.folder).as_posix()}\n".encode())
            digest.update(key_of_bytes(read_data(path)))
        return {"family": self.name, "format": "entities", "sha256": digest.hexdigest()}

    def ground(self, images: Sequence[Tensor], captions: Sequence[Caption]) -> list[Answer]:
        """See `Grounder`. Captions are matched to sentences by their text."""
        return [
            self._answer(image, caption) for image, caption in zip(images, captions, strict=True)
        ]

    def _answer(self, image: Tensor, caption: Caption) -> Answer:
        sentences, annotation = self._read(image, caption)
        named = {mention.entity for sentence in sentences for mention in sentence.mentions}
        dropped = [
            Dropped("", "unnamed", f"id {entity} has no phrase in any sentence")
            for entity in annotation.entities
            if entity not in named
        ]
        for sentence in sentences:
            span_of = align(sentence, caption.text)
            if span_of is None:
                continue
            found: list[Grounded] = []
            for mention in sentence.mentions:
                outcome = _ground(sentence, mention, span_of(mention), caption.text, annotation)
                if isinstance(outcome, Grounded):
                    found.append(outcome)
                else:
                    dropped.append(outcome)
            if not sentence.mentions:
                dropped.append(Dropped("", "no_phrase", "nothing is marked in this sentence"))
            return found, dropped
        dropped.append(Dropped("", "no_phrase", "no sentence of the image reads like this caption"))
        return [], dropped

    def _read(self, image: Tensor, caption: Caption) -> tuple[list[Sentence], Annotation]:
        stem = PurePosixPath(caption.image_id).stem
        path = self.folder / "Annotations" / f"{stem}.xml"
        try:
            sentences = read_sentences(self.folder / "Sentences" / f"{stem}.txt")
            annotation = read_annotation(path)
        except SightlineError as error:
            raise GroundingError(caption.image_key, "bad_annotation", str(error)) from error
        height, width = image.shape[1:]
        if (annotation.height, annotation.width) != (height, width):
            raise GroundingError(
                caption.image_key,
                "wrong_size",
                f"{path}: boxes for {annotation.width} × {annotation.height} pixels, the image "
                f"has {width} × {height}",
            )
        return sentences, annotation


def _ground(
    sentence: Sentence,
    mention: Mention,
    span: tuple[int, int] | None,
    caption: str,
    annotation: Annotation,
) -> Grounded | Dropped:
    words = sentence.text[mention.start : mention.end]
    if span is None:
        return Dropped(words, "not_in_caption", "the mark holds no letter")
    phrase = caption[slice(*span)]
    entity = annotation.entities.get(mention.entity)
    if entity is None or not entity.boxes:
        if NOT_VISUAL in mention.types:
            return Dropped(phrase, "not_visual")
        if entity is not None and entity.scene:
            return Dropped(phrase, "scene")
        detail = f"id {mention.entity} " + ("is not in the XML" if entity is None else "has none")
        return Dropped(phrase, "no_box", detail)
    import torch

    boxes = torch.tensor(entity.boxes, dtype=torch.float32)
    return Grounded(phrase, *span, boxes, torch.ones(len(boxes)))
