"""What the rows of the frozen models depend on: the section `extract` of params.yaml."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sightline.cache.record import DTypeName
from sightline.devices import Precision
from sightline.identity import Elsewhere, Outside
from sightline.settings import Settings


class CutoutRules(Settings):
    """Options for turning a cut-out into an input.

    Attributes:
        margin: what is left around an object on every side, as a fraction of the longer side.
        background: what transparent pixels are composited on: the encoder's ``mean`` colour
            (which normalises to 0), ``white`` or ``black``. ``keep`` leaves the image's own
            pixels in the box; only what lies outside the box is the mean colour.
    """

    margin: float = Field(default=0.1, ge=0, le=1)
    background: Literal["mean", "white", "black", "keep"] = "mean"


class ExtractSettings(Settings):
    """What the rows of the frozen models depend on, besides the models.

    Attributes:
        precision: compute precision.
        dtype: storage dtype.
        batch_size: rows per batch of an encoder, which pads the last one; part of the plan.
        max_failed: fraction of the rows that may fail before a run ends with an error.
        cutouts: preprocessing of objects for image encoders.
    """

    precision: Annotated[Precision, Elsewhere("the precision of the rows")] = "fp32"
    dtype: Annotated[DTypeName, Elsewhere("the type of the rows")] = "float16"
    batch_size: Annotated[int, Outside("part of the plan")] = Field(default=64, ge=1, le=4096)
    max_failed: Annotated[float, Outside("ends a run")] = Field(default=0.01, ge=0, le=1)
    cutouts: Annotated[CutoutRules, Elsewhere("the preprocessing of objects")] = CutoutRules()
