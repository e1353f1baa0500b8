"""From a grounder's answer to the phrases of a caption: check boxes, select phrases."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.ops import box_iou, clip_boxes_to_image

from pipeline.grounding.protocols import Dropped, Grounded, Reason
from pipeline.grounding.settings import Rules

Box = tuple[float, float, float, float]
"""Left, top, right and bottom edge, in pixels."""


def select(
    found: Sequence[Grounded], rules: Rules, height: int, width: int
) -> tuple[list[Grounded], list[Dropped]]:
    """Apply the rules to the phrases of one caption.

    Boxes are clipped to the image. Then, in this order: boxes without area inside the image,
    scores, areas; best or all boxes of a phrase; duplicates; the number of pairs.

    Args:
        height, width: size of the image, in pixels.

    Returns:
        the remaining phrases, in caption order (with rule ``best`` each has one box), and the
        drops.
    """
    dropped: list[Dropped] = []
    phrases: list[Grounded] = []
    for phrase in found:
        checked = _check_boxes(phrase, rules, height, width, dropped)
        if checked is not None:
            phrases.append(_best_box(checked) if rules.boxes == "best" else checked)
    # keep the better of two phrases; of equal ones, the first in the caption
    phrases.sort(key=lambda phrase: (-_score(phrase), *_span(phrase)))
    phrases = _without_duplicates(phrases, rules.duplicate_iou, dropped)
    if rules.max_pairs is not None:
        for rank, phrase in enumerate(phrases[rules.max_pairs :], start=rules.max_pairs + 1):
            dropped.append(Dropped(phrase.phrase, "too_many", f"rank {rank} of {len(phrases)}"))
        phrases = phrases[: rules.max_pairs]
    phrases.sort(key=_span)
    return phrases, dropped


def hull(boxes: Tensor) -> Box:
    """The smallest box around all ``boxes``, float32 [k, 4] with k ≥ 1."""
    left, top, right, bottom = zip(*boxes.tolist(), strict=True)
    return min(left), min(top), max(right), max(bottom)


def _check_boxes(
    phrase: Grounded, rules: Rules, height: int, width: int, dropped: list[Dropped]
) -> Grounded | None:
    """The phrase with its valid boxes, clipped to the image; None if none is left."""
    if not len(phrase.boxes):
        dropped.append(Dropped(phrase.phrase, "no_box"))
        return None
    kept: list[int] = []
    for i, (box, score) in enumerate(
        zip(phrase.boxes.tolist(), phrase.scores.tolist(), strict=True)
    ):
        problem = _problem(box, score, rules, height, width)
        if problem is None:
            kept.append(i)
        else:
            dropped.append(Dropped(phrase.phrase, *problem))
    if not kept:
        return None
    inside = clip_boxes_to_image(phrase.boxes.float(), (height, width))
    return _only(dataclasses.replace(phrase, boxes=inside), kept)


def _problem(
    box: Box, score: float, rules: Rules, height: int, width: int
) -> tuple[Reason, str] | None:
    """Reason and detail if a box's part inside the image breaks a rule."""
    left, top, right, bottom = box
    if not all(map(math.isfinite, box)) or not 0 <= score <= 1:
        return "bad_box", f"{_shown(box)}, score {score:g}: not finite, or no score"
    if right <= left or bottom <= top:
        return "bad_box", f"{_shown(box)} is inverted or empty"
    area = _area((max(left, 0.0), max(top, 0.0), min(right, width), min(bottom, height)))
    if not area:
        return "bad_box", f"{_shown(box)} lies outside the image, {width} × {height} pixels"
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
    """Drop every phrase whose box, or span, matches an earlier phrase's."""
    # in float64, so that limits mean the same for boxes of any size
    boxes = torch.tensor([hull(phrase.boxes) for phrase in phrases], dtype=torch.float64)
    overlaps = box_iou(boxes.reshape(-1, 4), boxes.reshape(-1, 4)).tolist()
    kept: list[int] = []
    for row, phrase in enumerate(phrases):
        for other in kept:
            overlap = overlaps[row][other]
            if limit is not None and overlap >= limit:
                detail = f"box of {phrases[other].phrase!r}, IoU {overlap:.2f}"
            elif _span(phrase) == _span(phrases[other]):
                detail = "the same words again"
            else:
                continue
            dropped.append(Dropped(phrase.phrase, "duplicate", detail))
            break
        else:
            kept.append(row)
    return [phrases[row] for row in kept]


def _span(phrase: Grounded) -> tuple[int, int]:
    return phrase.char_start, phrase.char_end


def _best_box(phrase: Grounded) -> Grounded:
    scores = phrase.scores.tolist()
    return _only(phrase, [scores.index(max(scores))])


def _only(phrase: Grounded, boxes: list[int]) -> Grounded:
    if len(boxes) == len(phrase.boxes):
        return phrase
    masks = None if phrase.masks is None else phrase.masks[boxes]
    return dataclasses.replace(
        phrase, boxes=phrase.boxes[boxes], scores=phrase.scores[boxes], masks=masks
    )


def _score(phrase: Grounded) -> float:
    return max(phrase.scores.tolist())


def _area(box: Box) -> float:
    """Area of a box; 0 if its edges are inverted."""
    return max(box[2] - box[0], 0.0) * max(box[3] - box[1], 0.0)


def _shown(box: Box) -> str:
    return "[" + ", ".join(f"{edge:g}" for edge in box) + "]"
