"""Soft targets: a student's rows of similarities are pulled towards a teacher's (DALR)."""

from __future__ import annotations

import torch
from torch import Tensor

from train.losses.arithmetic import cosines, full_precision, without_autocast
from train.losses.checks import check_rows, check_same_shape, check_temperature


def kl_alignment(
    target_scores: Tensor,
    student_scores: Tensor,
    target_temperature: float,
    student_temperature: float,
) -> Tensor:
    """DALR eq. 12, intra-modal alignment: the teacher's row distribution against the student's.

        mean_i KL( softmax(target_i/τ_t) ‖ softmax(student_i/τ_s) )

    The equation prints no temperatures. The released code uses τ_t = 0.5 and, by two successive
    divisions, τ_s = 0.05·0.45 = 0.0225.

    Args:
        target_scores: [N, M], similarities not yet divided by a temperature.
        student_scores: [N, M], likewise.
        target_temperature: τ_t, above 0.
        student_temperature: τ_s, above 0.

    Returns:
        A scalar, 0 when the distributions agree: float64 if an input is, else float32.

    Raises:
        LossError: the shapes differ, a batch is empty, or a temperature is not above 0.
    """
    _check_temperatures("kl_alignment", target_temperature, student_temperature)
    check_rows("kl_alignment", target_scores=target_scores, student_scores=student_scores)
    check_same_shape("kl_alignment", target_scores=target_scores, student_scores=student_scores)
    with without_autocast(student_scores):
        target, student = full_precision(target_scores, student_scores)
        log_p = torch.log_softmax(target / target_temperature, dim=1)
        log_q = torch.log_softmax(student / student_temperature, dim=1)
        p, q = log_p.exp(), log_q.exp()
        # Σ(q − p) is 0; added term by term it cancels the rounding of log p − log q to first
        # order: without it float32 gives ±3e-7 instead of 0 for near-equal distributions.
        return (p * (log_p - log_q) + (q - p)).sum(dim=1).mean()


def cross_modal_alignment(
    text: Tensor,
    image: Tensor,
    teacher_text: Tensor,
    teacher_image: Tensor,
    target_temperature: float,
    student_temperature: float,
) -> Tensor:
    """DALR eqs. 6–8: the text–image similarities match each teacher's own similarities.

        S_ij = cos(s_i, v_j),   T_ij = cos(t̂_i, t̂_j),   V_ij = cos(v̂_i, v̂_j)
        ½ [ KL( softmax(T/τ_t) ‖ softmax(S/τ_s) ) + KL( softmax(V/τ_t) ‖ softmax(Sᵀ/τ_s) ) ]

    where each KL is the mean over rows. The paper transposes the student's probabilities, whose
    rows then no longer sum to 1; here the similarities are transposed before the softmax.
    Temperatures: see `kl_alignment`.

    Args:
        text: s, [N, d], grounded texts, any floating dtype and any norm.
        image: v, [N, d], projected images.
        teacher_text: t̂, [N, any], raw features of the text teachers, already mixed.
        teacher_image: v̂, [N, any], raw features of the image encoder.
        target_temperature: τ_t, above 0.
        student_temperature: τ_s, above 0.

    Returns:
        A scalar: float64 if an input is, else float32. N = 1 gives 0.

    Raises:
        LossError: the numbers of rows or the widths differ, a batch is empty, or a temperature is
            not above 0.
    """
    loss = "cross_modal_alignment"
    _check_temperatures(loss, target_temperature, student_temperature)
    check_rows(loss, text=text, image=image, teacher_text=teacher_text, teacher_image=teacher_image)
    check_same_shape(loss, text=text, image=image)
    with without_autocast(text):
        text, image, teacher_text, teacher_image = full_precision(
            text, image, teacher_text, teacher_image
        )
        student = cosines(text, image)  # (N, N), texts down, images across
        temperatures = target_temperature, student_temperature
        from_texts = kl_alignment(cosines(teacher_text, teacher_text), student, *temperatures)
        from_images = kl_alignment(cosines(teacher_image, teacher_image), student.mT, *temperatures)
        return (from_texts + from_images) / 2


def _check_temperatures(loss: str, target_temperature: float, student_temperature: float) -> None:
    check_temperature(loss, "target_temperature", target_temperature)
    check_temperature(loss, "student_temperature", student_temperature)
