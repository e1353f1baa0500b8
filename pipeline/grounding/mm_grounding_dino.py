"""The grounder `mm-grounding-dino`: MM Grounding DINO and LLMDet, which share its architecture."""

from __future__ import annotations

from pipeline.grounding.grounding_dino import GroundingDinoGrounder


class MMGroundingDinoGrounder(GroundingDinoGrounder):
    """As Grounding DINO: captions → boxes for their noun phrases, by token scores."""

    name = "mm-grounding-dino"
    model_types = ("mm-grounding-dino",)
    architecture = "MMGroundingDinoForObjectDetection"
