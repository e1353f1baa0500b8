"""Losses: pure functions of tensors, each with its equation and its source.

All take batches of rows, [N, d], of any norm and any floating type, and compute in at least
float32. They check shapes and numbers, never the values inside a tensor: reading those would make
every training step wait for the accelerator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce, wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from sightline.devices import to_device
from sightline.errors import SightlineError


class LossError(SightlineError, ValueError):
    """A loss was called with a meaningless argument; the message names it."""


# ---- what every loss shares: precision, checks, cosines, and a row's contrast --------------------

F = TypeVar("F", bound=Callable[..., Tensor])


def full_precision(function: F) -> F:
    """Give ``function`` its tensors in one floating type, at least float32, and no autocast.

    bfloat16 keeps 8 bits: a cosine of 0.9 divided by 0.05 would be off by up to 0.06. Integers stay
    as they are, and float64 stays float64.
    """

    def floating(value: Any) -> bool:
        return isinstance(value, Tensor) and value.is_floating_point()

    @wraps(function)
    def run(*args: Any, **options: Any) -> Tensor:
        tensors = [value for value in (*args, *options.values()) if floating(value)]
        dtype = reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)
        args = tuple(value.to(dtype) if floating(value) else value for value in args)
        options = {k: value.to(dtype) if floating(value) else value for k, value in options.items()}
        device = tensors[0].device if tensors else torch.device("cpu")
        with torch.autocast(device_type=device.type, enabled=False):
            return function(*args, **options)

    return cast("F", run)


def check_number(
    loss: str, name: str, value: float, low: float = -math.inf, high: float = math.inf
) -> None:
    """Raise unless ``value`` is finite and ``low`` ≤ ``value`` ≤ ``high``."""
    if not math.isfinite(value):
        raise LossError(f"{loss}: {name} is {value}; give a finite number")
    if not low <= value <= high:
        raise LossError(f"{loss}: {name} is {value}; give a number from {low:g} to {high:g}")


def check_shapes(loss: str, **tensors: tuple[Tensor, str]) -> None:
    """Raise unless the shapes fit and nothing is empty.

    Args:
        tensors: name → the tensor and its shape, one letter for each size, as in
            `check_shapes("info_nce", queries=(queries, "nd"), keys=(keys, "nd"))`. A letter is
            the same size everywhere.
    """
    sizes: dict[str, int] = {}
    fit = all(
        tensor.ndim == len(letters)
        and all(sizes.setdefault(k, n) == n for k, n in zip(letters, tensor.shape, strict=True))
        for tensor, letters in tensors.values()
    )
    if fit and all(sizes.values()):
        return
    shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, (tensor, _) in tensors.items())
    if fit:
        raise LossError(f"{loss}: {shapes}; a mean over no rows has no value; skip empty batches")
    expected = ", ".join(f"{name} [{', '.join(k)}]" for name, (_, k) in tensors.items())
    raise LossError(f"{loss}: the shapes do not fit: {shapes}; expected {expected}")


def _check_temperature(loss: str, name: str, value: float) -> None:
    if not math.isfinite(value) or value <= 0:
        raise LossError(f"{loss}: {name} is {value}; give a finite number above 0, such as 0.05")


def _unit_rows(rows: Tensor) -> Tensor:
    """Rows of norm 1, [n, d]; a zero row stays zero, so its cosine with anything is 0.

    The norm has no epsilon. That of `torch.nn.functional.cosine_embedding_loss` (1e-12, added
    to the squares) reduces the cosine of two rows of norm 1e-4 by 1e-4.
    """
    norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / norms.masked_fill(norms == 0, 1.0)


@full_precision
def cosine_matrix(left: Tensor, right: Tensor) -> Tensor:
    """cos(left_i, right_j): [N, d] and [M, d] → [N, M]."""
    return _unit_rows(left) @ _unit_rows(right).mT


def diagonal(scores: Tensor) -> Tensor:
    """A mask, [N, N] bool, of the positives of a square matrix: column i of row i."""
    return torch.eye(len(scores), dtype=torch.bool, device=scores.device)


def diagonal_nll(logits: Tensor) -> Tensor:
    """−log softmax(logits_i)_i for each row of a square matrix, [N]; −inf leaves an entry out.

    Written as log1p(Σ_{j≠i} exp(l_ij − l_ii)), so that a row dominated by its positive keeps its
    precision: log-sum-exp minus the positive resolves nothing below 1e-6 in float32, since the
    logits themselves are about 1/0.05 = 20. The positive always counts, so a row whose negatives
    are all left out is exactly 0, with finite gradients.
    """
    shifted = logits - logits.diagonal().unsqueeze(1)  # (N, N), 0 on the diagonal
    peak = shifted.detach().amax(dim=1)  # (N,), at least 0
    scaled = torch.exp(shifted - peak.unsqueeze(1))
    negatives = scaled.masked_fill(diagonal(logits), 0.0).sum(dim=1)
    return peak + torch.log1p(torch.expm1(-peak) + negatives)


# ---- SimCSE and MCSE ----------------------------------------------------------------------------


@full_precision
def info_nce(queries: Tensor, keys: Tensor, temperature: float = 0.05) -> Tensor:
    """In-batch contrast of row i of `queries` with row i of `keys` against the other keys.

        mean_i −log( exp(cos(q_i, k_i)/τ) / Σ_j exp(cos(q_i, k_j)/τ) )

    SimCSE eq. 1, with two dropout views of a sentence as queries and keys; MCSE eq. 3 for one
    view, with texts as queries and images as keys. MCSE's equation sums over the two views and
    its released code averages them: that choice, and the weight, belong to the objective.

    Args:
        queries, keys: [N, d].
        temperature: τ, above 0.

    Returns:
        A scalar of at least 0: float64 if an input is, else float32. N = 1 gives 0.
    """
    _check_temperature("info_nce", "temperature", temperature)
    check_shapes("info_nce", queries=(queries, "nd"), keys=(keys, "nd"))
    return diagonal_nll(cosine_matrix(queries, keys) / temperature).mean()


def image_term(first: Tensor, second: Tensor, images: Tensor, temperature: float = 0.05) -> Tensor:
    """L_img: each view finds its image; the average over the views (Zhang et al. 2022, eq. 3).

    Args:
        first, second: both views in the grounded space, [N, d].
        images: [N, d], row i is sentence i's.
    """
    return (info_nce(first, images, temperature) + info_nce(second, images, temperature)) / 2


# ---- KDMCSE -------------------------------------------------------------------------------------


@full_precision
def adaptive_margin_nce(
    queries: Tensor,
    keys: Tensor,
    soft_labels: Tensor,
    margin: float = 0.125,
    temperature: float = 0.05,
    threshold: float | None = None,
    *,
    filter_scores: Tensor | None = None,
    margin_gate: bool = False,
) -> Tensor:
    """KDMCSE eq. 13, AdapACSE: contrast with an angular margin that shrinks for likely matches.

        mean_i −log( e^{cos θ_ii/τ} / ( e^{cos θ_ii/τ} + Σ_{j≠i} φ_ij e^{cos(θ_ij − m Δ_ij)/τ} ) )
        θ_ij = the angle between q_i and k_j,   Δ_ij = |1 − α_ij|,   φ_ij = 0 if α_ij ≥ threshold

    θ − mΔ is clamped at 0. The positive has no margin and is never removed. With margin 0
    and no threshold this is `info_nce`. Eq. 8 prints the two cases of φ the wrong way round; its
    text and the released code agree with the formula above. The authors' code and paper differ;
    for the released arithmetic call with

    - `margin=0.15, margin_gate=True`: only negatives with θ_ij > m are moved (the loss jumps at
      θ_ij = m, where it has no gradient);
    - the image term: `soft_labels` from cos(v̂_i, v̂_j) instead of cos(t̂_i, v̂_j);
    - its filter: `filter_scores` of raw products of texts and images in both terms, t̂_i·v̂_j
      where images are the keys and v̂_i·t̂_j where texts are. The authors remove above the
      threshold, we at or above it: that differs only for an exactly equal score;
    - its text term: `soft_labels` of zeros, so that Δ = 1 makes the margin the same for all.

    The angle is the arccos of the cosine, computed in float64 whatever the input: near 0 and π
    arccos loses half its digits, and in float32, with the clamp of 1e-6 that its gradient needs
    there, opposite rows change the loss by 2e-3 of its value. Here negatives are clamped a few
    roundings inside (−1, 1), the positive is not. At θ = mΔ the loss is smooth: the cosine has
    slope 0 where its angle is clamped at 0.

    Args:
        queries, keys: [N, d].
        soft_labels: α, [N, N]: the teacher's cosine of query i and key j. The diagonal is ignored.
        margin: m in radians, from 0 to π.
        temperature: τ, above 0.
        threshold: Negatives that score at least this are removed; None removes none.
        filter_scores: [N, N], compared with the threshold in place of `soft_labels`.
        margin_gate: Do not move negatives nearer than the margin.

    Returns:
        A scalar of at least 0: float64 if an input is, else float32. `removed_share` gives the
        share of negatives that the threshold removed.
    """
    loss = "adaptive_margin_nce"
    _check_temperature(loss, "temperature", temperature)
    check_number(loss, "margin", margin, low=0.0, high=math.pi)
    scores = soft_labels if filter_scores is None else filter_scores
    rows = {"queries": (queries, "nd"), "keys": (keys, "nd")}
    check_shapes(loss, **rows, soft_labels=(soft_labels, "nn"), filter_scores=(scores, "nn"))
    if filter_scores is not None and threshold is None:
        raise LossError(
            f"{loss}: filter_scores are given but threshold is None, so they would do nothing; "
            "give a threshold, or omit filter_scores"
        )
    # Apple's MPS has no float64
    wide = queries.dtype if queries.device.type == "mps" else torch.float64
    similarity = cosine_matrix(queries.to(wide), keys.to(wide))  # (N, N)
    bound = 1.0 - 4 * torch.finfo(wide).eps
    theta = torch.acos(similarity.clamp(-bound, bound))
    shift = margin * (1.0 - soft_labels.to(wide)).abs()
    if margin_gate:
        shift = shift.masked_fill(theta <= margin, 0.0)
    moved = torch.cos((theta - shift).clamp_min(0.0))
    logits = torch.where(diagonal(theta), similarity, moved) / temperature
    if threshold is not None:
        logits = logits.masked_fill(_removed(scores, threshold), -math.inf)
    return diagonal_nll(logits).mean().to(queries.dtype)


@full_precision
def removed_share(scores: Tensor, threshold: float | None) -> Tensor:
    """The share of negatives that the threshold of `adaptive_margin_nce` removes, for the log.

    Args:
        scores: [N, N], what the loss compares: its `filter_scores`, or else its `soft_labels`.
        threshold: As given to the loss.

    Returns:
        A float32 scalar from 0 to 1 on the scores' device; 0 for N = 1 and without a threshold.
    """
    check_shapes("removed_share", scores=(scores, "nn"))
    if threshold is None:
        return torch.zeros((), device=scores.device)
    negatives = len(scores) * (len(scores) - 1)
    return _removed(scores, threshold).sum().float() / max(negatives, 1)


def _removed(scores: Tensor, threshold: float) -> Tensor:
    check_number("adaptive_margin_nce", "threshold", threshold)
    return (scores >= threshold).masked_fill(diagonal(scores), False)


# ---- DALR ---------------------------------------------------------------------------------------


@full_precision
def consistency_loss(
    text: Tensor, image: Tensor, mismatched_image: Tensor, margin: float = 0.2
) -> Tensor:
    """DALR eq. 5, a cosine-embedding loss over N matched and N mismatched pairs.

        1/(2N) Σ_i [ 1 − cos(s_i, v_i) + max(0, cos(s_i, v'_i) − margin) ]

    The mean is over all 2N pairs. A derangement of the matched rows makes the mismatched ones.

    Args:
        text: s, [N, d].
        image: v, [N, d]: row i is text i's own.
        mismatched_image: v', [N, d]: row i is not text i's own.
        margin: The cosine that a mismatched pair may have without a penalty, −1 to 1.

    Returns:
        A scalar of at least 0: float64 if an input is, else float32.
    """
    loss = "consistency_loss"
    check_number(loss, "margin", margin, low=-1.0, high=1.0)
    images = {"image": (image, "nd"), "mismatched_image": (mismatched_image, "nd")}
    check_shapes(loss, text=(text, "nd"), **images)
    text, image, wrong = map(_unit_rows, (text, image, mismatched_image))
    # 1 − cos of unit rows is ½‖u − v‖², which stays exact and nonnegative as it approaches 0.
    matched = (text - image).square().sum(dim=1) / 2  # (N,)
    mismatched = ((text * wrong).sum(dim=1) - margin).clamp_min(0.0)  # (N,)
    return torch.cat([matched, mismatched]).mean()


@full_precision
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
        target_scores, student_scores: [N, M], similarities not yet divided by a temperature.
        target_temperature: τ_t, above 0.
        student_temperature: τ_s, above 0.

    Returns:
        A scalar, 0 when the distributions agree: float64 if an input is, else float32.
    """
    loss = "kl_alignment"
    _check_temperature(loss, "target_temperature", target_temperature)
    _check_temperature(loss, "student_temperature", student_temperature)
    check_shapes(loss, target_scores=(target_scores, "nm"), student_scores=(student_scores, "nm"))
    log_p = torch.log_softmax(target_scores / target_temperature, dim=1)
    log_q = torch.log_softmax(student_scores / student_temperature, dim=1)
    p, q = log_p.exp(), log_q.exp()
    # Σ(q − p) is 0; added term by term it cancels the rounding of log p − log q to first
    # order: without it float32 gives ±3e-7 instead of 0 for near-equal distributions.
    return (p * (log_p - log_q) + (q - p)).sum(dim=1).mean()


@full_precision
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
        text: s, [N, d], grounded texts.
        image: v, [N, d], projected images.
        teacher_text: t̂, [N, any], raw features of the text teachers, already mixed.
        teacher_image: v̂, [N, any], raw features of the image encoder.
        target_temperature: τ_t, above 0.
        student_temperature: τ_s, above 0.

    Returns:
        A scalar: float64 if an input is, else float32. N = 1 gives 0.
    """
    teachers = {"teacher_text": (teacher_text, "nt"), "teacher_image": (teacher_image, "nv")}
    grounded = {"text": (text, "nd"), "image": (image, "nd")}
    check_shapes("cross_modal_alignment", **grounded, **teachers)
    temperatures = target_temperature, student_temperature
    student = cosine_matrix(text, image)  # (N, N), texts down, images across
    of_texts, of_images = (cosine_matrix(rows, rows) for rows in (teacher_text, teacher_image))
    from_texts = kl_alignment(of_texts, student, *temperatures)
    from_images = kl_alignment(of_images, student.mT, *temperatures)
    return (from_texts + from_images) / 2


@full_precision
def list_mle(
    student_scores: Tensor, teacher_scores: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """DALR eq. 10, ListMLE: the likelihood of the teacher's order under the student's scores.

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
        A scalar of at least 0: float64 if an input is, else float32. M = 1 gives 0.
    """
    scores = {"student_scores": (student_scores, "nm"), "teacher_scores": (teacher_scores, "nm")}
    check_shapes("list_mle", **scores)
    order = _descending(teacher_scores, generator).to(student_scores.device)
    ranked = student_scores.gather(1, order)  # (N, M), the teacher's first choice first
    # below[k] = log Σ_{l>k} exp(s_π(l)): what position k competes with.
    below = ranked.flip(1).logcumsumexp(dim=1).flip(1)[:, 1:]  # (N, M − 1)
    # torch's softplus drops values below 2e-9; −log σ keeps them
    return -logsigmoid(ranked[:, :-1] - below).sum(dim=1).mean()


def _descending(scores: Tensor, generator: torch.Generator | None) -> Tensor:
    """Column numbers of each row by descending score, [N, M] int64; ties in random order."""
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    draws = torch.rand(scores.shape, generator=generator, device=generator.device)
    shuffled = to_device(draws, scores.device).argsort(dim=1, stable=True)  # on a GPU, if it is one
    ranks = scores.gather(1, shuffled).argsort(dim=1, descending=True, stable=True)
    return shuffled.gather(1, ranks)


# ---- MCSEO --------------------------------------------------------------------------------------


@full_precision
def object_phrase_nce(
    phrases: Tensor, objects: Tensor, owners: Tensor, temperature: float = 0.05
) -> Tensor:
    """MCSEO eq. 7: contrast of phrases with objects inside each caption.

        mean over captions of Σ_k −log( exp(cos(p_k, o_k)/τ) / Σ_j exp(cos(p_k, o_j)/τ) )

    k and j run over one caption's pairs; objects of other captions do not count. Captions with
    fewer than 2 pairs are left out, of the mean as well; when none is left the value is exactly
    0, and still has a graph.

    All pairs of the batch are compared in one P×P matrix and those across captions masked: no
    loop over captions, no scatter with a nondeterministic order of addition, nothing read back
    from the accelerator. P is about 4 per caption.

    Args:
        phrases: p, [P, d].
        objects: o, [P, d]: row k is phrase k's own.
        owners: [P], integers: the row of the caption that pair k belongs to, in any order.
        temperature: τ, above 0.

    Returns:
        A scalar of at least 0: float64 if an input is, else float32. P may be 0.
    """
    loss = "object_phrase_nce"
    _check_temperature(loss, "temperature", temperature)
    if owners.is_floating_point() or owners.is_complex() or owners.dtype == torch.bool:
        raise LossError(f"{loss}: owners is {owners.dtype}; give integers, such as torch.int64")
    if len(phrases) == len(objects) == len(owners) == 0:
        return phrases.sum() + objects.sum()  # 0, with a graph
    pairs = {"phrases": (phrases, "pd"), "objects": (objects, "pd")}
    check_shapes(loss, **pairs, owners=(owners, "p"))
    same_caption = owners.unsqueeze(1) == owners.unsqueeze(0)  # (P, P)
    logits = cosine_matrix(phrases, objects) / temperature  # (P, P)
    per_pair = diagonal_nll(logits.masked_fill(~same_caption, -math.inf))
    # A single pair has no negatives, so its loss is already 0: only the mean must exclude it.
    first_of_caption = ~same_caption.tril(diagonal=-1).any(dim=1)  # (P,)
    captions = (first_of_caption & (same_caption.sum(dim=1) >= 2)).sum()
    return per_pair.sum() / captions.clamp_min(1)
