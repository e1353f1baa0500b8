"""Captions of scenes: their meaning, the sentence that expresses it, and graded pairs of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from random import Random
from typing import NamedTuple

from pipeline.datasets.scenes.scene import Scene, Thing, owner, random_scene, relation
from pipeline.datasets.scenes.vocabulary import (
    ATTRIBUTES,
    CONVERSE,
    FRAMES,
    NOUN_PHRASES,
    RELATIONS,
    WEIGHTS,
)

_UNSAID = 0.25  # how often a caption omits a size or a texture
HIGHEST = 5.0
_RELATION_SHARE = 0.1  # of the similarity of two captions that state a relation
_LEVELS = 11  # grades aimed at in turn: 0, 0.5, … 5
_NEAR_ENOUGH = 0.25
_CANDIDATES = 100  # tried for one pair; dev and test own one in ten


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


class GradedPair(NamedTuple):
    """Two sentences and the similarity of their meanings, 0–5."""

    score: float
    sentence1: str
    sentence2: str


def similarity(first: Description, second: Description) -> float:
    """Similarity of meaning of two captions: 0–5, symmetric, 5 for the same meaning.

    The things are matched one to one optimally. Each attribute that both mention counts 1 or
    0 by `WEIGHTS`, one that only one of them mentions counts half, one that neither mentions is
    ignored. The relation, if there is one, contributes a tenth.
    """
    if len(first.mentions) > len(second.mentions):
        first, second = second, first
    longest = len(second.mentions)
    table = [[_thing_similarity(a, b) for b in second.mentions] for a in first.mentions]
    best = 0.0
    for match in permutations(range(longest), len(first.mentions)):
        total = sum(table[i][j] for i, j in enumerate(match)) / longest
        if first.relation is not None or second.relation is not None:
            total *= 1 - _RELATION_SHARE
            total += _RELATION_SHARE * _relation_similarity(first, second, match)
        best = max(best, total)
    return HIGHEST * best


def _thing_similarity(first: Mention, second: Mention) -> float:
    got = possible = 0.0
    for name, weight in WEIGHTS.items():
        told = (name in first.said) + (name in second.said)
        if not told:
            continue
        possible += weight
        if told == 1:
            got += weight / 2
        elif getattr(first.thing, name) == getattr(second.thing, name):
            got += weight
    return got / possible


def _relation_similarity(first: Description, second: Description, match: tuple[int, ...]) -> float:
    if first.relation is None or second.relation is None:
        return 0.5
    if set(match[:2]) != {0, 1}:
        return 0.5  # they relate different pairs, so nothing is known about this one
    told = second if match[0] == 0 else second.turned()
    return float(first.relation == told.relation)


def graded_pairs(
    count: int, split: str, random: Random, forbidden: Collection[str]
) -> list[GradedPair]:
    """Pairs of captions whose grades are spread evenly from 0 to 5.

    The things of both sentences belong to ``split`` (see `scene.owner`). The two sentences of a
    pair share no word for an attribute or a relation, regardless of their grade: for the same
    meaning they use synonyms. Thus word overlap carries no information about the grade.

    Args:
        forbidden: sentences that must not be used (captions of images, and other splits).
    """
    pairs: list[GradedPair] = []
    used = set(forbidden)
    while len(pairs) < count:
        pair = _pair(HIGHEST * (len(pairs) % _LEVELS) / (_LEVELS - 1), split, random)
        if pair.sentence1 in used or pair.sentence2 in used or pair.sentence1 == pair.sentence2:
            continue
        used.update(pair[1:])
        pairs.append(pair)
    return pairs


def _pair(target: float, split: str, random: Random) -> GradedPair:
    first, _ = describe(random_scene(random, split), random)
    share = 1 - target / HIGHEST
    nearest, score = first, HIGHEST
    for _ in range(_CANDIDATES if share else 0):
        changed = _changed(first, share, random)
        if owner(tuple(mention.thing for mention in changed.mentions)) != split:
            continue
        reached = similarity(first, changed)
        if abs(reached - target) < abs(score - target):
            nearest, score = changed, reached
        if abs(score - target) < _NEAR_ENOUGH:
            break
    left = write(first, random)
    right = write(nearest, random, avoid=left.words)
    return GradedPair(score, left.text, right.text)


def _changed(description: Description, share: float, random: Random) -> Description:
    """A copy with about ``share`` of its attributes changed, in a different order."""
    mentions = [
        Mention(
            Thing(
                *(
                    random.choice(_others(name, value)) if random.random() < share else value
                    for name, value in mention.thing._asdict().items()
                )
            ),
            random_said(random) if random.random() < share else mention.said,
        )
        for mention in description.mentions
    ]
    where = description.relation
    if where is not None and random.random() < share:
        where = random.choice([value.name for value in RELATIONS if value.name != where])
    return Description(tuple(mentions), where)


@cache
def _others(attribute: str, value: str) -> list[str]:
    return [v.name for v in ATTRIBUTES[attribute] if v.name != value]
