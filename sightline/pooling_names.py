"""Names that parameters may take, kept free of torch so that checking them costs nothing."""

from __future__ import annotations

from typing import Literal

Pooling = Literal["cls", "pooler", "mean", "first_last_mean"]
"""How token vectors become one sentence vector; `sightline.pooling` defines each."""
