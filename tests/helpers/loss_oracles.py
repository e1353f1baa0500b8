"""Oracles: each loss again, in float64, number by number, from the paper's equation.

Nothing here is shared with train/losses.py, nothing is vectorised, and nothing is rearranged for
precision: what stands here is what the equation says. Rows are float64 tensors or arrays, and the
results have gradients where the rows have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Row = Tensor
"""One vector, float64."""


def _rows(rows: Any) -> list[Tensor]:
    if isinstance(rows, torch.Tensor):
        return list(rows)
    return [torch.as_tensor(row, dtype=torch.float64) for row in rows]


def cosine(a: Row, b: Row) -> Tensor:
    return a.dot(b) / (a.dot(a).sqrt() * b.dot(b).sqrt())


def cosines(left: Any, right: Any) -> list[list[Tensor]]:
    return [[cosine(a, b) for b in _rows(right)] for a in _rows(left)]


def mean(values: Sequence[Tensor]) -> Tensor:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total / len(values)


def info_nce(queries: Any, keys: Any, temperature: float) -> Tensor:
    """SimCSE eq. 1."""
    of_rows = []
    for i, row in enumerate(cosines(queries, keys)):
        scores = [torch.exp(value / temperature) for value in row]
        of_rows.append(-torch.log(scores[i] / torch.stack(scores).sum()))
    return mean(of_rows)


def image_term(first: Any, second: Any, images: Any, temperature: float) -> Tensor:
    """MCSE eq. 3, averaged over the views."""
    return (info_nce(first, images, temperature) + info_nce(second, images, temperature)) / 2


def adaptive_margin_nce(
    queries: Any,
    keys: Any,
    soft_labels: Any,
    margin: float,
    temperature: float,
    threshold: float | None = None,
    filter_scores: Any = None,
    margin_gate: bool = False,
) -> Tensor:
    """KDMCSE eq. 13, with the released code's two switches."""
    removing = soft_labels if filter_scores is None else filter_scores
    of_rows = []
    for i, row in enumerate(cosines(queries, keys)):
        positive = torch.exp(row[i] / temperature)
        everything = positive
        for j, value in enumerate(row):
            if j == i or (threshold is not None and float(removing[i][j]) >= threshold):
                continue
            theta = torch.acos(value.clamp(-1.0, 1.0))
            delta = abs(1.0 - float(soft_labels[i][j]))
            if margin_gate and not float(theta.detach()) > margin:
                delta = 0.0
            moved = (theta - margin * delta).clamp(min=0.0)
            everything = everything + torch.exp(torch.cos(moved) / temperature)
        of_rows.append(-torch.log(positive / everything))
    return mean(of_rows)


def removed_share(scores: Any, threshold: float) -> float:
    rows = range(len(scores))
    removed = [float(scores[i][j]) >= threshold for i in rows for j in rows if i != j]
    return sum(removed) / len(removed) if removed else 0.0


def consistency_loss(text: Any, image: Any, mismatched_image: Any, margin: float) -> Tensor:
    """DALR eq. 5."""
    values = []
    for own, right, wrong in zip(_rows(text), _rows(image), _rows(mismatched_image), strict=True):
        values.append(1.0 - cosine(own, right))
        values.append((cosine(own, wrong) - margin).clamp(min=0.0))
    return mean(values)


def softmax(row: Sequence[Tensor]) -> list[Tensor]:
    exponentials = [torch.exp(value) for value in row]
    return [each / torch.stack(exponentials).sum() for each in exponentials]


def kl_alignment(
    target_scores: Any,
    student_scores: Any,
    target_temperature: float,
    student_temperature: float,
) -> Tensor:
    """DALR eq. 12."""
    of_rows = []
    for target, student in zip(_matrix(target_scores), _matrix(student_scores), strict=True):
        p = softmax([value / target_temperature for value in target])
        q = softmax([value / student_temperature for value in student])
        terms = [p[j] * torch.log(p[j] / q[j]) for j in range(len(p)) if float(p[j].detach()) > 0.0]
        of_rows.append(torch.stack(terms).sum())
    return mean(of_rows)


def cross_modal_alignment(
    text: Any,
    image: Any,
    teacher_text: Any,
    teacher_image: Any,
    target_temperature: float,
    student_temperature: float,
) -> Tensor:
    """DALR eqs. 6–8."""
    temperatures = target_temperature, student_temperature
    from_texts = cosines(text, image)
    from_images = [list(column) for column in zip(*from_texts, strict=True)]
    return 0.5 * (
        kl_alignment(cosines(teacher_text, teacher_text), from_texts, *temperatures)
        + kl_alignment(cosines(teacher_image, teacher_image), from_images, *temperatures)
    )


def list_mle_of_order(student: Any, order: Sequence[int]) -> Tensor:
    """DALR eq. 10 for one row and one order of its columns."""
    (row,) = _matrix([student])
    positions = []
    for k, column in enumerate(order):
        rest = torch.stack([torch.exp(row[j]) for j in order[k:]]).sum()
        positions.append(-torch.log(torch.exp(row[column]) / rest))
    return torch.stack(positions).sum()


def list_mle(student_scores: Any, teacher_scores: Any) -> Tensor:
    """DALR eq. 10, mean over rows; the teacher's scores must have no ties."""
    of_rows = []
    for student, teacher in zip(student_scores, _matrix(teacher_scores), strict=True):
        order = sorted(range(len(teacher)), key=lambda column: -float(teacher[column]))
        of_rows.append(list_mle_of_order(student, order))
    return mean(of_rows)


def object_phrase_nce(
    phrases: Any, objects: Any, owners: Sequence[int], temperature: float
) -> Tensor:
    """MCSEO eq. 7."""
    phrases, objects, of_captions = _rows(phrases), _rows(objects), []
    for owner in sorted(set(owners)):
        own = [k for k in range(len(owners)) if owners[k] == owner]
        if len(own) < 2:
            continue
        losses = []
        for k in own:
            scores = {j: torch.exp(cosine(phrases[k], objects[j]) / temperature) for j in own}
            losses.append(-torch.log(scores[k] / torch.stack(list(scores.values())).sum()))
        of_captions.append(torch.stack(losses).sum())
    return mean(of_captions) if of_captions else torch.zeros((), dtype=torch.float64)


def _matrix(scores: Any) -> list[list[Tensor]]:
    """Scores as scalars, with their graphs."""
    return [[torch.as_tensor(value, dtype=torch.float64) for value in row] for row in scores]
