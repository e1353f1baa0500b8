"""InfoNCE: the contrastive loss of SimCSE's text term and of MCSE's image term."""

from torch import Tensor

from train.losses.arithmetic import cosines, diagonal_nll, full_precision, without_autocast
from train.losses.checks import check_matrices, check_rows, check_temperature


def info_nce(queries: Tensor, keys: Tensor, temperature: float = 0.05) -> Tensor:
    """In-batch contrast of row i of `queries` with row i of `keys` against the other keys.

        mean_i −log( exp(cos(q_i, k_i)/τ) / Σ_j exp(cos(q_i, k_j)/τ) )

    SimCSE eq. 1 with two dropout views as queries and keys; MCSE eq. 3 for one view, with texts
    as queries and images as keys. MCSE's equation sums over the two views and its released code
    averages them: that, and the weight, is the objective's business.

    Args:
        queries: [N, d], any floating dtype, any norm.
        keys: [N, d].
        temperature: τ > 0.

    Returns:
        A scalar, ≥ 0; float32, or float64 if an input is. 0 for N = 1.

    Raises:
        LossError: the shapes differ, there is no row, or the temperature is not above 0.
    """
    check_temperature("info_nce", "temperature", temperature)
    check_matrices("info_nce", queries=queries, keys=keys)
    check_rows("info_nce", queries=queries, keys=keys)
    with without_autocast(queries):
        queries, keys = full_precision(queries, keys)
        return diagonal_nll(cosines(queries, keys) / temperature).mean()
