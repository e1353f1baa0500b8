"""What the page shows for each image: its captions, their phrases and the drops."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from sightline.cache import CAPTIONS, IMAGES, Place, key_of_text, places_of, read_manifest
from sightline.cache.groundings import drops_of, phrases_of, read_grounding, read_phrases
from sightline.cache.tables import DROPS
from sightline.errors import SightlineError

COLOURS = 8
"""Colours in the style sheet; a caption's ninth phrase reuses the first one's."""


@dataclass(frozen=True)
class Phrase:
    """A row of the phrases manifest, numbered within its caption.

    Attributes:
        number: from 1, in caption order.
        box: x0, y0, x1, y1 in pixels.
        size, counts: the mask's run-length code.
        cutout: hex key of its cut-out.
        problem: what is wrong with its span, or empty.
    """

    number: int
    text: str
    start: int
    end: int
    score: float
    box: tuple[float, float, float, float]
    size: tuple[int, int]
    counts: str
    cutout: str
    problem: str

    @property
    def colour(self) -> int:
        """Index of its colour."""
        return (self.number - 1) % COLOURS


@dataclass(frozen=True)
class Drop:
    """What a caption lost, and why."""

    phrase: str
    reason: str
    detail: str


@dataclass(frozen=True)
class Piece:
    """A segment of a caption whose characters all belong to the same phrases.

    Attributes:
        phrase: the shortest phrase around it, if any.
        ending: phrases that end with it; their numbers are shown there.
    """

    text: str
    phrase: Phrase | None
    ending: tuple[Phrase, ...]


@dataclass(frozen=True)
class CaptionCard:
    """A caption, its phrases in order, and its drops."""

    text: str
    phrases: tuple[Phrase, ...]
    drops: tuple[Drop, ...]

    @property
    def pieces(self) -> list[Piece]:
        """The whole caption, split where a phrase starts or ends."""
        return pieces(self.text, self.phrases)


@dataclass(frozen=True)
class ImageCard:
    """An image and its captions; ``place``, ``width`` and ``height`` come from the manifest."""

    image_id: str
    place: Place
    key: bytes
    width: int
    height: int
    captions: tuple[CaptionCard, ...]


@dataclass
class Contents:
    """Everything that a page shows.

    Attributes:
        cards: the images shown, in the manifest's order.
        grounded: images that have a phrase or a drop, shown or not.
        reasons: drops among the images shown, by reason, the most frequent first.
    """

    cards: list[ImageCard]
    grounded: int
    reasons: dict[str, int] = field(init=False)
    phrases: int = field(init=False)

    def __post_init__(self) -> None:
        captions = [caption for card in self.cards for caption in card.captions]
        counts = Counter(drop.reason for caption in captions for drop in caption.drops)
        self.reasons = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
        self.phrases = sum(len(caption.phrases) for caption in captions)


def read_contents(phrases: Path, captions: Path, images: Path, limit: int) -> Contents:
    """Combine the manifests.

    Args:
        phrases: the folder of a grounding, which also lists drops, or a phrases manifest.
        limit: maximum images; more are sampled evenly over the manifest.

    Raises:
        SightlineError: the files do not match, or there is nothing to show.
    """
    found: dict[bytes, dict[bytes, list[dict[str, Any]]]] = {}
    if phrases.is_dir():
        grounded = read_grounding(phrases)[0]
        records, dropped = phrases_of(grounded), drops_of(grounded)
    else:
        records, dropped = read_phrases(phrases), DROPS.empty_table()
    for row in records.to_pylist():
        found.setdefault(row["image_key"], {}).setdefault(row["caption_key"], []).append(row)
    lost: dict[bytes, dict[bytes, list[Drop]]] = {}
    for row in dropped.to_pylist():
        drop = Drop(row["phrase"], row["reason"], row["detail"])
        lost.setdefault(row["image_key"], {}).setdefault(row["caption_key"], []).append(drop)
    manifest = read_manifest(images, IMAGES)
    places = places_of(images, manifest)
    every = [{**row, "place": at} for row, at in zip(manifest.to_pylist(), places, strict=True)]
    rows = {row["key"]: row for row in reversed(every)}
    unknown = (found.keys() | lost.keys()) - rows.keys()
    if unknown:
        raise SightlineError(
            f"{phrases}: {len(unknown):,} of its images are not in {images} (such as "
            f"{min(unknown).hex()[:12]}…); give the manifest that the phrases were made from"
        )
    grounded = [key for key in reversed(rows) if key in found or key in lost]
    if not grounded:
        raise SightlineError(f"{phrases}: contains no phrases, so there is nothing to show")
    count = min(limit, len(grounded))
    shown = [rows[grounded[i * len(grounded) // count]] for i in range(count)]
    texts = _texts(captions, manifest, {row["key"] for row in shown})
    cards = []
    for row in shown:
        told = texts.get(row["key"], {})
        some, gone = found.get(row["key"], {}), lost.get(row["key"], {})
        strangers = (some.keys() | gone.keys()) - told.keys()
        if strangers:
            raise SightlineError(
                f"{captions}: image {row['image_id']!r} has phrases of {len(strangers)} captions "
                "that it does not have; give the manifest that the phrases were made from"
            )
        cards.append(_card(row, told, some, gone))
    return Contents(cards, len(grounded))


def pieces(text: str, phrases: Sequence[Phrase]) -> list[Piece]:
    """Split a caption where a phrase starts or ends; phrases may nest, overlap or repeat."""
    edges = {0, len(text)}
    for phrase in phrases:
        edges |= {min(max(edge, 0), len(text)) for edge in (phrase.start, phrase.end)}
    cuts = sorted(edges)
    result = []
    for start, end in itertools.pairwise(cuts):
        around = [each for each in phrases if each.start <= start and each.end >= end]
        shortest = min(around, key=lambda each: each.end - each.start, default=None)
        ending = tuple(each for each in around if each.end == end)
        result.append(Piece(text[start:end], shortest, ending))
    return result


def _texts(captions: Path, images: pa.Table, keys: set[bytes]) -> dict[bytes, dict[bytes, str]]:
    """Image key → caption key → text, each text once, in manifest order.

    Files with equal content count as one image with the captions of all of them.
    """
    key_of = dict(zip(images["image_id"].to_pylist(), images["key"].to_pylist(), strict=True))
    table = read_manifest(captions, CAPTIONS)
    texts: dict[bytes, dict[bytes, str]] = {}
    for image_id, text in zip(
        table["image_id"].to_pylist(), table["text"].to_pylist(), strict=True
    ):
        key = key_of.get(image_id)
        if key in keys:
            texts.setdefault(key, {})[key_of_text(text)] = text
    return texts


def _card(
    row: Mapping[str, Any],
    texts: Mapping[bytes, str],
    found: Mapping[bytes, list[dict[str, Any]]],
    lost: Mapping[bytes, list[Drop]],
) -> ImageCard:
    captions = tuple(
        CaptionCard(text, _phrases(text, found.get(key, [])), tuple(lost.get(key, ())))
        for key, text in texts.items()
        if key in found or key in lost
    )
    return ImageCard(
        row["image_id"], row["place"], row["key"], row["width"], row["height"], captions
    )


def _phrases(text: str, rows: list[dict[str, Any]]) -> tuple[Phrase, ...]:
    rows = sorted(rows, key=lambda row: (row["char_start"], row["char_end"]))
    phrases = []
    for number, row in enumerate(rows, start=1):
        start, end = row["char_start"], row["char_end"]
        read = text[max(start, 0) : max(end, 0)]
        phrases.append(
            Phrase(
                number=number,
                text=row["phrase"],
                start=start,
                end=end,
                score=row["score"],
                box=tuple(row["box"]),
                size=tuple(row["mask"]["size"]),
                counts=row["mask"]["counts"],
                cutout=row["cutout_key"].hex(),
                problem="" if read == row["phrase"] else f"the caption reads {read!r} there",
            )
        )
    return tuple(phrases)
