"""A grounder over boxes that are there: rows of phrases and boxes, found by image and caption."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.extract.failed_rows import WRONG_SIZE
from pipeline.grounding.protocols import (
    Answer,
    Caption,
    Dropped,
    Grounded,
    GroundingError,
)
from pipeline.grounding.spans import SpanFinder
from sightline.cache import key_of_file
from sightline.cache.keys import (
    KEY_BYTES,
    Keys,
    as_keys,
    find_keys,
    keys_of_texts,
    unique_sorted,
)
from sightline.cache.phrase_tokens import pair_keys
from sightline.cache.rle import compress_counts, decode_mask
from sightline.errors import CacheError
from sightline.tables.arrow_arrays import number_array

if TYPE_CHECKING:
    from torch import Tensor

BoxFormat = Literal["xyxy", "xywh", "rel_xyxy", "rel_xywh"]
"""Corners, or a corner with width and height; in pixels, or from 0 to 1 of the image."""


class PhraseBoxes:
    """A grounder over rows of phrases and boxes, which are found by image and caption.

    Args:
        form: of the file.
        settings: that an answer depends on.

    Attributes:
        path: the file that has them, such as the phrases manifest of `scenes`.
    """

    name = "annotations"

    def __init__(self, path: Path, form: str, **settings: object) -> None:
        self.path = path
        sha256 = key_of_file(path).hex()
        self._about = {"family": self.name, "format": form, "sha256": sha256, **settings}
        self.hold(np.zeros((0, KEY_BYTES), np.uint8), pa.table({}))

    def describe(self) -> dict[str, object]:
        return self._about

    def hold(self, pairs: Keys, rows: pa.Table) -> None:
        """Answer with these rows from now on.

        Args:
            pairs: uint8 [n, 32], of each row the key of its image and caption (`pair_keys`).
            rows: phrase, char_start and char_end (null: not known), box (x0, y0, x1, y1), score;
                where there is one, mask (COCO's forms, an object or its JSON); relative: whether
                the box is in parts of the image; row: its number in the file.
        """
        self._pairs = pairs[unique_sorted(pairs)]
        places = find_keys(self._pairs, pairs)
        self._rows = rows.take(number_array(np.argsort(places, kind="stable")))
        self._ends: NDArray[np.int64] = np.cumsum(np.bincount(places, minlength=len(self._pairs)))

    def ground(self, images: Sequence[Tensor], captions: Sequence[Caption]) -> list[Answer]:
        """See `Grounder`. A phrase with several rows has several boxes."""
        image_keys = as_keys([caption.image_key for caption in captions])
        pairs = pair_keys(image_keys, keys_of_texts(caption.text for caption in captions))
        places = find_keys(self._pairs, pairs).tolist()
        return [self._answer(*row) for row in zip(images, captions, places, strict=True)]

    def _answer(self, image: Tensor, caption: Caption, place: int) -> Answer:
        if place < 0:
            return [], [Dropped("", "no_phrase", f"{self.path.name} has none for this caption")]
        start = int(self._ends[place - 1]) if place else 0
        spans: dict[tuple[int, int], list[dict[str, Any]]] = {}
        dropped: list[Dropped] = []
        for row in self._rows.slice(start, int(self._ends[place]) - start).to_pylist():
            span = _span(row["phrase"], row["char_start"], row["char_end"], caption.text)
            if isinstance(span, Dropped):
                dropped.append(span)
            else:
                spans.setdefault(span, []).append(row)
        phrases = [self._grounded(span, rows, image, caption) for span, rows in spans.items()]
        return phrases, dropped

    def _grounded(
        self, span: tuple[int, int], rows: list[dict[str, Any]], image: Tensor, caption: Caption
    ) -> Grounded:
        import torch

        height, width = image.shape[1:]
        boxes = torch.tensor([row["box"] for row in rows], dtype=torch.float32)
        parts = torch.tensor([[row.get("relative", False)] for row in rows])
        boxes = torch.where(parts, boxes * torch.tensor([width, height, width, height]), boxes)
        scores = torch.tensor([row["score"] for row in rows], dtype=torch.float32)
        masks = None
        if "mask" in rows[0]:
            masks = torch.stack([self._mask(row, image, caption) for row in rows])
        return Grounded(caption.text[slice(*span)], *span, boxes, scores, masks)

    def _mask(self, row: dict[str, Any], image: Tensor, caption: Caption) -> Tensor:
        """bool [h, w]; GroundingError if it is damaged or its size differs from the image's."""
        mask, (height, width) = row["mask"], image.shape[1:]
        mask = json.loads(mask) if isinstance(mask, str) else mask
        where = f"{self.path}: row {row['row']}" if "row" in row else f"{self.path}"
        if isinstance(mask, dict) and list(mask["size"]) != [height, width]:
            raise GroundingError(
                caption.image_key,
                WRONG_SIZE,
                f"{where}: the mask of {row['phrase']!r} is {mask['size'][1]} × {mask['size'][0]} "
                f"pixels, the image {width} × {height}",
            )
        try:
            return _decoded(json.dumps(mask), height, width)
        except CacheError as error:
            raise GroundingError(caption.image_key, "bad_mask", f"{where}: {error}") from error


def folded(text: str) -> str:
    """A text as phrases are compared: case and runs of white space folded."""
    return " ".join(text.split()).casefold()


def _span(
    phrase: str, start: int | None, end: int | None, caption: str
) -> tuple[int, int] | Dropped:
    """Where a phrase stands; one that stands once may be given with the span of a longer text."""
    if start is None or end is None:
        finder = SpanFinder(caption)
        first, second = finder.find(phrase), finder.find(phrase)
        if first is not None and second is not None:
            detail = "the caption has it more than once, and no span says which"
            return Dropped(phrase, "ambiguous", detail)
        return first or Dropped(phrase, "not_in_caption", "the caption has no such words")
    words = caption[start:end]
    if folded(words) == folded(phrase):
        start += len(words) - len(words.lstrip())
        return start, start + len(words.strip())
    if end - start == len(phrase):  # of the caption before white space around it was left out
        span = _span(phrase, None, None, caption)
        if not isinstance(span, Dropped):
            return span
    return Dropped(phrase, "not_in_caption", f"the caption reads {words!r} there")


@lru_cache(maxsize=16)  # captions of an image name the same objects
def _decoded(code: str, height: int, width: int) -> Tensor:
    """The pixels of a mask: bool [h, w]."""
    import torch

    mask = json.loads(code)
    if isinstance(mask, list):
        pixels = np.zeros((height, width), dtype=bool)
        for polygon in mask:
            pixels |= _filled(np.array(polygon), height, width)
    else:
        counts = mask["counts"]
        counts = counts if isinstance(counts, str) else compress_counts(counts)
        pixels = decode_mask([height, width], counts).copy()
    return torch.from_numpy(pixels)


def _filled(polygon: NDArray[np.float64], height: int, width: int) -> NDArray[np.bool_]:
    """The pixels whose centres lie in a polygon x0, y0, x1, y1, …, as the segmenter `box` counts.

    A line of pixel centres enters or leaves the polygon where an edge crosses it.
    """
    x, y = polygon.reshape(-1, 2).T  # (n,) each
    next_x, next_y = np.roll(x, -1), np.roll(y, -1)
    lines = np.arange(height) + 0.5
    edges, rows = np.nonzero((y[:, None] <= lines) != (next_y[:, None] <= lines))
    share = (lines[rows] - y[edges]) / (next_y - y)[edges]
    crossings = x[edges] + share * (next_x - x)[edges]
    columns = np.clip(np.ceil(crossings - 0.5), 0, width).astype(np.int64)
    turns = np.zeros((height, width + 1), dtype=bool)
    np.logical_xor.at(turns, (rows, columns), True)
    return np.logical_xor.accumulate(turns, axis=1)[:, :width]
