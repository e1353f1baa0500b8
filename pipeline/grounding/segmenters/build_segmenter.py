"""From settings to a segmenter: the one list of families there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.grounding.protocols import Segmenter
from pipeline.grounding.segmenters.segmenter_config import (
    BoxSettings,
    DrawnSettings,
    Sam2Settings,
    SegmenterSettings,
)

if TYPE_CHECKING:
    import torch


def build_segmenter(
    settings: SegmenterSettings, device: torch.device, precision: str
) -> Segmenter | None:
    """The segmenter that ``settings`` describe, ready on ``device``.

    Returns:
        None for ``annotations``: masks come with the grounder's boxes, and nothing is computed.

    Raises:
        SightlineError: whatever keeps it from being built, in one message.
    """
    if isinstance(settings, DrawnSettings):
        return None
    if isinstance(settings, BoxSettings):
        from pipeline.grounding.segmenters.box import BoxSegmenter

        return BoxSegmenter()
    if isinstance(settings, Sam2Settings):
        from pipeline.grounding.segmenters import sam2

        return sam2.build(settings, device, precision)
    from pipeline.grounding.segmenters import sam2_hf

    return sam2_hf.build(settings, device, precision)
