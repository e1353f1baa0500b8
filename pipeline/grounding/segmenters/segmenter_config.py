"""A user's description of a segmenter."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from pipeline.encoders.config import Weights, WeightsSpec, parse_weights
from sightline.settings import FamilySettings, Registry

if TYPE_CHECKING:
    import torch

    from pipeline.grounding.protocols import Segmenter


class SegmenterSettings(FamilySettings):
    """One segmenter; a family is a subclass with its parameters."""

    families: ClassVar[Registry] = Registry(
        "segmenter",
        "sightline.segmenters",
        {
            "box": "pipeline.grounding.segmenters.segmenter_config:BoxSettings",
            "annotations": "pipeline.grounding.segmenters.segmenter_config:DrawnSettings",
            "sam2": "pipeline.grounding.segmenters.segmenter_config:Sam2Settings",
            "sam2-hf": "pipeline.grounding.segmenters.segmenter_config:Sam2HfSettings",
        },
    )

    @abstractmethod
    def build(self, device: torch.device, precision: str) -> Segmenter | None:
        """The segmenter that this describes, ready on ``device``.

        Returns:
            None if masks come with the grounder's boxes, and nothing is computed.

        Raises:
            SightlineError: it cannot be built; one message gives the reason.
        """


class _Model(SegmenterSettings):
    weights: Weights = "pretrained"

    @property
    def weights_spec(self) -> WeightsSpec:
        """``weights``, parsed."""
        return parse_weights(self.weights)


class BoxSettings(SegmenterSettings):
    """The rectangle itself."""

    family: Literal["box"]

    def build(self, device: torch.device, precision: str) -> Segmenter:
        from pipeline.grounding.segmenters.box import BoxSegmenter

        return BoxSegmenter()


class DrawnSettings(SegmenterSettings):
    """The masks that came with the grounder's boxes."""

    family: Literal["annotations"]

    def build(self, device: torch.device, precision: str) -> None:
        return None


class Sam2Settings(_Model):
    """SAM 2 with Meta's code, the sam2 package.

    Attributes:
        model: ``sam2-hiera-{tiny,small,base-plus,large}``, the same with ``sam2.1``, or the path of
            a configuration (YAML) of that package.
        weights: ``pretrained`` or ``pretrained:REVISION`` (Meta's, from the hub), ``file:PATH``
            or ``random:SEED``.
    """

    family: Literal["sam2"] = "sam2"
    model: str = Field(default="sam2.1-hiera-large", min_length=1)

    def build(self, device: torch.device, precision: str) -> Segmenter:
        from pipeline.grounding.segmenters import sam2

        return sam2.build(self, device, precision)


class Sam2HfSettings(_Model):
    """SAM 2 with transformers' Sam2Model.

    Attributes:
        model: folder, or hub name.
        weights: ``pretrained``, ``pretrained:REVISION``, ``file:PATH`` (its configuration is the
            model's) or ``random:SEED``.
    """

    family: Literal["sam2-hf"]
    model: str = Field(default="facebook/sam2.1-hiera-large", min_length=1)

    def build(self, device: torch.device, precision: str) -> Segmenter:
        from pipeline.grounding.segmenters import sam2_hf

        return sam2_hf.build(self, device, precision)
