"""Graded similarity (0–5) of two captions by meaning, and balanced sets of such pairs."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from itertools import permutations
from random import Random
from typing import NamedTuple

from pipeline.datasets.scenes.captions import Description, Mention, describe, random_said, write
from pipeline.datasets.scenes.scene import Thing, owner, random_scene
from pipeline.datasets.scenes.vocabulary import ATTRIBUTES, RELATIONS, WEIGHTS

HIGHEST = 5.0
_RELATION_SHARE = 0.1  # of the similarity of two captions that state a relation
_LEVELS = 11  # grades aimed at in turn: 0, 0.5, … 5
_NEAR_ENOUGH = 0.25
_CANDIDATES = 100  # tried for one pair; dev and test own one in ten


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
                    _another(name, value, random) if random.random() < share else value
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


def _another(attribute: str, value: str, random: Random) -> str:
    return random.choice(_others(attribute, value))


@cache
def _others(attribute: str, value: str) -> list[str]:
    return [v.name for v in ATTRIBUTES[attribute] if v.name != value]
