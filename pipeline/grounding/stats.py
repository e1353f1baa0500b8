"""Statistics of a grounding, as `sightline cache info` shows them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from sightline.cache import CAPTIONS, CacheError, key_of_text, read_manifest
from sightline.cache.groundings import drops_of, groundings, phrases_of

PUBLISHED_PAIRS = 4.2
"""Pairs per image of Flickr30k, longest caption of each (Zhao et al. 2025, MCSEO)."""

_LEAST_PAIRS = 2  # per caption, to enter MCSEO's object term
_Spans = dict[tuple[bytes, bytes], list[tuple[int, int]]]  # key of image and caption → phrases


def statistics(folder: Path, captions: Path | None = None) -> dict[str, Any]:
    """What a grounding holds, as a JSON object.

    ``images`` are those grounded without error, ``failed`` the others by code, ``captions`` all
    that were grounded, ``contrasted`` those with at least two pairs (only these enter MCSEO's
    object term), ``pairs`` the phrases with an object, ``objects`` the distinct cut-outs,
    ``dropped`` phrases and boxes by reason, and ``span_coverage`` the mean fraction of a caption's
    characters inside a phrase, over captions with a pair or a drop.

    Args:
        captions: the grounded captions manifest; without it, ``span_coverage`` is None.

    Raises:
        CacheError: a file is missing or damaged, or ``captions`` lacks one of the captions.
    """
    tables, failed = groundings(folder)
    columns = ["image_key", "caption_key", "char_start", "char_end", "cutout_key"]
    spans: _Spans = {}
    pairs_of_images: dict[bytes, int] = {}
    objects: set[bytes] = set()
    reasons: Counter[str] = Counter()
    captions_grounded = 0
    for images in tables:
        captions_grounded += sum(images["captions"].to_pylist())
        pairs_of_images |= dict.fromkeys(images["image_key"].to_pylist(), 0)
        for drop in drops_of(images).to_pylist():
            reasons[drop["reason"]] += 1
            spans.setdefault((drop["image_key"], drop["caption_key"]), [])
        for row in phrases_of(images).select(columns).to_pylist():
            span = row["char_start"], row["char_end"]
            spans.setdefault((row["image_key"], row["caption_key"]), []).append(span)
            pairs_of_images[row["image_key"]] += 1
            objects.add(row["cutout_key"])
    pairs = sum(pairs_of_images.values())
    return {
        "images": len(pairs_of_images),
        "failed": dict(Counter(sorted(failed.values())).most_common()),
        "captions": captions_grounded,
        "contrasted": sum(len(spans_of) >= _LEAST_PAIRS for spans_of in spans.values()),
        "pairs": pairs,
        "pairs_per_image": pairs / max(len(pairs_of_images), 1),
        "published_pairs_per_image": PUBLISHED_PAIRS,
        "images_by_pairs": dict(sorted(Counter(pairs_of_images.values()).items())),
        "objects": len(objects),
        "dropped": dict(Counter(sorted(reasons.elements())).most_common()),
        "span_coverage": None if captions is None else _coverage(spans, captions),
    }


def described(stats: dict[str, Any]) -> dict[str, str]:
    """`statistics` in words: name → value on one line."""

    def by_reason(counts: dict[str, int], before: str) -> str:
        words = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items())
        return f"{before}{words}" if words else ""

    lines = {
        "Images": f"{stats['images']:,}{by_reason(stats['failed'], '; failed: ')}",
        "Captions": f"{stats['captions']:,}; {stats['contrasted']:,} have two pairs or more, and "
        "only these enter MCSEO's object term",
        "Pairs": f"{stats['pairs']:,} of {stats['objects']:,} distinct objects; "
        f"{stats['pairs_per_image']:.2f} per image (MCSEO on Flickr30k: {PUBLISHED_PAIRS})",
        "Dropped": f"{sum(stats['dropped'].values()):,}{by_reason(stats['dropped'], ': ')}",
    }
    if stats["span_coverage"] is not None:
        lines["In phrases"] = f"{stats['span_coverage']:.1%} of a caption's characters"
    return lines


def _coverage(spans: _Spans, captions: Path) -> float | None:
    texts = read_manifest(captions, CAPTIONS)["text"].to_pylist()
    texts = {key_of_text(text): text for text in texts}
    absent = {caption for _, caption in spans} - texts.keys()
    if absent:
        raise CacheError(
            f"{captions}: lacks {len(absent):,} of the captions that were grounded (such as "
            f"{min(absent).hex()[:12]}…); give the manifest that the grounding was made from"
        )
    shares = []
    for (_, caption), group in spans.items():
        length = len(texts[caption])
        covered = {at for start, end in group for at in range(max(start, 0), min(end, length))}
        if length:
            shares.append(len(covered) / length)
    return sum(shares) / len(shares) if shares else None
