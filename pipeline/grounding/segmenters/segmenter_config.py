"""What a user writes to ask for a segmenter."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from pipeline.encoders.encoder_config import WeightsSpec, parse_weights


class _Segmenter(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class _Model(_Segmenter):
    weights: str = "pretrained"

    @field_validator("weights")
    @classmethod
    def _weights_have_a_known_form(cls, weights: str) -> str:
        parse_weights(weights)
        return weights

    @property
    def weights_spec(self) -> WeightsSpec:
        """``weights``, taken apart."""
        return parse_weights(self.weights)


class BoxSettings(_Segmenter):
    """The rectangle itself."""

    family: Literal["box"]


class DrawnSettings(_Segmenter):
    """The masks that came with the grounder's boxes."""

    family: Literal["annotations"]


class Sam2Settings(_Model):
    """SAM 2 by Meta's own code, the sam2 package.

    Attributes:
        model: ``sam2-hiera-{tiny,small,base-plus,large}``, the same with ``sam2.1``, or the path of
            a configuration (YAML) of that package.
        weights: ``pretrained`` or ``pretrained:REVISION`` (Meta's, from the hub), ``file:PATH``
            or ``random:SEED``.
    """

    family: Literal["sam2"] = "sam2"
    model: str = Field(default="sam2.1-hiera-large", min_length=1)


class Sam2HfSettings(_Model):
    """SAM 2 by transformers' Sam2Model.

    Attributes:
        model: folder, or hub name.
        weights: ``pretrained``, ``pretrained:REVISION``, ``file:PATH`` (its configuration is the
            model's) or ``random:SEED``.
    """

    family: Literal["sam2-hf"]
    model: str = Field(default="facebook/sam2.1-hiera-large", min_length=1)


SegmenterSettings = Annotated[
    BoxSettings | DrawnSettings | Sam2Settings | Sam2HfSettings, Field(discriminator="family")
]
"""One segmenter."""
