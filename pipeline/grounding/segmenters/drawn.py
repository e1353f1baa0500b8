"""The segmenter `annotations`: masks that came with the grounder's boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pipeline.grounding.settings import SegmenterSettings

if TYPE_CHECKING:
    import torch


class DrawnMasksSettings(SegmenterSettings):
    """The masks that came with the grounder's boxes."""

    needs_device = False
    family: Literal["annotations"]

    def build(self, device: torch.device, precision: str) -> None:
        return None
