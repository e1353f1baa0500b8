"""From a mask to the outline that a browser draws: an SVG path along pixel edges."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def outline(mask: NDArray[np.bool_]) -> str:
    """SVG path data around the pixels of a mask, for the fill rule ``evenodd``.

    Args:
        mask: bool [height, width].

    Returns:
        closed loops in pixel coordinates, such as ``M1 1h2v1h-2z``; empty for an empty mask.
    """
    edges = np.diff(np.pad(mask, 1), axis=0)  # along rows
    # a corner is an end of one; the edges of pixels that touch diagonally cross without one
    corners = np.diff(edges, axis=1)
    across = _ends(np.argwhere(corners)[:, ::-1])
    down = _ends(np.argwhere(corners.T))
    loops = []
    while across:
        at = x, y = next(iter(across))
        path = [f"M{x} {y}"]
        while at in across:
            turn = across.pop(at)
            end = down.pop(turn)
            del across[turn], down[end]
            path.append(f"h{turn[0] - at[0]}v{end[1] - turn[1]}")
            at = end
        loops.append("".join(path) + "z")
    return "".join(loops)


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


def _ends(corners: NDArray[np.intp]) -> dict[tuple[int, int], tuple[int, int]]:
    """The other end of each corner's edge.

    Args:
        corners: [2 n, 2] x, y; the ends of an edge follow each other.
    """
    points = list(map(tuple, corners.tolist()))
    firsts, seconds = points[::2], points[1::2]
    return dict(zip([*firsts, *seconds], [*seconds, *firsts], strict=True))
