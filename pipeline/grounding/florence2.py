"""The grounder `florence2`: Florence-2 reads a caption and returns its phrases and boxes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from pipeline.grounding.grounding_model import ModelGrounder
from pipeline.grounding.protocols import Answer, Caption, Dropped, Grounded, Grounder
from pipeline.grounding.settings import DESCRIBED, ModelSettings
from pipeline.grounding.spans import SpanFinder
from sightline.devices import computing
from sightline.errors import SightlineError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

TASK = "<CAPTION_TO_PHRASE_GROUNDING>"
_PROMPT = "Locate the phrases in the caption: {}"  # the processor's expansion of TASK
_SPECIAL = re.compile(r"<s>|</s>|<pad>")
_LOCATED = re.compile(r"([^<]*)((?:<loc_\d+>)*)")


class Florence2Settings(ModelSettings):
    """Florence-2.

    Attributes:
        beams: beams of the decoder's search.
        max_length: maximum length of the answer, in tokens; the model's positions at most.
    """

    family: Literal["florence2"]
    beams: Annotated[int, DESCRIBED] = Field(default=3, ge=1, le=64)
    max_length: Annotated[int, DESCRIBED] = Field(default=1024, ge=8)

    def build(self, device: torch.device, precision: str) -> Grounder:
        return Florence2Grounder.load(self, device, precision)


class Florence2Grounder(ModelGrounder[Florence2Settings]):
    """Captions → phrases with boxes. Florence-2 gives no scores: every score is 1.

    Replaces ``<`` and ``>`` in a caption with spaces, since they delimit the model's tokens, and
    reads only the start of a caption that exceeds its positions.
    """

    name = "florence2"
    model_types = ("florence2",)
    architecture = "Florence2ForConditionalGeneration"

    def __init__(self, settings: Florence2Settings, *loaded: Any) -> None:
        super().__init__(settings, *loaded)
        self._processor.tokenizer.padding_side = "right"
        config = self._model.config.text_config
        if settings.max_length > config.max_position_embeddings:
            raise SightlineError(
                f"{settings.model}: max_length is {settings.max_length}, but the model has only "
                f"{config.max_position_embeddings} positions; set grounder.max_length to "
                f"{config.max_position_embeddings} or less"
            )
        # <image> … <s> prompt </s>
        self._text_tokens = config.max_position_embeddings - self._processor.num_image_tokens - 2

    def ground(self, images: Sequence[Tensor], captions: Sequence[Caption]) -> list[Answer]:
        """See `Grounder`; the images and captions are one batch."""
        if not captions:
            return []
        texts = [self._readable(caption.text) for caption in captions]
        predictions: list[Answer] = []
        for answer, image, caption, text in zip(
            self.predictions(images, texts), images, captions, texts, strict=True
        ):
            height, width = image.shape[1:]
            phrases, dropped = parse_answer(
                answer, caption.text, (width, height), self._processor.post_processor
            )
            if len(text) < len(caption.text):
                detail = f"only the first {len(text):,} of {len(caption.text):,} characters fit"
                dropped.append(Dropped("", "too_long", detail))
            predictions.append((phrases, dropped))
        return predictions

    def predictions(self, images: Sequence[Tensor], texts: Sequence[str]) -> list[str]:
        """The model's output, special tokens included."""
        inputs = self._processor(
            images=list(images),
            text=[_PROMPT.format(text) for text in texts],
            padding=True,
            return_tensors="pt",
        ).to(self._device)
        with computing(self._device, self._precision):
            ids = self._model.generate(
                **inputs,
                num_beams=self._settings.beams,
                max_length=self._settings.max_length,
                do_sample=False,
            )
        return self._processor.batch_decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def _readable(self, caption: str) -> str:
        """The start of a caption that fits, without text that would parse as special tokens."""
        text = caption.replace("<", " ").replace(">", " ")
        tokenizer: Any = self._processor.tokenizer
        encoded = tokenizer(
            _PROMPT.format(text), add_special_tokens=False, return_offsets_mapping=True
        )
        offsets = encoded["offset_mapping"]
        if len(offsets) <= self._text_tokens:
            return text
        room = offsets[self._text_tokens][0] - len(_PROMPT.format(""))
        cut = text[: max(room, 0)]
        return cut[: cut.rfind(" ")] if " " in cut else cut


def parse_answer(
    answer: str, caption: str, size: tuple[int, int], post_processor: Any
) -> tuple[list[Grounded], list[Dropped]]:
    """Phrases and boxes of an answer, by the processor's post-processing; drops are reported.

    Args:
        answer: raw output, such as ``</s><s>A dog<loc_1><loc_2><loc_3><loc_4></s>``.
        caption: the caption it predictions.
        size: (width, height) of the image in pixels.
        post_processor: `Florence2PostProcessor`.
    """
    import torch

    parsed = post_processor(text=answer, image_size=size, parse_tasks="phrase_grounding")
    finder = SpanFinder(caption, ascii_only=True)  # the post-processing drops all but ASCII
    phrases: list[Grounded] = []
    dropped = _unparsed(answer, post_processor.banned_grounding_tokens)
    for phrase in parsed["phrase_grounding"]:
        span = finder.find(phrase["cat_name"])
        if span is None:
            label = phrase["cat_name"]
            dropped.append(Dropped(label, "not_in_caption", finder.reason(label)))
            continue
        boxes = torch.tensor(phrase["bbox"], dtype=torch.float32)
        phrases.append(Grounded(caption[slice(*span)], *span, boxes, torch.ones(len(boxes))))
    return phrases, dropped


def _unparsed(answer: str, banned: set[str]) -> list[Dropped]:
    """What the post-processing drops silently."""
    text = _SPECIAL.sub("", answer)
    complete = answer.removesuffix("<pad>").rstrip().endswith("</s>") or "</s><pad>" in answer
    if not text.strip():
        return [Dropped("", "no_phrase", "the answer is empty")]
    dropped: list[Dropped] = []
    for match in _LOCATED.finditer(text):
        label, places = match[1].strip(), match[2].count("<loc_")
        if not (label or places):
            continue
        last = match.end() == len(text)
        if places % 4 or (not places and last and not complete):
            detail = f"{places} location tokens, expected four for each box"
            dropped.append(Dropped(label, "unfinished", detail))
        elif not places:
            dropped.append(Dropped(label, "no_box", "the answer gives no location"))
        elif not label:
            dropped.append(Dropped("", "no_phrase", "locations without a phrase before them"))
        elif label in banned:
            dropped.append(Dropped(label, "no_phrase", "the processor takes it for no phrase"))
    return dropped
