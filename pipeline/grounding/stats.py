"""Statistics of a grounding: pairs per image, drops by reason, coverage of the captions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sightline.cache import CAPTIONS, CacheError, key_of_text, read_manifest
from sightline.cache.groundings import drops_of, phrases_of, read_grounding, read_phrases
from sightline.output import Output, json_record

PUBLISHED_PAIRS = 4.2
"""Pairs per image of Flickr30k, longest caption of each (Zhao et al. 2025, MCSEO)."""

RECORD, SCHEMA = "ground_stats.json", "sightline.ground_stats/1"
_LEAST_PAIRS = 2  # per caption, to enter MCSEO's object term


@dataclass(frozen=True)
class GroundStats:
    """Counts of one grounding.

    Attributes:
        images: images grounded without error, with or without a pair. For a phrases manifest:
            images with a phrase.
        failed: failed images by error code.
        captions: captions with a pair or a drop.
        pairs: records.
        objects: distinct cut-outs.
        pairs_per_image: mean over `images`.
        images_by_pairs: number of pairs → number of images.
        captions_by_pairs: number of pairs → number of captions.
        contrasted: captions with at least two pairs; only these enter MCSEO's object term.
        drops: phrases and boxes by reason, the most frequent first.
        span_coverage: mean over `captions` of the fraction of characters inside a phrase; None
            without captions to measure.
    """

    images: int
    failed: dict[str, int]
    captions: int
    pairs: int
    objects: int
    pairs_per_image: float
    images_by_pairs: dict[int, int]
    captions_by_pairs: dict[int, int]
    contrasted: int
    drops: dict[str, int]
    span_coverage: float | None

    def __str__(self) -> str:
        parts = [
            f"{self.pairs:,} pairs of {self.images:,} images, {self.pairs_per_image:.2f} per image "
            f"(MCSEO on Flickr30k: {PUBLISHED_PAIRS})",
            f"{sum(self.drops.values()):,} dropped",
        ]
        if self.span_coverage is not None:
            parts.append(f"{self.span_coverage:.1%} of the captions covered")
        return " · ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, with the published figure alongside."""
        return {**asdict(self), "published_pairs_per_image": PUBLISHED_PAIRS}


def ground_stats(path: Path, captions: Path | None = None) -> GroundStats:
    """Compute statistics of a grounding's folder or a phrases manifest.

    Args:
        captions: the grounded captions manifest, to measure the coverage of its texts.

    Raises:
        CacheError: a file is missing or damaged, or ``captions`` lacks one of the captions.
    """
    drops: list[dict[str, Any]] = []
    failed: Counter[str] = Counter()
    if path.is_dir():
        images, codes = read_grounding(path)
        records, drops = phrases_of(images), drops_of(images).to_pylist()
        failed.update(codes.values())
        pairs_of_images = dict.fromkeys(images["image_key"].to_pylist(), 0)
    else:
        records, pairs_of_images = read_phrases(path), dict[bytes, int]()
    records = records.select(["image_key", "caption_key", "char_start", "char_end", "cutout_key"])
    pairs_of_images |= Counter(records["image_key"].to_pylist())
    spans: dict[tuple[bytes, bytes], list[tuple[int, int]]] = {
        (drop["image_key"], drop["caption_key"]): [] for drop in drops
    }
    for row in records.to_pylist():
        key = row["image_key"], row["caption_key"]
        spans.setdefault(key, []).append((row["char_start"], row["char_end"]))
    by_caption = Counter(len(some) for some in spans.values())
    return GroundStats(
        images=len(pairs_of_images),
        failed=_by_count(failed),
        captions=len(spans),
        pairs=records.num_rows,
        objects=len(set(records["cutout_key"].to_pylist())),
        pairs_per_image=records.num_rows / max(len(pairs_of_images), 1),
        images_by_pairs=dict(sorted(Counter(pairs_of_images.values()).items())),
        captions_by_pairs=dict(sorted(by_caption.items())),
        contrasted=sum(n for pairs, n in by_caption.items() if pairs >= _LEAST_PAIRS),
        drops=_by_count(Counter(drop["reason"] for drop in drops)),
        span_coverage=_coverage(spans, captions) if captions else None,
    )


def write_stats(stats: GroundStats, folder: Path, inputs: Sequence[Path] = ()) -> None:
    """Write ``stats.json`` and the data points for ``dvc plots`` into ``folder``.

    The points are in ``pairs_per_image.json`` and ``drops.json``; `RECORD` lists the three files.

    Args:
        inputs: inputs of the statistics.

    Raises:
        SightlineError: foreign files in ``folder`` (`sightline.output`).
    """
    contents = {
        "stats": stats.to_json(),
        "pairs_per_image": [
            {"pairs": pairs, "images": count} for pairs, count in stats.images_by_pairs.items()
        ],
        "drops": [{"reason": reason, "dropped": count} for reason, count in stats.drops.items()],
    }
    with Output(folder, RECORD, json_record(SCHEMA), inputs) as output, output.scratch() as made:
        for name, body in contents.items():
            text = json.dumps(body, indent=1) + "\n"
            (made / f"{name}.json").write_text(text, encoding="utf-8")
        output.publish(made, {"schema": SCHEMA})


def _by_count(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _coverage(
    spans: dict[tuple[bytes, bytes], list[tuple[int, int]]], captions: Path
) -> float | None:
    texts = {
        key_of_text(text): text for text in read_manifest(captions, CAPTIONS)["text"].to_pylist()
    }
    absent = {caption for _, caption in spans} - texts.keys()
    if absent:
        raise CacheError(
            f"{captions}: lacks {len(absent):,} of the captions that were grounded (such as "
            f"{min(absent).hex()[:12]}…); give the manifest that the grounding was made from"
        )
    shares = []
    for (_, caption), some in spans.items():
        length = len(texts[caption])
        covered = {at for start, end in some for at in range(max(start, 0), min(end, length))}
        if length:
            shares.append(len(covered) / length)
    return sum(shares) / len(shares) if shares else None
