"""From a grounder's answer to the phrases of a caption: check boxes, select phrases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torchvision.ops import box_area, box_iou, clip_boxes_to_image

from pipeline.grounding.grounding_settings import Rules
from pipeline.grounding.protocols import Dropped, Grounded, Reason

Box = tuple[float, float, float, float]
"""Left, top, right and bottom edge, in pixels."""


def select(
    grounded: Sequence[Grounded], rules: Rules, height: int, width: int
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
    phrases: list[Grounded] = []
    dropped: list[Dropped] = []
    for phrase in grounded:
        if not len(phrase.boxes):
            dropped.append(Dropped(phrase.phrase, "no_box"))
            continue
        inside = clip_boxes_to_image(phrase.boxes.float(), (height, width))
        areas = box_area(inside.double()).tolist()
        parts = zip(phrase.boxes.tolist(), phrase.scores.tolist(), areas, strict=True)
        problems = [_problem(*part, rules, height, width) for part in parts]
        dropped += [Dropped(phrase.phrase, *problem) for problem in problems if problem is not None]
        valid = [i for i, problem in enumerate(problems) if problem is None]
        if valid and rules.boxes == "best":
            valid = [max(valid, key=phrase.scores.tolist().__getitem__)]
        if valid:
            masks = None if phrase.masks is None else phrase.masks[valid]
            boxes = {"boxes": inside[valid], "scores": phrase.scores[valid], "masks": masks}
            phrases.append(replace(phrase, **boxes))
    # keep the better of two phrases; of equal ones, the first in the caption
    phrases.sort(key=lambda phrase: (-max(phrase.scores.tolist()), *_span(phrase)))
    phrases = _without_duplicates(phrases, rules.duplicate_iou, dropped)
    if rules.max_pairs is not None:
        for rank, phrase in enumerate(phrases[rules.max_pairs :], start=rules.max_pairs + 1):
            dropped.append(Dropped(phrase.phrase, "too_many", f"rank {rank} of {len(phrases)}"))
        phrases = phrases[: rules.max_pairs]
    return sorted(phrases, key=_span), dropped


def hull(boxes: Tensor) -> Box:
    """The smallest box around all ``boxes``, float32 [k, 4] with k ≥ 1."""
    left, top, right, bottom = zip(*boxes.tolist(), strict=True)
    return min(left), min(top), max(right), max(bottom)


def _problem(
    box: Box, score: float, area: float, rules: Rules, height: int, width: int
) -> tuple[Reason, str] | None:
    """Reason and detail if a box, of which ``area`` is inside the image, breaks a rule."""
    left, top, right, bottom = box
    shown = f"[{', '.join(f'{edge:g}' for edge in box)}]"
    if not all(map(math.isfinite, box)) or not 0 <= score <= 1:
        return "bad_box", f"{shown}, score {score:g}: not finite, or no score"
    if right <= left or bottom <= top:
        return "bad_box", f"{shown} is inverted or empty"
    if not area:
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
    """Drop every phrase whose box, or span, matches an earlier phrase's."""
    # in float64, so that limits mean the same for boxes of any size
    boxes = torch.tensor([hull(phrase.boxes) for phrase in phrases], dtype=torch.float64)
    overlaps = box_iou(boxes.reshape(-1, 4), boxes.reshape(-1, 4)).tolist()
    kept: list[int] = []
    for row, phrase in enumerate(phrases):
        for better in kept:
            overlap = overlaps[row][better]
            if limit is not None and overlap >= limit:
                detail = f"box of {phrases[better].phrase!r}, IoU {overlap:.2f}"
            elif _span(phrase) == _span(phrases[better]):
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
