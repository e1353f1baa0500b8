"""Turn answers and masks into the rows of a grounding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from pipeline.grounding.captioned_images import Unit
from pipeline.grounding.matching import hull
from pipeline.grounding.protocols import Caption, Dropped, Grounded, GroundingError
from pipeline.grounding.settings import Rules
from sightline.cache import key_of_text
from sightline.cache.parts import Failure
from sightline.cache.rle import CROP_RULE, cutout_key, encode_mask
from sightline.cache.tables import GROUNDED


@dataclass(frozen=True)
class Selected:
    """One caption's phrases after the rules, and its drops."""

    caption: Caption
    phrases: list[Grounded]
    dropped: list[Dropped]


@dataclass
class GroundedRows:
    """Rows of one block of images, collected in order; see `sightline.cache.tables.GROUNDED`."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    failures: dict[bytes, Failure] = field(default_factory=dict)

    def add(self, unit: Unit, selected: Iterable[Selected], masks: Tensor, rules: Rules) -> None:
        """Add an image's row.

        Args:
            masks: bool [k, h, w], one for each box of each phrase, in order.

        Raises:
            GroundingError: the masks have the wrong number or size; nothing was added.
        """
        phrases: list[dict[str, Any]] = []
        drops: list[dict[str, Any]] = []
        at = 0
        for some in selected:
            caption_key = key_of_text(some.caption.text)
            dropped = list(some.dropped)
            for phrase in some.phrases:
                mask = masks[at : at + len(phrase.boxes)].any(dim=0)
                at += len(phrase.boxes)
                area = int(mask.sum())
                if not area:
                    dropped.append(Dropped(phrase.phrase, "empty_mask"))
                elif area < rules.min_area:
                    detail = f"mask of {area} pixels < {rules.min_area:g}"
                    dropped.append(Dropped(phrase.phrase, "too_small", detail))
                else:
                    record = _record(unit.key, phrase, mask)
                    phrases.append({"caption_key": caption_key, **record})
            drops += [{"caption_key": caption_key, **asdict(each)} for each in dropped]
        lists = {"phrases": phrases, "drops": drops}
        self.rows.append({"image_key": unit.key, "captions": len(unit.captions), **lists})

    def fail(self, unit: Unit, code: str, reason: str) -> None:
        """Add an image that could not be grounded to the failure list."""
        self.failures[unit.unit_key] = {"code": code, "path": str(unit.place), "reason": reason}

    def to_arrow(self) -> pa.Table:
        """The rows as the set stores them."""
        return pa.Table.from_pylist(self.rows, schema=GROUNDED)


def drawn_masks(unit: Unit, selected: Iterable[Selected], image: Tensor) -> Tensor:
    """The masks that came with the boxes: bool [k, h, w].

    Raises:
        GroundingError: there are none, or they do not match the image's size.
    """
    masks = [torch.zeros(0, *image.shape[1:], dtype=torch.bool)]
    for phrase in (phrase for some in selected for phrase in some.phrases):
        if phrase.masks is None:
            raise GroundingError(
                unit.key,
                "no_mask",
                f"{phrase.phrase!r} has boxes but no mask; choose a segmenter that makes masks",
            )
        masks.append(check_masks(unit, phrase.masks, len(phrase.boxes), image))
    return torch.cat(masks)


def check_masks(unit: Unit, masks: Tensor, count: int, image: Tensor) -> Tensor:
    """``masks``, if there are ``count`` with the image's size; GroundingError otherwise."""
    expected = (count, *image.shape[1:])
    if tuple(masks.shape) != expected or masks.dtype != torch.bool:
        found = f"{masks.dtype} {list(masks.shape)}".removeprefix("torch.")
        reason = f"masks: found {found}, expected bool {list(expected)}"
        raise GroundingError(unit.key, "wrong_size", reason)
    return masks


def _record(image_key: bytes, phrase: Grounded, mask: Tensor) -> dict[str, Any]:
    code = encode_mask(mask.numpy())
    return {
        "phrase": phrase.phrase,
        "char_start": phrase.char_start,
        "char_end": phrase.char_end,
        "box": hull(phrase.boxes),
        "score": max(phrase.scores.tolist()),
        "mask": code,
        "cutout_key": cutout_key(image_key, code["size"], code["counts"], CROP_RULE),
    }
