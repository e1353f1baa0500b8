"""What a user writes to ask for a grounding: the rules that a phrase and its boxes must meet."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

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
