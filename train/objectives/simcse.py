"""SimCSE: two dropout views of one sentence attract, the rest of the batch repels.

The text term of METHODS §1. It reads the captions of the paired stream as plain sentences, so that
it trains on the batches of a grounded objective (MCSE's table 1, "wiki+flickr"): exactly on these
if no image failed. The pairs of images that did are left out by that objective and kept by this.
"""

from __future__ import annotations

from typing import ClassVar

from train.objectives.objective import Objective


class SimCSE(Objective):
    """L_text (Gao et al. 2021, eq. 4). It has no parameters beyond the common ones."""

    name: ClassVar[str] = "simcse"
    source: ClassVar[str] = "SimCSE (Gao et al. 2021, arXiv 2104.08821), unsupervised"

    @property
    def weights(self) -> dict[str, float]:
        return {"text": 1.0}
