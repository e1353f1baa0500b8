"""The arithmetic that the losses share: full precision, cosines, and a row's contrast."""

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

    The norm has no epsilon. That of `torch.nn.functional.cosine_embedding_loss` (1e-12, added
    to the squares) reduces the cosine of two rows of norm 1e-4 by 1e-4.
    """
    norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / norms.masked_fill(norms == 0, 1.0)


def cosines(left: Tensor, right: Tensor) -> Tensor:
    """cos(left_i, right_j), [n, m], for the rows of [n, d] and [m, d]."""
    return unit_rows(left) @ unit_rows(right).mT


def diagonal(scores: Tensor) -> Tensor:
    """A mask, [n, n] bool, of the positives of a square matrix: column i of row i."""
    return torch.eye(len(scores), dtype=torch.bool, device=scores.device)


def diagonal_nll(logits: Tensor) -> Tensor:
    """−log softmax(logits_i)_i for each row of a square matrix, [n]; −inf leaves an entry out.

    Written as log1p(Σ_{j≠i} exp(l_ij − l_ii)), so that a row dominated by its positive keeps its
    precision: log-sum-exp minus the positive resolves nothing below 1e-6 in float32, since the
    logits themselves are about 1/0.05 = 20. The positive always counts, so a row whose negatives
    are all left out is exactly 0, with finite gradients.
    """
    shifted = logits - logits.diagonal().unsqueeze(1)  # (n, n), 0 on the diagonal
    peak = shifted.detach().amax(dim=1)  # (n,), at least 0
    scaled = torch.exp(shifted - peak.unsqueeze(1))
    negatives = scaled.masked_fill(diagonal(logits), 0.0).sum(dim=1)
    return peak + torch.log1p(torch.expm1(-peak) + negatives)
