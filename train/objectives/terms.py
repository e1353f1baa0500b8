"""Terms that several systems share: SimCSE's, and MCSE's image term."""

from __future__ import annotations

from typing import TYPE_CHECKING

from train.objectives.objective import Views

if TYPE_CHECKING:
    from torch import Tensor, nn


def text_term(views: Views, head: nn.Module, temperature: float) -> Tensor:
    """L_text: both dropout views of a sentence attract (Gao et al. 2021, eq. 4)."""
    from train.losses import info_nce

    return info_nce(head(views.first), head(views.second), temperature)


def image_term(first: Tensor, second: Tensor, images: Tensor, temperature: float) -> Tensor:
    """L_img: each view finds its image; the average over the views (Zhang et al. 2022, eq. 3).

    Args:
        first, second: both views in the grounded space, [N, d].
        images: [N, d], row i is sentence i's.
    """
    from train.losses import info_nce

    return (info_nce(first, images, temperature) + info_nce(second, images, temperature)) / 2
