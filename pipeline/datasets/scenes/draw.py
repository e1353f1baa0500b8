"""Draws a scene: RGB pixels, and the exact mask and box of every thing."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.scenes.scene import Placed, Scene
from pipeline.datasets.scenes.vocabulary import RGB

_SHADE = 0.5  # of the colour, where a stripe or a dot is dark


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
