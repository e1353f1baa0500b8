"""From what a grounder says to the phrases of a caption: boxes checked, phrases chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from pipeline.grounding.base import Dropped, Grounded, Reason
from pipeline.grounding.config import Rules


def select(
    found: Sequence[Grounded], rules: Rules, height: int, width: int
) -> tuple[list[Grounded], list[Dropped]]:
    """Apply the rules to the phrases of one caption.

    Boxes that reach beyond the image are cut at its edge. Then, in this order: boxes without area
    inside the image, scores, areas; best or all boxes of a phrase; duplicates; the number of
    pairs.

    Args:
        height, width: of the image, in pixels.

    Returns:
        the phrases that stay, in the order of the caption (with rule ``best`` each has one box),
        and what was dropped.
    """
    dropped: list[Dropped] = []
    phrases: list[Grounded] = []
    for phrase in found:
        checked = _check_boxes(phrase, rules, height, width, dropped)
        if checked is not None:
            phrases.append(_best_box(checked) if rules.boxes == "best" else checked)
    # the better of two phrases stays; of equal ones the first in the caption
    phrases.sort(key=lambda phrase: (-_score(phrase), phrase.char_start, phrase.char_end))
    phrases = _without_duplicates(phrases, rules.duplicate_iou, dropped)
    if rules.max_pairs is not None:
        for rank, phrase in enumerate(phrases[rules.max_pairs :], start=rules.max_pairs + 1):
            dropped.append(Dropped(phrase.phrase, "too_many", f"rank {rank} of {len(phrases)}"))
        phrases = phrases[: rules.max_pairs]
    phrases.sort(key=lambda phrase: (phrase.char_start, phrase.char_end))
    return phrases, dropped


def hull(boxes: Tensor) -> Tensor:
    """The smallest box around all ``boxes``: float32 [k, 4] → float32 [4]."""
    return torch.cat([boxes[:, :2].amin(dim=0), boxes[:, 2:].amax(dim=0)])


def iou(a: Tensor, b: Tensor) -> float:
    """Intersection over union of two boxes, each float32 [4] as x0, y0, x1, y1."""
    edges = (torch.minimum(a[2:], b[2:]) - torch.maximum(a[:2], b[:2])).clamp(min=0).double()
    shared = float(edges[0] * edges[1])
    total = float(_areas(a[None])[0] + _areas(b[None])[0]) - shared
    return shared / total if total > 0 else 0.0


def _check_boxes(
    phrase: Grounded, rules: Rules, height: int, width: int, dropped: list[Dropped]
) -> Grounded | None:
    """The phrase with its good boxes, cut at the image's edge; None if none is left."""
    if not len(phrase.boxes):
        dropped.append(Dropped(phrase.phrase, "no_box"))
        return None
    limits = torch.tensor([width, height, width, height], dtype=torch.float32)
    boxes = phrase.boxes.float()
    inside = torch.minimum(boxes.clamp(min=0), limits)
    areas = _areas(inside)
    kept: list[int] = []
    for i, score in enumerate(phrase.scores.tolist()):
        problem = _problem(boxes[i], float(areas[i]), score, rules, height, width)
        if problem is None:
            kept.append(i)
        else:
            dropped.append(Dropped(phrase.phrase, *problem))
    if not kept:
        return None
    return _only(dataclasses.replace(phrase, boxes=inside), kept)


def _problem(
    box: Tensor, area: float, score: float, rules: Rules, height: int, width: int
) -> tuple[Reason, str] | None:
    """Reason and detail if a box breaks a rule. ``area``: of its part inside the image."""
    shown = "[" + ", ".join(f"{edge:g}" for edge in box.tolist()) + "]"
    if not torch.isfinite(box).all() or not 0 <= score <= 1:
        return "bad_box", f"{shown}, score {score:g}: not finite, or no score"
    if box[2] <= box[0] or box[3] <= box[1]:
        return "bad_box", f"{shown} is inverted or empty"
    if area <= 0:
        return "bad_box", f"{shown} lies outside the image, {width} × {height} pixels"
    if score < rules.min_score:
        return "low_score", f"{score:.3f} < {rules.min_score:g}"
    if area < rules.min_area:
        return "too_small", f"box of {area:g} pixels < {rules.min_area:g}"
    share = area / (height * width)
    if share > rules.max_share:
        return "too_large", f"{share:.1%} of the image > {rules.max_share:.1%}"
    return None


def _without_duplicates(
    phrases: Sequence[Grounded], limit: float | None, dropped: list[Dropped]
) -> list[Grounded]:
    """Drop every phrase whose box, or span, is that of a phrase before it."""
    kept: list[Grounded] = []
    for phrase in phrases:
        box, span = hull(phrase.boxes), (phrase.char_start, phrase.char_end)
        for other in kept:
            overlap = iou(box, hull(other.boxes))
            if limit is not None and overlap >= limit:
                detail = f"box of {other.phrase!r}, IoU {overlap:.2f}"
            elif span == (other.char_start, other.char_end):
                detail = "the same words again"
            else:
                continue
            dropped.append(Dropped(phrase.phrase, "duplicate", detail))
            break
        else:
            kept.append(phrase)
    return kept


def _best_box(phrase: Grounded) -> Grounded:
    scores = phrase.scores.tolist()
    return _only(phrase, [scores.index(max(scores))])


def _only(phrase: Grounded, boxes: list[int]) -> Grounded:
    masks = None if phrase.masks is None else phrase.masks[boxes]
    return dataclasses.replace(
        phrase, boxes=phrase.boxes[boxes], scores=phrase.scores[boxes], masks=masks
    )


def _score(phrase: Grounded) -> float:
    return float(phrase.scores.max())


def _areas(boxes: Tensor) -> Tensor:
    edges = (boxes[:, 2:] - boxes[:, :2]).double()
    return edges.clamp(min=0).prod(dim=1)
