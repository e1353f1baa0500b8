"""Names that parameters may take, kept free of torch so that checking them costs nothing."""

from __future__ import annotations

from typing import Literal

Stream = Literal["pairs", "text"]
"""Where a batch comes from: image–caption pairs, or plain sentences."""

FeatureKind = Literal["image", "text", "teacher", "object"]
"""What a feature set describes, and so by which key its rows are found."""
