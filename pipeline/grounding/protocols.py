"""The parts of grounding: grounders find phrases and boxes, segmenters turn boxes into masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from pipeline.extract.decode import ImageError
from sightline.plugins import expect, expect_array, expect_count, expect_valid, wrong
from sightline.user_files import short

if TYPE_CHECKING:
    from torch import Tensor

Reason = Literal[
    "no_phrase",  # the caption names nothing to look for
    "not_in_caption",  # the label is not in the caption, or not that often
    "ambiguous",  # the caption has the words more than once, and no span says which is meant
    "no_box",  # the grounder found no box for the phrase
    "bad_box",  # inverted, not finite, without area, or wholly outside the image
    "low_score",
    "too_small",
    "too_large",
    "duplicate",  # the same box as another phrase of that caption
    "too_many",  # beyond the maximum number of pairs per caption
    "empty_mask",  # the segmenter found no pixels in the box
    "unfinished",  # the grounder's answer ends inside a phrase
    "too_long",  # beyond the part of a caption that the grounder reads
]
"""Why a phrase did not become a record; stable, for filters and counts."""


class GroundingError(ImageError):
    """An image that cannot be grounded, which costs only its own row.

    Attributes:
        image_key: key of that image.
        code: a short stable code, such as ``wrong_size``.
        reason: what was found.
    """

    def __init__(self, image_key: bytes, code: str, reason: str) -> None:
        super().__init__(code, reason)
        self.image_key = image_key


@dataclass(frozen=True)
class Caption:
    """A caption, and the image it belongs to.

    Attributes:
        image_id: id in the images manifest.
        image_key: 32 raw bytes, SHA-256 of the image file.
        text: the caption.
        caption_id: id in the captions manifest, of the first caption with this text.
    """

    image_id: str
    image_key: bytes
    text: str
    caption_id: str = ""


@dataclass(frozen=True, eq=False)
class Grounded:
    """A phrase of a caption and its location in the image.

    Attributes:
        phrase: as in the caption, ``caption[char_start:char_end]``.
        char_start, char_end: its span in the caption, in characters.
        boxes: float32 [k, 4], x0, y0, x1, y1 in pixels; k ≥ 1.
        scores: float32 [k], between 0 and 1; 1 if a grounder gives none.
        masks: bool [k, h, w] if masks came with the boxes, else None.
    """

    phrase: str
    char_start: int
    char_end: int
    boxes: Tensor
    scores: Tensor
    masks: Tensor | None = None


@dataclass(frozen=True)
class Dropped:
    """A phrase, or a box of a phrase, that did not become a record.

    Attributes:
        phrase: as in the caption or in the grounder's answer; may be empty.
        reason: a stable code.
        detail: what was found, human-readable.
    """

    phrase: str
    reason: Reason
    detail: str = ""


Answer = tuple[list[Grounded], list[Dropped]]
"""A grounder's answer for one caption."""


class Grounder(Protocol):
    """Finds the phrases of captions in their images.

    One behind an API also has ``concurrency``, the calls that are made at a time, in threads: each
    has one image with all its captions, and may raise `sightline.errors.Transient`. One with
    ``takes_files = True`` gets a `pipeline.extract.decode.EncodedImage` in place of each image.
    """

    name: str

    def describe(self) -> dict[str, object]:
        """What determines an answer (model, weights' hash, parameters), as plain JSON values."""
        ...

    def ground(self, images: Sequence[Tensor], captions: Sequence[Caption]) -> list[Answer]:
        """Ground every caption in its image; answers do not depend on the rest of the batch.

        Args:
            images: uint8 [3, h, w] each, the image of the caption at the same index; sizes vary.
            captions: one per image.

        Raises:
            GroundingError: the data of one of the images is damaged.
        """
        ...


class Segmenter(Protocol):
    """Finds the pixels of the object in a box.

    ``concurrency`` and ``takes_files`` are as in `Grounder`; a call has the boxes of one image.
    """

    name: str

    def describe(self) -> dict[str, object]:
        """What determines a mask (model, weights' hash, parameters), as plain JSON values."""
        ...

    def segment(self, images: Sequence[Tensor], boxes: Sequence[Tensor]) -> list[Tensor]:
        """Masks of every box of every image.

        Args:
            images: uint8 [3, h, w] each; sizes vary.
            boxes: float32 [k, 4] for each image, x0, y0, x1, y1 in pixels; k may be 0.

        Returns:
            bool [k, h, w] on the CPU for each image.
        """
        ...


def checked_answers(
    grounder: Grounder, answers: object, captions: Sequence[Caption]
) -> list[Answer]:
    """``answers`` of a grounder to ``captions``.

    Raises:
        SightlineError: they are not one for each, or none that the rest can use; names the package.
    """
    from torch import Tensor

    checked = [*expect(answers, Sequence, grounder, "ground")]
    expect_count(checked, len(captions), grounder, "ground, answers", "captions")
    for caption, answer in zip(captions, checked, strict=True):
        if not isinstance(answer, Sequence) or len(answer) != 2:
            raise wrong(grounder, "an answer of ground", answer, "(phrases, drops)")
        for phrase in expect(answer[0], Sequence, grounder, "phrases"):
            expect(phrase, Grounded, grounder, "a phrase")
            for name in ("boxes", "scores"):
                expect(getattr(phrase, name), Tensor, grounder, name)
            expect_valid((phrase.char_start, phrase.char_end), tuple[int, int], grounder, "a span")
            span, count = (phrase.char_start, phrase.char_end), len(phrase.boxes)
            start, end = span
            if not (0 <= start < end <= len(caption.text) and phrase.phrase.strip()):
                subject = f"the span of {short(phrase.phrase)} in {short(caption.text)}"
                raise wrong(grounder, subject, span, f"some of its {len(caption.text)} characters")
            if caption.text[slice(*span)] != phrase.phrase:
                raise wrong(grounder, f"span {span}", phrase.phrase, "the caption's own characters")
            expect_array(phrase.boxes, "float32", (max(count, 1), 4), grounder, "boxes")
            expect_array(phrase.scores, "float32", (count,), grounder, "scores")
            if not ((phrase.scores >= 0) & (phrase.scores <= 1)).all():
                raise wrong(grounder, "scores", phrase.scores.tolist(), "0 to 1")
            if phrase.boxes.device.type != "cpu" or phrase.scores.device.type != "cpu":
                raise wrong(grounder, "boxes and scores", phrase.boxes.device, "them on the CPU")
            if phrase.masks is not None:
                masks = expect(phrase.masks, Tensor, grounder, "masks")
                expect_count(masks, count, grounder, "masks", "boxes")
        expect_valid(answer[1], Sequence[Dropped], grounder, "drops")
    return checked
