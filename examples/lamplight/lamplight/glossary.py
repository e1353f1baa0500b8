"""Listed words as phrases, each with the whole picture as its box."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from pipeline.grounding.protocols import Answer, Caption, Dropped, Grounded
from pipeline.grounding.settings import GrounderSettings


class GlossarySettings(GrounderSettings):
    """Words to look for.

    Attributes:
        words: as captions write them; upper and lower case count as the same.
    """

    words: tuple[str, ...] = Field(min_length=1)

    def build(self, device: torch.device, precision: str) -> GlossaryGrounder:
        return GlossaryGrounder(self.words)


class GlossaryGrounder:
    """Every listed word of a caption is a phrase."""

    name = "glossary"

    def __init__(self, words: Sequence[str]) -> None:
        self._words = list(words)
        either = "|".join(map(re.escape, words))
        self._pattern = re.compile(rf"\b(?:{either})\b", re.IGNORECASE)

    def describe(self) -> dict[str, object]:
        return {"family": self.name, "words": self._words}

    def ground(self, images: Sequence[Tensor], captions: Sequence[Caption]) -> list[Answer]:
        return [self._answer(*each) for each in zip(images, captions, strict=True)]

    def _answer(self, image: Tensor, caption: Caption) -> Answer:
        height, width = image.shape[1:]
        box = torch.tensor([[0.0, 0.0, width, height]])
        found = [
            Grounded(match[0], match.start(), match.end(), box, torch.ones(1))
            for match in self._pattern.finditer(caption.text)
        ]
        if not found:
            return [], [Dropped("", "no_phrase", "the caption has none of the words")]
        return found, []
