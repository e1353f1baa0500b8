"""ListMLE: a student's row of similarities should be in the teacher's order (DALR)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from sightline.devices import to_device
from train.losses.arithmetic import full_precision, without_autocast
from train.losses.checks import check_rows, check_same_shape


def list_mle(
    student_scores: Tensor, teacher_scores: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """DALR eq. 10: the likelihood of the teacher's order under the student's scores.

        mean_i Σ_k −log( exp(s_π(k)) / Σ_{l≥k} exp(s_π(l)) ),  π = the teacher's row i, descending

    The whole row is used. Equal teacher scores are put in a random order, drawn separately for
    each row. The randomness comes from `generator`; without one, from a new generator seeded
    with 0 at every call, so that equal input gives equal output on every device. Where ties are
    common, give a generator seeded by the step, or the same columns win them every time.

    The released code adds an epsilon inside the logarithm, which changes the value by 3e-4, and
    sums exponentials; this takes log σ of differences, which is finite for any scores.

    Args:
        student_scores: s, [N, M], already divided by the temperature.
        teacher_scores: [N, M]; only their order within a row matters.
        generator: For ties; a CPU generator serves any device.

    Returns:
        A scalar of at least 0: float64 if `student_scores` is, else float32. M = 1 gives 0.

    Raises:
        LossError: the shapes differ or a batch is empty.
    """
    check_rows("list_mle", student_scores=student_scores, teacher_scores=teacher_scores)
    check_same_shape("list_mle", student_scores=student_scores, teacher_scores=teacher_scores)
    order = _descending(teacher_scores, generator).to(student_scores.device)
    with without_autocast(student_scores):
        (student,) = full_precision(student_scores)
        ranked = student.gather(1, order)  # (N, M), the teacher's first choice first
        # below[k] = log Σ_{l>k} exp(s_π(l)): what position k competes with.
        below = ranked.flip(1).logcumsumexp(dim=1).flip(1)[:, 1:]  # (N, M − 1)
        # torch's softplus drops values below 2e-9; −log σ keeps them
        return -logsigmoid(ranked[:, :-1] - below).sum(dim=1).mean()


def _descending(scores: Tensor, generator: torch.Generator | None) -> Tensor:
    """Column numbers of each row by descending score, [N, M] int64; ties in random order."""
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    draws = torch.rand(scores.shape, generator=generator, device=generator.device)
    shuffled = to_device(draws.argsort(dim=1, stable=True), scores.device)
    ranks = scores.gather(1, shuffled).argsort(dim=1, descending=True, stable=True)
    return shuffled.gather(1, ranks)
