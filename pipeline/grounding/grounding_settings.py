"""A user's description of a grounding: its grounder, its segmenter, and the rules for phrases."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipeline.grounding.segmenters.sam2 import Sam2Settings
from pipeline.grounding.settings import DESCRIBED, GrounderSettings, SegmenterSettings, Share
from sightline.identity import Elsewhere, Outside
from sightline.settings import Settings

CaptionChoice = Literal["longest", "all"]
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
    min_score: Share = 0.0
    min_area: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    max_share: Share = 1.0
    duplicate_iou: Annotated[float, Field(gt=0, le=1)] | None = 0.95
    max_pairs: Annotated[int, Field(ge=1)] | None = None


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
    grounder: Annotated[GrounderSettings, DESCRIBED]
    segmenter: Annotated[SegmenterSettings, DESCRIBED] = Sam2Settings()
    rules: Annotated[Rules, Elsewhere("the rules of the grounding")] = Rules()
    batch_size: Annotated[int, _RUN] = Field(default=16, ge=1, le=4096)
    block_images: Annotated[int, _RUN] = Field(default=256, ge=1, le=65_536)
    cutouts: Annotated[bool, Outside("makes another set")] = True
