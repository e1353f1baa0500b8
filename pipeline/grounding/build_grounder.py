"""From settings to a grounder: the one list of families there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.grounding.grounder_config import (
    AnnotationSettings,
    Florence2Settings,
    GrounderSettings,
)
from pipeline.grounding.protocols import Grounder

if TYPE_CHECKING:
    import torch


def build_grounder(settings: GrounderSettings, device: torch.device, precision: str) -> Grounder:
    """The grounder that ``settings`` describe, ready on ``device``.

    Raises:
        SightlineError: whatever keeps it from being built, in one message.
    """
    if isinstance(settings, AnnotationSettings):
        from pipeline.grounding.annotations import open_annotations

        return open_annotations(settings.path)
    if isinstance(settings, Florence2Settings):
        from pipeline.grounding import florence2

        return florence2.build(settings, device, precision)
    from pipeline.grounding import grounding_dino

    return grounding_dino.build(settings, device, precision)
