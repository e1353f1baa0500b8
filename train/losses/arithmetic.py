"""The arithmetic that the losses share: full precision, cosines, angles, and a row's contrast."""

from __future__ import annotations

import torch
from torch import Tensor


def full_precision(*tensors: Tensor) -> list[Tensor]:
    """The tensors in one floating dtype of at least float32; float64 stays float64.

    bfloat16 keeps 8 bits: a cosine of 0.9 divided by 0.05 would be off by up to 0.06.
    """
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return [tensor.to(dtype) for tensor in tensors]


def without_autocast(tensor: Tensor) -> torch.autocast:
    """A context in which matrix products on the tensor's device keep the dtype of their input."""
    return torch.autocast(device_type=tensor.device.type, enabled=False)


def unit_rows(rows: Tensor) -> Tensor:
    """Rows of norm 1, [n, d]; a zero row stays zero, so its cosine with anything is 0.

    The norm has no epsilon. The one of `torch.nn.functional.cosine_embedding_loss` (1e-12, added
    to the squares) takes 1e-4 off the cosine of two rows of norm 1e-4.
    """
    norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / norms.masked_fill(norms == 0, 1.0)


def cosines(left: Tensor, right: Tensor) -> Tensor:
    """cos(left_i, right_j), [n, m], for the rows of [n, d] and [m, d]."""
    return unit_rows(left) @ unit_rows(right).mT


def angles(left: Tensor, right: Tensor) -> Tensor:
    """The angle between left_i and right_j in radians, [n, m], 0 to π.

    arccos(cos) loses half the digits near 0 and π, where its slope is infinite: in float32 it
    cannot tell π − 3e-4 from π, and a clamp that keeps its gradient finite (by 1e-6) costs
    another 1.4e-3. For unit vectors the angle is also 2·atan2(‖u−v‖, ‖u+v‖), which is good to
    the last digits everywhere and whose gradient with respect to u never exceeds 1.
    """
    left, right = unit_rows(left), unit_rows(right)
    mode = "donot_use_mm_for_euclid_dist"  # the matrix-product form cancels for near rows
    apart = torch.cdist(left, right, compute_mode=mode)  # (n, m)
    opposed = torch.cdist(left, -right, compute_mode=mode)  # (n, m)
    # Two zero rows have no angle and atan2(0, 0) no gradient; π/2 agrees with their cosine, 0.
    undefined = (apart == 0) & (opposed == 0)
    return 2 * torch.atan2(apart.masked_fill(undefined, 1.0), opposed.masked_fill(undefined, 1.0))


def diagonal(scores: Tensor) -> Tensor:
    """A mask, [n, n] bool, of the positives of a square matrix: column i of row i."""
    return torch.eye(len(scores), dtype=torch.bool, device=scores.device)


def diagonal_nll(logits: Tensor) -> Tensor:
    """−log softmax(logits_i)_i for each row of a square matrix, [n]; −inf leaves an entry out.

    Written as log1p(Σ_{j≠i} exp(l_ij − l_ii)), so that a row whose positive has won keeps its
    digits: log-sum-exp minus the positive is blind below 1e-6 in float32, since the logits
    themselves are about 1/0.05 = 20. The positive always counts, so a row all of whose negatives
    are left out is exactly 0, with finite gradients.
    """
    shifted = logits - logits.diagonal().unsqueeze(1)  # (n, n), 0 on the diagonal
    peak = shifted.detach().amax(dim=1)  # (n,), at least 0
    scaled = torch.exp(shifted - peak.unsqueeze(1))
    negatives = scaled.masked_fill(diagonal(logits), 0.0).sum(dim=1)
    return peak + torch.log1p(torch.expm1(-peak) + negatives)
