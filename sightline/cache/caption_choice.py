"""Which captions of an image are used: a rule shared by grounding and training."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

CaptionPolicy = Literal["random", "longest", "all"]
"""Which captions of an image are used for training."""


def choose_captions(
    image_ids: Sequence[str], texts: Sequence[str], policy: CaptionPolicy, seed: int
) -> NDArray[np.int64]:
    """Rows of the captions that ``policy`` selects, in manifest order: int64 [m]."""
    if policy == "all":
        return np.arange(len(texts))
    captions_of: dict[str, list[int]] = {}
    for row, image_id in enumerate(image_ids):
        captions_of.setdefault(image_id, []).append(row)
    if policy == "longest":
        chosen = [
            max(rows, key=lambda row: (len(texts[row].split()), len(texts[row]), -row))
            for rows in captions_of.values()
        ]
    else:
        chosen = [
            rows[_hash(f"{seed}:{image_id}") % len(rows)] for image_id, rows in captions_of.items()
        ]
    return np.sort(np.array(chosen, dtype=np.int64))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
