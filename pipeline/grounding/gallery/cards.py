"""What the page shows for each image: its captions, their phrases and the drops."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sightline.cache import CAPTIONS, IMAGES, Place, key_of_text, places_of, read_manifest
from sightline.cache.groundings import drops_of, phrases_of, read_grounding, read_phrases
from sightline.cache.tables import DROPS
from sightline.errors import SightlineError

COLOURS = 8
"""Colours in the style sheet; a caption's ninth phrase reuses the first one's."""
_Rows = list[dict[str, Any]]


@dataclass
class Phrase:
    """A phrase of a caption, and what the page draws of it.

    Attributes:
        number: within its caption, from 1.
        row: of `sightline.cache.PHRASES`.
        problem: what is wrong with its span or its mask, or empty.
        shape: number of its outline, and of its cut-out, on the card; None without a sound mask.
    """

    number: int
    row: dict[str, Any]
    problem: str = ""
    shape: int | None = None

    @property
    def span(self) -> tuple[int, int]:
        """Its first character in the caption, and the one behind its last."""
        return self.row["char_start"], self.row["char_end"]

    @property
    def colour(self) -> int:
        """Index of its colour."""
        return (self.number - 1) % COLOURS


class Piece(NamedTuple):
    """A segment of a caption whose characters all belong to the same phrases.

    Attributes:
        phrase: the shortest phrase around it, if any.
        ending: phrases that end with it; their numbers are shown there.
    """

    text: str
    phrase: Phrase | None
    ending: list[Phrase]


@dataclass
class CaptionCard:
    """A caption, its phrases in order, and its drops: rows with phrase, reason and detail."""

    text: str
    phrases: list[Phrase]
    drops: _Rows


@dataclass
class ImageCard:
    """An image, as a row of `sightline.cache.IMAGES` and where it is, and its captions."""

    row: dict[str, Any]
    place: Place
    captions: list[CaptionCard] = field(default_factory=list)


@dataclass
class Contents:
    """Everything that a page shows.

    Attributes:
        cards: the images shown, in the manifest's order.
        grounded: images that have a phrase or a drop, shown or not.
    """

    cards: list[ImageCard]
    grounded: int

    @property
    def phrases(self) -> int:
        """The number of phrases shown."""
        return sum(len(caption.phrases) for card in self.cards for caption in card.captions)

    @property
    def reasons(self) -> dict[str, int]:
        """Drops among the images shown, by reason, the most frequent first."""
        captions = (caption for card in self.cards for caption in card.captions)
        reasons = sorted(drop["reason"] for caption in captions for drop in caption.drops)
        return dict(Counter(reasons).most_common())


def read_contents(phrases: Path, captions: Path, images: Path, limit: int) -> Contents:
    """Combine the manifests.

    Args:
        phrases: the folder of a grounding, which also lists drops, or a phrases manifest.
        limit: maximum images; more are sampled evenly over the manifest.

    Raises:
        SightlineError: the files do not match, or there is nothing to show.
    """
    if phrases.is_dir():
        grounding = read_grounding(phrases)[0]
        records, dropped = phrases_of(grounding), drops_of(grounding)
    else:
        records, dropped = read_phrases(phrases), DROPS.empty_table()
    # image key → caption key → the rows of its phrases, and those of its drops
    rows_of: defaultdict[bytes, dict[bytes, tuple[_Rows, _Rows]]] = defaultdict(dict)
    for which, table in enumerate((records, dropped)):
        for row in table.to_pylist():
            of_image = rows_of[row["image_key"]]
            of_image.setdefault(row["caption_key"], ([], []))[which].append(row)
    manifest = read_manifest(images, IMAGES)
    cards: dict[bytes, ImageCard] = {}
    key_of: dict[str, bytes] = {}
    for row, place in zip(manifest.to_pylist(), places_of(images, manifest), strict=True):
        key_of[row["image_id"]] = row["key"]
        # files with equal content are one image, with the captions of all of them
        cards.setdefault(row["key"], ImageCard(row, place))
    if unknown := rows_of.keys() - cards.keys():
        raise SightlineError(
            f"{phrases}: {len(unknown):,} of its images are not in {images} (such as "
            f"{min(unknown).hex()[:12]}…); give the manifest that the phrases were made from"
        )
    grounded = [card for key, card in cards.items() if key in rows_of]
    if not grounded:
        raise SightlineError(f"{phrases}: contains no phrases, so there is nothing to show")
    count = min(limit, len(grounded))
    chosen = [grounded[i * len(grounded) // count] for i in range(count)]
    shown = {card.row["key"]: card for card in chosen}
    texts = read_manifest(captions, CAPTIONS).select(["image_id", "text"])
    for image_id, text in zip(*texts.to_pydict().values(), strict=True):
        key = key_of.get(image_id, b"")
        if key in shown and (rows := rows_of[key].pop(key_of_text(text), None)) is not None:
            shown[key].captions.append(CaptionCard(text, _phrases(text, rows[0]), rows[1]))
    for key, card in shown.items():
        if strangers := rows_of[key]:
            raise SightlineError(
                f"{captions}: image {card.row['image_id']!r} has phrases of {len(strangers)} "
                "captions that it does not have; give the manifest that the phrases were made from"
            )
    return Contents(chosen, len(grounded))


def pieces(text: str, phrases: Sequence[Phrase]) -> list[Piece]:
    """Split a caption where a phrase starts or ends; phrases may nest, overlap or repeat."""
    spans = [phrase.span for phrase in phrases]
    edges = {0, len(text), *(min(max(edge, 0), len(text)) for span in spans for edge in span)}
    result = []
    for start, end in itertools.pairwise(sorted(edges)):
        around = [phrase for phrase in phrases if phrase.span[0] <= start and phrase.span[1] >= end]
        shortest = min(around, key=lambda phrase: phrase.span[1] - phrase.span[0], default=None)
        ending = [phrase for phrase in around if phrase.span[1] == end]
        result.append(Piece(text[start:end], shortest, ending))
    return result


def _phrases(text: str, rows: _Rows) -> list[Phrase]:
    phrases = []
    rows = sorted(rows, key=lambda row: (row["char_start"], row["char_end"]))
    for number, row in enumerate(rows, start=1):
        read = text[max(row["char_start"], 0) : max(row["char_end"], 0)]
        problem = "" if read == row["phrase"] else f"the caption reads {read!r} there"
        phrases.append(Phrase(number, row, problem))
    return phrases
