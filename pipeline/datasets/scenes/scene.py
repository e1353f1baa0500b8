"""Scenes: one to three things in a layout, drawn from a seeded stream."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from pipeline.datasets.scenes.vocabulary import ATTRIBUTES

COUNTS = (1, 2, 2, 2, 2, 3, 3, 3)  # how many things a scene has, by frequency
RADIUS = {"small": 0.16, "big": 0.25}  # of the picture's edge
_CLEAR = 0.06  # margin by which one axis must dominate for a clear relation, of the edge
_OWNERS = ("train",) * 8 + ("dev", "test")


class Thing(NamedTuple):
    """One thing by its attributes, as in `vocabulary.ATTRIBUTES`."""

    shape: str
    colour: str
    size: str
    texture: str


class Placed(NamedTuple):
    """A thing and its place; all lengths are fractions of the image's edge."""

    thing: Thing
    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Scene:
    """Things in their places, and the lightness of the ground (0–255, dark)."""

    things: tuple[Placed, ...]
    ground: int

    @property
    def split(self) -> str:
        """``train``, ``dev`` or ``test``: determined by the things, see `owner`."""
        return owner(tuple(placed.thing for placed in self.things))


def stream(seed: int, *names: object) -> Random:
    """A separate random stream for each use, identical on every machine."""
    return Random("/".join(map(str, (seed, *names))))


def owner(things: tuple[Thing, ...]) -> str:
    """The split that these things belong to, regardless of order and places.

    Determined by a hash of the content (8 : 1 : 1), so that no combination of things is ever in
    two splits, in images, captions or similarity pairs.
    """
    content = "/".join(sorted(" ".join(thing) for thing in things))
    return _OWNERS[hashlib.sha256(content.encode("utf-8")).digest()[0] % len(_OWNERS)]


def random_thing(random: Random) -> Thing:
    """A thing with every attribute chosen at random."""
    return Thing(*(random.choice(ATTRIBUTES[name]).name for name in Thing._fields))


def random_scene(random: Random, split: str | None = None) -> Scene:
    """A scene with clear relations and no occlusion; of ``split``, if given."""
    while True:
        things = tuple(random_thing(random) for _ in range(random.choice(COUNTS)))
        if len(set(things)) < len(things) or split not in (None, owner(things)):
            continue
        placed = _place(things, random)
        if placed is not None:
            return Scene(placed, random.randrange(20, 70))


def relation(first: Placed, second: Placed) -> str:
    """Where ``first`` is relative to ``second``: left, right, above or below."""
    dx, dy = first.x - second.x, first.y - second.y
    if abs(dx) > abs(dy):
        return "left" if dx < 0 else "right"
    return "above" if dy < 0 else "below"


def _place(things: tuple[Thing, ...], random: Random) -> tuple[Placed, ...] | None:
    placed: list[Placed] = []
    for thing in things:
        radius = RADIUS[thing.size] * (0.92 + 0.16 * random.random())
        room = 1 - 2 * radius - 0.02
        for _ in range(30):
            x = 0.01 + radius + room * random.random()
            y = 0.01 + radius + room * random.random()
            if all(_apart(x, y, radius, neighbour) for neighbour in placed):
                placed.append(Placed(thing, x, y, radius))
                break
        else:
            return None
    return tuple(placed)


def _apart(x: float, y: float, radius: float, neighbour: Placed) -> bool:
    dx, dy = abs(x - neighbour.x), abs(y - neighbour.y)
    touching = dx * dx + dy * dy < (radius + neighbour.radius + 0.02) ** 2
    return not touching and abs(dx - dy) > _CLEAR
