"""Captions of scenes: their meaning, and the sentence that expresses it, with phrase spans."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from pipeline.datasets.scenes.scene import Scene, Thing, relation
from pipeline.datasets.scenes.vocabulary import (
    ATTRIBUTES,
    CONVERSE,
    FRAMES,
    NOUN_PHRASES,
    RELATIONS,
)

_UNSAID = 0.25  # how often a caption omits a size or a texture


class Mention(NamedTuple):
    """A thing as described by a caption.

    Attributes:
        thing: the whole thing, including unmentioned attributes.
        said: the attributes that the caption mentions; always shape and colour.
    """

    thing: Thing
    said: frozenset[str]


@dataclass(frozen=True)
class Description:
    """The meaning of a caption.

    Attributes:
        mentions: the things, in the order of the sentence.
        relation: where the first is relative to the second; None for a single thing.
    """

    mentions: tuple[Mention, ...]
    relation: str | None

    def turned(self) -> Description:
        """The same meaning from the second thing's side: left of becomes right of."""
        if self.relation is None:
            return self
        first, second, *third = self.mentions
        return Description((second, first, *third), CONVERSE[self.relation])


@dataclass(frozen=True)
class Caption:
    """A sentence and the span of each thing in it.

    Attributes:
        text: the sentence.
        spans: characters [start, end) of each mention's noun phrase, in the mentions' order.
        words: the words chosen for attributes and relations.
    """

    text: str
    spans: tuple[tuple[int, int], ...]
    words: frozenset[str]


def describe(scene: Scene, random: Random) -> tuple[Description, list[int]]:
    """One description of a scene: its meaning, and the thing that each mention refers to."""
    order = list(range(len(scene.things)))
    random.shuffle(order)
    placed = [scene.things[i] for i in order]
    mentions = tuple(Mention(place.thing, random_said(random)) for place in placed)
    where = relation(placed[0], placed[1]) if len(placed) > 1 else None
    return Description(mentions, where), order


def random_said(random: Random) -> frozenset[str]:
    """The attributes that a mention includes."""
    return frozenset(
        name for name in Thing._fields if name in ("shape", "colour") or random.random() > _UNSAID
    )


def write(description: Description, random: Random, avoid: Collection[str] = ()) -> Caption:
    """Write a caption: every word is a random choice among its synonyms, excluding ``avoid``.

    One caption never uses two words for one value. A relation may be stated from either side.
    """
    if random.random() < 0.5:
        swapped = True
        told = description.turned()
    else:
        swapped = False
        told = description
    chosen: dict[tuple[str, str], str] = {}

    def word(attribute: str, name: str) -> str:
        key = (attribute, name)
        if key not in chosen:
            values = RELATIONS if attribute == "relation" else ATTRIBUTES[attribute]
            words = next(value.words for value in values if value.name == name)
            chosen[key] = random.choice([w for w in words if w not in avoid] or list(words))
        return chosen[key]

    phrases = [_noun_phrase(mention, word, random) for mention in told.mentions]
    frame = random.choice(FRAMES[len(phrases)])
    if told.relation is not None:
        frame = frame.replace("{rel}", word("relation", told.relation))
    text, spans = _fill(frame, phrases)
    if swapped and description.relation is not None:
        spans = [spans[1], spans[0], *spans[2:]]
    return Caption(text, tuple(spans), frozenset(chosen.values()))


def _noun_phrase(mention: Mention, word, random: Random) -> str:
    parts = {
        name: word(name, value) if name in mention.said else ""
        for name, value in mention.thing._asdict().items()
    }
    return " ".join(random.choice(NOUN_PHRASES).format(**parts).split())


def _fill(frame: str, phrases: list[str]) -> tuple[str, list[tuple[int, int]]]:
    spans = [(0, 0)] * len(phrases)
    text = ""
    for piece in frame.replace("}", "{").split("{"):
        if piece.isdigit():
            start = len(text)
            text += phrases[int(piece)]
            spans[int(piece)] = (start, len(text))
        else:
            text += piece
    return text, spans
