"""What the settings of all grounders share, and those of all segmenters."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, field_validator

from pipeline.encoders.config import parse_weights
from sightline.identity import Elsewhere
from sightline.settings import FamilySettings, Registry

if TYPE_CHECKING:
    import torch

    from pipeline.grounding.protocols import Grounder, Segmenter

Share = Annotated[float, Field(ge=0, le=1)]
DESCRIBED = Elsewhere("`describe` of what it builds")


class GrounderSettings(FamilySettings):
    """One grounder; a family is a subclass with its parameters.

    Attributes:
        needs_device: whether it computes on a device of this machine.
        family: name in the registry.
    """

    needs_device: ClassVar[bool] = True

    families: ClassVar[Registry] = Registry(
        "grounder",
        "sightline.grounders",
        {
            "florence2": "pipeline.grounding.florence2:Florence2Settings",
            "grounding-dino": "pipeline.grounding.grounding_dino:GroundingDinoSettings",
            "mm-grounding-dino": "pipeline.grounding.grounding_dino:MMGroundingDinoSettings",
            "sam3": "pipeline.grounding.sam3:Sam3Settings",
            "annotations": "pipeline.grounding.annotations:AnnotationSettings",
        },
    )

    family: str

    @abstractmethod
    def build(self, device: torch.device, precision: str) -> Grounder:
        """The grounder that this describes, ready on ``device``.

        Raises:
            SightlineError: it cannot be built; one message gives the reason.
        """


class ModelSettings(GrounderSettings):
    """A grounder's model, from a folder or the hub.

    Attributes:
        model: folder, or hub name.
        weights: ``pretrained``, ``pretrained:REVISION`` or ``random:SEED``.
    """

    model: Annotated[str, DESCRIBED] = Field(min_length=1)
    weights: Annotated[str, DESCRIBED] = "pretrained"

    @field_validator("weights")
    @classmethod
    def _weights_have_a_known_form(cls, weights: str) -> str:
        if parse_weights(weights).kind == "file":
            raise ValueError("write pretrained, pretrained:REVISION or random:SEED")
        return weights

    def require_files(self) -> None:
        from sightline.models.pretrained import Pretrained

        Pretrained(self.model, parse_weights(self.weights).revision)


class SegmenterSettings(FamilySettings):
    """One segmenter; a family is a subclass with its parameters.

    Attributes:
        needs_device: whether it computes on a device of this machine.
        family: name in the registry.
    """

    needs_device: ClassVar[bool] = True

    families: ClassVar[Registry] = Registry(
        "segmenter",
        "sightline.segmenters",
        {
            "box": "pipeline.grounding.segmenters.box:BoxSettings",
            "annotations": "pipeline.grounding.segmenters.drawn:DrawnMasksSettings",
            "sam2": "pipeline.grounding.segmenters.sam2:Sam2Settings",
            "sam2-hf": "pipeline.grounding.segmenters.sam2_hf:Sam2HfSettings",
        },
    )

    family: str

    @abstractmethod
    def build(self, device: torch.device, precision: str) -> Segmenter | None:
        """The segmenter that this describes, ready on ``device``.

        Returns:
            None if masks come with the grounder's boxes, and nothing is computed.

        Raises:
            SightlineError: it cannot be built; one message gives the reason.
        """
