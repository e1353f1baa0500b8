"""InfoNCE: the contrastive loss of SimCSE's text term and of MCSE's image term."""

from __future__ import annotations

from torch import Tensor

from train.losses.arithmetic import cosines, diagonal_nll, full_precision, without_autocast
from train.losses.checks import check_rows, check_same_shape, check_temperature


def info_nce(queries: Tensor, keys: Tensor, temperature: float = 0.05) -> Tensor:
    """In-batch contrast of row i of `queries` with row i of `keys` against the other keys.

        mean_i −log( exp(cos(q_i, k_i)/τ) / Σ_j exp(cos(q_i, k_j)/τ) )

    SimCSE eq. 1, with two dropout views of a sentence as queries and keys; MCSE eq. 3 for one
    view, with texts as queries and images as keys. MCSE's equation sums over the two views and
    its released code averages them: that choice, and the weight, belong to the objective.

    Args:
        queries: [N, d], any floating dtype and any norm.
        keys: [N, d].
        temperature: τ, above 0.

    Returns:
        A scalar of at least 0: float64 if an input is, else float32. N = 1 gives 0.

    Raises:
        LossError: the shapes differ, a batch is empty, or τ is not a finite number above 0.
    """
    check_temperature("info_nce", "temperature", temperature)
    check_rows("info_nce", queries=queries, keys=keys)
    check_same_shape("info_nce", queries=queries, keys=keys)
    with without_autocast(queries):
        queries, keys = full_precision(queries, keys)
        return diagonal_nll(cosines(queries, keys) / temperature).mean()
