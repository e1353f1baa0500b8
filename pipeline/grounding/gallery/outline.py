"""From a mask to the outline that a browser draws: an SVG path along pixel edges."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_Point = tuple[int, int]


def outline(mask: NDArray[np.bool_]) -> str:
    """SVG path data around the pixels of a mask, for the fill rule ``evenodd``.

    Args:
        mask: bool [height, width].

    Returns:
        closed loops in pixel coordinates, such as ``M1 1h2v1h-2z``; empty for an empty mask.
    """
    flat = _runs(mask)
    turned = _runs(mask.T, turned=True)
    steep = {(x, y): [(x1, y1) for y1, x1 in ends] for (y, x), ends in turned.items()}
    return "".join(_loops(flat, steep))


def shrink(mask: NDArray[np.bool_], width: int, height: int) -> NDArray[np.bool_]:
    """The mask resized: bool [height, width], true where at least half is covered.

    A mask too thin to cover half of any pixel keeps every pixel it touches.
    """
    if mask.shape == (height, width):
        return mask
    image = Image.fromarray(mask.astype(np.uint8) * 255)
    covered = np.asarray(image.resize((width, height), Image.Resampling.BOX))
    half = covered >= 128
    return half if half.any() else covered > 0


def _runs(mask: NDArray[np.bool_], turned: bool = False) -> dict[_Point, list[_Point]]:
    """Straight edges along rows, start → ends, with the inside always on the same side.

    Two edges start at a corner where two pixels touch diagonally.
    """
    height, width = mask.shape
    padded = np.zeros((height + 2, width + 2), dtype=np.int8)
    padded[1:-1, 1:-1] = mask
    sides = np.diff(padded, axis=0)[:, 1:-1]  # 1: the inside begins below; -1: it ends above
    edges: dict[_Point, list[_Point]] = {}
    for side in (1, -1):
        marks = np.zeros((height + 1, width + 2), dtype=np.int8)
        marks[:, 1:-1] = sides == side
        steps = np.diff(marks, axis=1)
        rows, starts = np.nonzero(steps == 1)
        ends = np.nonzero(steps == -1)[1]
        forward = (side == 1) != turned
        for y, x0, x1 in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
            start, end = (x0, x1) if forward else (x1, x0)
            edges.setdefault((start, y), []).append((end, y))
    return edges


def _loops(flat: dict[_Point, list[_Point]], steep: dict[_Point, list[_Point]]) -> list[str]:
    """Chain edges into loops; along a loop, horizontal and vertical ones alternate."""
    loops = []
    for start in list(flat):
        while flat[start]:
            path, at = [f"M{start[0]} {start[1]}"], start
            while True:
                across = flat[at].pop()
                down = steep[across].pop()
                path.append(f"h{across[0] - at[0]}v{down[1] - across[1]}")
                at = down
                if at == start:
                    break
            loops.append("".join(path) + "z")
    return loops
