"""`grounding-dino`, `mm-grounding-dino`: boxes for a caption's noun phrases, by token scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pipeline.grounding import noun_phrases
from pipeline.grounding.grounding_model import ModelGrounder
from pipeline.grounding.protocols import (
    Answer,
    Caption,
    Dropped,
    Grounded,
    Grounder,
    GroundingError,
)
from pipeline.grounding.settings import DESCRIBED, ModelSettings, Share
from sightline.devices import computing

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class GroundingDinoSettings(ModelSettings):
    """Grounding DINO; the default thresholds are those of its authors' demo.

    Attributes:
        box_threshold: a box is kept if any token of the text scores higher for it.
        text_threshold: a phrase gets a box if one of the phrase's tokens scores higher for it.
    """

    family: Literal["grounding-dino"]
    box_threshold: Annotated[Share, DESCRIBED] = 0.35
    text_threshold: Annotated[Share, DESCRIBED] = 0.25

    def build(self, device: torch.device, precision: str) -> Grounder:
        return GroundingDinoGrounder.load(self, device, precision)


class MMGroundingDinoSettings(GroundingDinoSettings):
    """MM Grounding DINO or LLMDet, with the parameters of Grounding DINO."""

    family: Literal["mm-grounding-dino"]  # pyright: ignore[reportIncompatibleVariableOverride]

    def build(self, device: torch.device, precision: str) -> Grounder:
        return MMGroundingDinoGrounder.load(self, device, precision)


@dataclass(frozen=True)
class _Query:
    """A caption's noun phrases as one text: "a man. a dog.", and the tokens of each."""

    input_ids: list[int]
    spans: list[tuple[int, int]]  # in the caption
    tokens: list[list[int]]  # positions in input_ids
    beyond: list[tuple[int, int]]  # spans of phrases that no longer fit


class GroundingDinoGrounder(ModelGrounder[GroundingDinoSettings]):
    """Captions → boxes for their noun phrases.

    A box counts if any token of the text scores above the box threshold for it. It belongs to
    every phrase with a token that scores above the text threshold, and the phrase's score is that
    of its best token: the rule of the model's authors, who print a box with all such words.
    """

    name = "grounding-dino"
    model_types = ("grounding-dino",)
    architecture = "GroundingDinoForObjectDetection"

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "chunker": noun_phrases.NAME}

    def ground(self, images: Sequence[Tensor], captions: Sequence[Caption]) -> list[Answer]:
        """See `Grounder`; images of one size share a batch, so that none needs padding."""
        queries = [self._query(caption.text) for caption in captions]
        scored: dict[int, tuple[Tensor, Tensor]] = {}
        sizes: dict[torch.Size, list[int]] = {}
        for i, (image, query) in enumerate(zip(images, queries, strict=True)):
            if query.spans:
                self._require_pixels(image, captions[i])
                sizes.setdefault(image.shape, []).append(i)
        for rows in sizes.values():
            outputs = self._forward([images[i] for i in rows], [queries[i] for i in rows])
            scored.update(zip(rows, outputs, strict=True))
        return [
            self._answer(caption.text, query, scored.get(i))
            for i, (caption, query) in enumerate(zip(captions, queries, strict=True))
        ]

    def _require_pixels(self, image: Tensor, caption: Caption) -> None:
        """Reject a strip that the image processor would scale to zero width."""
        longest = self._processor.image_processor.size.get("longest_edge")
        height, width = image.shape[1:]
        if longest is not None and longest * min(height, width) < max(height, width):
            raise GroundingError(
                caption.image_key,
                "too_narrow",
                f"{width} × {height} pixels: scaled to {longest} on the longer side, the other "
                "side is less than one pixel",
            )

    def _forward(
        self, images: Sequence[Tensor], queries: Sequence[_Query]
    ) -> list[tuple[Tensor, Tensor]]:
        """For each image: boxes float32 [q, 4] in pixels, token scores float32 [q, tokens]."""
        import torch

        inputs = self._processor.image_processor(images=list(images), return_tensors="pt")
        longest = max(len(query.input_ids) for query in queries)
        ids = torch.full((len(queries), longest), self._processor.tokenizer.pad_token_id)
        mask = torch.zeros_like(ids)
        for row, query in enumerate(queries):
            ids[row, : len(query.input_ids)] = torch.tensor(query.input_ids)
            mask[row, : len(query.input_ids)] = 1
        with computing(self._device, self._precision):
            output = self._model(
                pixel_values=inputs["pixel_values"].to(self._device),
                pixel_mask=inputs["pixel_mask"].to(self._device),
                input_ids=ids.to(self._device),
                attention_mask=mask.to(self._device),
                token_type_ids=torch.zeros_like(ids).to(self._device),
            )
        scores = output.logits.float().sigmoid().cpu()  # [n, q, max_text_len]
        centres = output.pred_boxes.float().cpu()  # [n, q, 4]: centre x, y, width, height; shares
        half = centres[..., 2:] / 2
        corners = torch.cat([centres[..., :2] - half, centres[..., :2] + half], dim=-1)
        height, width = images[0].shape[1:]
        boxes = corners * torch.tensor([width, height, width, height], dtype=torch.float32)
        return [
            (boxes[row], scores[row, :, : len(query.input_ids)])
            for row, query in enumerate(queries)
        ]

    def _answer(self, caption: str, query: _Query, output: tuple[Tensor, Tensor] | None) -> Answer:
        import torch

        if output is None:
            if query.beyond:
                return [], [self._beyond(caption, span) for span in query.beyond]
            return [], [Dropped("", "no_phrase", "the caption has no noun phrase")]
        boxes, scores = output
        passed = scores.amax(dim=1) > self._settings.box_threshold  # [q]
        phrases: list[Grounded] = []
        dropped: list[Dropped] = []
        for span, tokens in zip(query.spans, query.tokens, strict=True):
            phrase = caption[slice(*span)]
            of_phrase = scores[:, tokens].amax(dim=1)  # [q]
            rows = torch.nonzero(passed & (of_phrase > self._settings.text_threshold)).flatten()
            if len(rows):
                phrases.append(Grounded(phrase, *span, boxes[rows], of_phrase[rows]))
            else:
                best = float(torch.where(passed, of_phrase, 0).max()) if bool(passed.any()) else 0.0
                detail = f"no box above the thresholds (best of the boxes: {best:.3f})"
                dropped.append(Dropped(phrase, "no_box", detail))
        return phrases, dropped + [self._beyond(caption, span) for span in query.beyond]

    def _beyond(self, caption: str, span: tuple[int, int]) -> Dropped:
        most = self._model.config.max_text_len
        detail = f"the phrases before it fill the {most} tokens that the model reads"
        return Dropped(caption[slice(*span)], "too_long", detail)

    def _query(self, caption: str) -> _Query:
        """The caption's noun phrases, lower case, each with a full stop, as the model expects.

        Its text layers separate phrases at "." and "?", so those inside a phrase become spaces.
        """
        tokenizer: Any = self._processor.tokenizer
        begin, end = tokenizer.cls_token_id, tokenizer.sep_token_id
        stop = tokenizer.convert_tokens_to_ids(".")
        query = _Query([begin], [], [], [])
        most = self._model.config.max_text_len
        for span in noun_phrases.noun_phrases(caption):
            words = caption[slice(*span)].lower().replace(".", " ").replace("?", " ")
            ids = tokenizer(words, add_special_tokens=False)["input_ids"]
            if not ids:
                continue
            at = len(query.input_ids)
            if at + len(ids) + 2 > most:
                query.beyond.append(span)
                continue
            query.spans.append(span)
            query.tokens.append(list(range(at, at + len(ids))))
            query.input_ids.extend([*ids, stop])
        query.input_ids.append(end)
        return query


class MMGroundingDinoGrounder(GroundingDinoGrounder):
    """MM Grounding DINO and LLMDet, which share an architecture, as Grounding DINO."""

    name = "mm-grounding-dino"
    model_types = ("mm-grounding-dino",)
    architecture = "MMGroundingDinoForObjectDetection"
