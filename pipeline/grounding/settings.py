"""A user's description of a grounding: its grounder, its segmenter, and the rules for phrases."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from pipeline.encoders.config import Weights, parse_weights
from sightline.identity import Elsewhere, Outside
from sightline.settings import FamilySettings, Registry, Settings

if TYPE_CHECKING:
    import torch

    from pipeline.grounding.protocols import Grounder, Segmenter

CaptionChoice = Literal["longest", "all"]
BoxFormat = Literal["xyxy", "xywh", "rel_xyxy", "rel_xywh"]
"""Corners, or a corner with width and height; in pixels, or from 0 to 1 of the image."""
_Share = Annotated[float, Field(ge=0, le=1)]
_DESCRIBED = Elsewhere("`describe` of what it builds")
_RUN = Outside("how it runs")


class Rules(Settings):
    """Which phrases and boxes become records.

    Attributes:
        boxes: for a phrase with several boxes, use the one with the ``best`` score (the first of
            equal ones), or the ``union`` of all.
        min_score: boxes with a lower score are dropped.
        min_area: in pixels; boxes and masks that cover less are dropped.
        max_share: boxes that cover a larger fraction of the image are dropped.
        duplicate_iou: if the boxes of two phrases of a caption overlap at least this much
            (intersection over union), only the better one is kept; null keeps both.
        max_pairs: maximum phrases per caption, the best first; null sets no limit.
    """

    boxes: Literal["best", "union"] = "best"
    min_score: _Share = 0.0
    min_area: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    max_share: _Share = 1.0
    duplicate_iou: Annotated[float, Field(gt=0, le=1)] | None = 0.95
    max_pairs: Annotated[int, Field(ge=1)] | None = None


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
            "florence2": "pipeline.grounding.settings:Florence2Settings",
            "grounding-dino": "pipeline.grounding.settings:GroundingDinoSettings",
            "mm-grounding-dino": "pipeline.grounding.settings:MMGroundingDinoSettings",
            "sam3": "pipeline.grounding.settings:Sam3Settings",
            "annotations": "pipeline.grounding.settings:AnnotationSettings",
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

    model: Annotated[str, _DESCRIBED] = Field(min_length=1)
    weights: Annotated[str, _DESCRIBED] = "pretrained"

    @field_validator("weights")
    @classmethod
    def _weights_have_a_known_form(cls, weights: str) -> str:
        if parse_weights(weights).kind == "file":
            raise ValueError("write pretrained, pretrained:REVISION or random:SEED")
        return weights

    def require_files(self) -> None:
        from sightline.pretrained import Pretrained

        Pretrained(self.model, parse_weights(self.weights).revision)


class Florence2Settings(ModelSettings):
    """Florence-2.

    Attributes:
        beams: beams of the decoder's search.
        max_length: maximum length of the answer, in tokens; the model's positions at most.
    """

    family: Literal["florence2"]
    beams: Annotated[int, _DESCRIBED] = Field(default=3, ge=1, le=64)
    max_length: Annotated[int, _DESCRIBED] = Field(default=1024, ge=8)

    def build(self, device: torch.device, precision: str) -> Grounder:
        from pipeline.grounding.florence2 import Florence2Grounder

        return Florence2Grounder.load(self, device, precision)


class GroundingDinoSettings(ModelSettings):
    """Grounding DINO; the default thresholds are those of its authors' demo.

    Attributes:
        box_threshold: a box is kept if any token of the text scores higher for it.
        text_threshold: a phrase gets a box if one of the phrase's tokens scores higher for it.
    """

    family: Literal["grounding-dino"]
    box_threshold: Annotated[_Share, _DESCRIBED] = 0.35
    text_threshold: Annotated[_Share, _DESCRIBED] = 0.25

    def build(self, device: torch.device, precision: str) -> Grounder:
        from pipeline.grounding.grounding_dino import GroundingDinoGrounder

        return GroundingDinoGrounder.load(self, device, precision)


class MMGroundingDinoSettings(GroundingDinoSettings):
    """MM Grounding DINO or LLMDet, with the parameters of Grounding DINO."""

    family: Literal["mm-grounding-dino"]  # pyright: ignore[reportIncompatibleVariableOverride]

    def build(self, device: torch.device, precision: str) -> Grounder:
        from pipeline.grounding.grounding_dino import MMGroundingDinoGrounder

        return MMGroundingDinoGrounder.load(self, device, precision)


class Sam3Settings(ModelSettings):
    """SAM 3; the default thresholds are those of its processor. Its masks need no segmenter.

    Attributes:
        threshold: a box is kept if its score is higher.
        mask_threshold: a pixel belongs to a mask if its probability is higher.
    """

    family: Literal["sam3"]
    threshold: Annotated[_Share, _DESCRIBED] = 0.3
    mask_threshold: Annotated[_Share, _DESCRIBED] = 0.5

    def build(self, device: torch.device, precision: str) -> Grounder:
        from pipeline.grounding.sam3 import Sam3Grounder

        return Sam3Grounder.load(self, device, precision)


class AnnotationSettings(GrounderSettings):
    """Human-drawn boxes.

    Attributes:
        path: a table of boxes, a phrases manifest, or the folder of Flickr30k Entities.
        box_format: of a table without that column; null is xyxy.
    """

    needs_device = False
    family: Literal["annotations"]
    path: Annotated[Path, _DESCRIBED]
    box_format: Annotated[BoxFormat | None, _DESCRIBED] = None

    def require_files(self) -> None:
        from pipeline.grounding.annotations import require_annotations

        require_annotations(self.path)

    def build(self, device: torch.device, precision: str) -> Grounder:
        from pipeline.grounding.annotations import open_annotations

        return open_annotations(self.path, self.box_format)


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
            "box": "pipeline.grounding.settings:BoxSettings",
            "annotations": "pipeline.grounding.settings:GrounderMasksSettings",
            "sam2": "pipeline.grounding.settings:Sam2Settings",
            "sam2-hf": "pipeline.grounding.settings:Sam2HfSettings",
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


class BoxSettings(SegmenterSettings):
    """The rectangle itself."""

    needs_device = False
    family: Literal["box"]

    def build(self, device: torch.device, precision: str) -> Segmenter:
        from pipeline.grounding.segmenters.box import BoxSegmenter

        return BoxSegmenter()


class GrounderMasksSettings(SegmenterSettings):
    """The masks that came with the grounder's boxes."""

    needs_device = False
    family: Literal["annotations"]

    def build(self, device: torch.device, precision: str) -> None:
        return None


class Sam2Settings(SegmenterSettings):
    """SAM 2 with Meta's code, the sam2 package.

    Attributes:
        model: ``sam2-hiera-{tiny,small,base-plus,large}``, the same with ``sam2.1``, or the path of
            a configuration (YAML) of that package.
        weights: ``pretrained``, ``pretrained:REVISION``, ``file:PATH`` or ``random:SEED``.
    """

    family: Literal["sam2"] = "sam2"
    model: Annotated[str, _DESCRIBED] = Field(default="sam2.1-hiera-large", min_length=1)
    weights: Annotated[Weights, _DESCRIBED] = "pretrained"

    def build(self, device: torch.device, precision: str) -> Segmenter:
        from pipeline.grounding.segmenters import sam2

        return sam2.build(self, device, precision)


class Sam2HfSettings(Sam2Settings):
    """SAM 2 with transformers' Sam2Model, with the parameters of `Sam2Settings`.

    Attributes:
        model: folder, or hub name; weights of a file have its configuration.
    """

    family: Literal["sam2-hf"] = "sam2-hf"  # pyright: ignore[reportIncompatibleVariableOverride]
    model: Annotated[str, _DESCRIBED] = Field(default="facebook/sam2.1-hiera-large", min_length=1)

    def build(self, device: torch.device, precision: str) -> Segmenter:
        from pipeline.grounding.segmenters import sam2_hf

        return sam2_hf.build(self, device, precision)


class GroundingSettings(Settings):
    """How to ground a data set's captions.

    Attributes:
        captions: every caption of an image, or the ``longest``, as chosen in training.
        grounder: finds phrases and their boxes.
        segmenter: finds the pixels in a box; default: SAM 2.1 (large) from the sam2 package.
        rules: which phrases and boxes become records.
        batch_size: initial captions, and images, per model call.
        block_images: images per block; a kill loses at most this many. With a model behind an API
            a block is one image.
        cutouts: whether the objects' pictures are stored as well; their set is empty otherwise.
    """

    captions: Annotated[CaptionChoice, Elsewhere("the keys of the rows")] = "longest"
    grounder: Annotated[GrounderSettings, _DESCRIBED]
    segmenter: Annotated[SegmenterSettings, _DESCRIBED] = Sam2Settings()
    rules: Annotated[Rules, Elsewhere("the rules of the grounding")] = Rules()
    batch_size: Annotated[int, _RUN] = Field(default=16, ge=1, le=4096)
    block_images: Annotated[int, _RUN] = Field(default=256, ge=1, le=65_536)
    cutouts: Annotated[bool, Outside("makes another set")] = True
