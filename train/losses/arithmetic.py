"""The arithmetic that all losses share: full precision, cosines, and a row's contrast."""

import torch
from torch import Tensor


def full_precision(*tensors: Tensor) -> list[Tensor]:
    """The tensors in one floating dtype of at least float32; float64 stays float64.

    bfloat16 has 8 bits of mantissa: a cosine of 0.9 divided by 0.05 would be off by 0.06.
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

    There is no epsilon in the norm: the one of `torch.nn.functional.cosine_embedding_loss`
    (1e-12, added to the squares) moves the cosine of two rows of norm 1e-4 by 1e-4.
    """
    norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / norms.masked_fill(norms == 0, 1.0)


def cosines(left: Tensor, right: Tensor) -> Tensor:
    """cos(left_i, right_j), [n, m], of the rows of [n, d] and [m, d]."""
    return unit_rows(left) @ unit_rows(right).mT


def diagonal_nll(logits: Tensor) -> Tensor:
    """−log softmax(logits_i)_i for each row of a square matrix, [n]; −inf leaves an entry out.

    Written as log1p(Σ_{j≠i} exp(l_ij − l_ii)), so that a row whose positive has won keeps its
    relative precision: log-sum-exp minus the positive loses everything below 1e-6 in float32,
    where the logits are 1/0.05 = 20. The positive is always part of the sum, so a row all of
    whose negatives are left out gives 0, with finite gradients.
    """
    shifted = logits - logits.diagonal().unsqueeze(1)  # (n, n), 0 on the diagonal
    peak = shifted.detach().amax(dim=1).clamp_min(0.0)  # (n,)
    negatives = torch.exp(shifted - peak.unsqueeze(1))
    others = negatives.masked_fill(torch.eye(len(logits), dtype=torch.bool, device=logits.device), 0)
    return peak + torch.log1p(torch.expm1(-peak) + others.sum(dim=1))
