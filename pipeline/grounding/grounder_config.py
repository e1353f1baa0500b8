"""What a user writes to ask for a grounding: grounders, and the rules that phrases must meet."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from pipeline.encoders.encoder_config import parse_weights
from pipeline.grounding.segmenters.segmenter_config import Sam2Settings, SegmenterSettings
from sightline.family_settings import FamilySettings
from sightline.registry import Registry

if TYPE_CHECKING:
    import torch

    from pipeline.grounding.protocols import Grounder

CaptionChoice = Literal["longest", "all"]
_Share = Annotated[float, Field(ge=0, le=1)]


class Rules(BaseModel):
    """Which phrases and boxes become records.

    Attributes:
        boxes: of a phrase with several boxes the one with the ``best`` score (the first of equal
            ones), or the ``union`` of all.
        min_score: boxes that score less are dropped.
        min_area: in pixels; boxes, and masks, that cover less are dropped.
        max_share: boxes that cover a larger share of the image are dropped.
        duplicate_iou: of two phrases of a caption whose boxes overlap at least this much
            (intersection over union) only the better one stays; null keeps both.
        max_pairs: phrases of a caption at most, the best first; null sets no limit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    boxes: Literal["best", "union"] = "best"
    min_score: _Share = 0.0
    min_area: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    max_share: _Share = 1.0
    duplicate_iou: Annotated[float, Field(gt=0, le=1)] | None = 0.95
    max_pairs: Annotated[int, Field(ge=1)] | None = None


class GrounderSettings(FamilySettings):
    """One grounder; a family is a subclass with its parameters."""

    families: ClassVar[Registry] = Registry(
        "grounder",
        "sightline.grounders",
        {
            "florence2": "pipeline.grounding.grounder_config:Florence2Settings",
            "grounding-dino": "pipeline.grounding.grounder_config:GroundingDinoSettings",
            "annotations": "pipeline.grounding.grounder_config:AnnotationSettings",
        },
    )

    @abstractmethod
    def build(self, device: torch.device, precision: str) -> Grounder:
        """The grounder that this describes, ready on ``device``.

        Raises:
            SightlineError: whatever keeps it from being built, in one message.
        """


class _Model(GrounderSettings):
    """A model from a folder or the hub.

    Attributes:
        model: folder, or hub name.
        weights: ``pretrained``, ``pretrained:REVISION`` or ``random:SEED``.
    """

    model: str = Field(min_length=1)
    weights: str = "pretrained"

    @field_validator("weights")
    @classmethod
    def _weights_have_a_known_form(cls, weights: str) -> str:
        if parse_weights(weights).kind == "file":
            raise ValueError("write pretrained, pretrained:REVISION or random:SEED")
        return weights


class Florence2Settings(_Model):
    """Florence-2.

    Attributes:
        beams: of the search for the answer.
        max_length: of the answer, in tokens.
    """

    family: Literal["florence2"]
    beams: int = Field(default=3, ge=1, le=64)
    max_length: int = Field(default=1024, ge=8)

    def build(self, device: torch.device, precision: str) -> Grounder:
        from pipeline.grounding import florence2

        return florence2.build(self, device, precision)


class GroundingDinoSettings(_Model):
    """Grounding DINO; the thresholds are those of its authors' demonstration.

    Attributes:
        box_threshold: a box stays if any token of the text scores more for it.
        text_threshold: a phrase owns a box if one of its own tokens scores more for it.
    """

    family: Literal["grounding-dino"]
    box_threshold: _Share = 0.35
    text_threshold: _Share = 0.25

    def build(self, device: torch.device, precision: str) -> Grounder:
        from pipeline.grounding import grounding_dino

        return grounding_dino.build(self, device, precision)


class AnnotationSettings(GrounderSettings):
    """Boxes that people drew.

    Attributes:
        path: a phrases manifest (Parquet), or the folder of Flickr30k Entities.
    """

    family: Literal["annotations"]
    path: Path

    def build(self, device: torch.device, precision: str) -> Grounder:
        from pipeline.grounding.annotations import open_annotations

        return open_annotations(self.path)


class GroundingSettings(BaseModel):
    """How a data set's captions are grounded.

    Attributes:
        captions: every caption of an image, or the ``longest``, as training chooses it.
        grounder: finds phrases and their boxes.
        segmenter: finds the pixels in a box; SAM 2.1 (large) by the sam2 package unless told
            otherwise.
        rules: which phrases and boxes become records.
        batch_size: captions, and images, of a model call to begin with.
        block_images: images of a shard; a kill repeats at most as many.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    captions: CaptionChoice = "longest"
    grounder: GrounderSettings
    segmenter: SegmenterSettings = Sam2Settings()
    rules: Rules = Rules()
    batch_size: int = Field(default=16, ge=1, le=4096)
    block_images: int = Field(default=256, ge=1, le=65_536)
