"""SimCSE: two dropout views of one sentence attract, the rest of the batch repels.

The text term of METHODS §1. It reads the captions of the paired stream as plain sentences, so that
it trains on exactly the batches of a grounded objective (MCSE's table 1, "wiki+flickr").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from train.objectives.parameters import ObjectiveParams

if TYPE_CHECKING:
    from train.objectives.modules.simcse import SimCSE


class SimCSEParams(ObjectiveParams):
    """SimCSE has no parameters beyond the common ones."""

    name: ClassVar[str] = "simcse"
    source: ClassVar[str] = "SimCSE (Gao et al. 2021, arXiv 2104.08821), unsupervised"

    @property
    def weights(self) -> dict[str, float]:
        return {"text": 1.0}

    def build(self, hidden: int, dims: Mapping[str, int]) -> SimCSE:
        from train.objectives.modules.simcse import SimCSE

        return SimCSE(self, hidden)
