"""Scenes: one to three things in a layout, from a seeded stream; their pixels, masks and boxes."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.scenes.vocabulary import ATTRIBUTES, RGB

COUNTS = (1, 2, 2, 2, 2, 3, 3, 3)  # how many things a scene has, by frequency
RADIUS = {"small": 0.16, "big": 0.25}  # of the picture's edge
_CLEAR = 0.06  # margin by which one axis must dominate for a clear relation, of the edge
_SHADE = 0.5  # of the colour, where a stripe or a dot is dark
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


def draw(scene: Scene, edge: int) -> tuple[NDArray[np.uint8], list[NDArray[np.bool_]]]:
    """Pixels uint8 [edge, edge, 3], and one mask bool [edge, edge] per thing, in order.

    A pixel belongs to a thing if its centre does: no supersampling, so that masks are exact.
    """
    centres = (np.arange(edge) + 0.5) / edge
    pixels = np.full((edge, edge, 3), scene.ground, dtype=np.uint8)
    masks = []
    for placed in scene.things:
        x = ((centres - placed.x) / placed.radius)[None, :]  # −1 … 1 inside the thing
        y = ((centres - placed.y) / placed.radius)[:, None]
        mask = _inside(placed.thing.shape, x, y)
        colour = np.array(RGB[placed.thing.colour])
        pixels[mask] = colour
        pixels[mask & _dark(placed, edge)] = (colour * _SHADE).astype(np.uint8)
        masks.append(mask)
    return pixels, masks


def box_of(mask: NDArray[np.bool_]) -> list[float]:
    """The tight box of a mask in pixels: x0, y0, x1, y1, the last two exclusive."""
    rows = np.flatnonzero(mask.any(axis=1))
    columns = np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return [0.0, 0.0, 0.0, 0.0]
    return [float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)]


def png(pixels: NDArray[np.uint8]) -> bytes:
    """The image as PNG."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=6)
    return buffer.getvalue()


def _inside(shape: str, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether points belong to a shape around the origin, y downwards, within radius 1."""
    ax, ay = np.abs(x), np.abs(y)
    match shape:
        case "square":
            return np.maximum(ax, ay) < 0.7
        case "triangle":
            return (y < 0.6) & (ax < (y + 1) * 0.5)
        case "diamond":
            return ax + ay < 1
        case "cross":
            return (np.maximum(ax, ay) < 0.95) & (np.minimum(ax, ay) < 0.25)
        case "ring":
            square = x**2 + y**2
            return (square < 1) & (square > 0.3)
        case "star":
            return ax**0.6 + ay**0.6 < 1.02  # four points, a little fatter than an astroid
        case "bar":
            return (ax < 0.95) & (ay < 0.3)
        case "post":
            return (ax < 0.3) & (ay < 0.95)
    raise ValueError(f"unknown shape {shape!r}")


def _dark(placed: Placed, edge: int) -> NDArray[np.bool_]:
    """Where the texture darkens the colour: bool [edge, edge]."""
    step = max(1, round(edge / 32))
    across = np.arange(edge) // step
    match placed.thing.texture:
        case "plain":
            return np.zeros((edge, edge), dtype=bool)
        case "striped":
            return np.broadcast_to((across % 2 == 0)[:, None], (edge, edge))
        case "dotted":
            return (across % 2 == 0)[:, None] & (across % 2 == 0)[None, :]
    raise ValueError(f"unknown texture {placed.thing.texture!r}")
