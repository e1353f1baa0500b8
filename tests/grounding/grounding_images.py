"""Pictures and captions for tests of grounding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pipeline.grounding.protocols import Caption
from sightline.cache import key_of_text


def pictures(*sizes: tuple[int, int]) -> list[Tensor]:
    """uint8 [3, h, w] of noise, always the same."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randint(0, 256, (3, *size), generator=generator, dtype=torch.uint8) for size in sizes
    ]


def captions_of(texts: Sequence[str]) -> list[Caption]:
    """A caption for each text, each with a separate image."""
    return [Caption(str(i), key_of_text(f"image {i}"), text) for i, text in enumerate(texts)]
