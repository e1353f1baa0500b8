"""Writes the page: it loads no external resources, and all text is escaped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from pipeline.extract.decode import ImageError, load_picture
from pipeline.grounding.gallery.cards import Contents, ImageCard, pieces
from pipeline.grounding.gallery.outline import outline, shrink
from pipeline.grounding.page_pictures import Pixels, cut_out, fitted, photograph
from sightline.cache.rle import MaskCode, decode_mask
from sightline.errors import SightlineError
from sightline.files.output import check_output_file, replacing_file
from sightline.files.places import here
from sightline.html_pages import html_templates, source_digest

MARK = b'<meta name="generator" content="Sightline gallery">'
"""The start of a page, which marks it as replaceable by another."""
CUTOUT_SIDE = 112
"""Longer side of a cut-out on the page, in pixels."""

_HERE = Path(__file__).parent
_SHOWN_SIDE = 384  # most pixels of a photograph's longer side, and its CSS pixels, as in page.css


def write_gallery(
    contents: Contents,
    root: Path | str,
    out: Path,
    advance: Callable[[int], None] = lambda count: None,
    inputs: Sequence[Path] = (),
) -> int:
    """Write the page, one image at a time: memory does not grow with their number.

    Args:
        contents: what to show.
        root: base folder of the image paths, or its URL.
        advance: receives the number of newly finished images.
        inputs: source files and folders of ``contents``.

    Returns:
        The page's size in bytes.

    Raises:
        SightlineError: ``out`` is a folder, an input, or not a page written by this command.
    """
    inputs = [*here(root), *inputs]
    check_output_file(out, MARK, inputs)

    def views() -> Iterator[dict[str, object]]:
        for card in contents.cards:
            yield _view(card, root)
            advance(1)

    environment = html_templates(_HERE)
    style, script = (_HERE / "page.css").read_text(), (_HERE / "page.js").read_text()
    stream = environment.get_template("page.html.j2").stream(
        contents=contents,
        pieces=pieces,
        views=views(),
        style=Markup(style),
        style_digest=source_digest(style),
        script=Markup(script),
        script_digest=source_digest(script),
    )
    stream.enable_buffering(64)
    with replacing_file(out, MARK, inputs) as part:
        with part.open("wb") as file:
            stream.dump(file, encoding="utf-8")
        return part.stat().st_size


def _view(card: ImageCard, root: Path | str) -> dict[str, object]:
    """What the template shows of an image.

    ``card``; ``width`` and ``height`` of the small photograph, in pixels; ``unit``, one CSS pixel
    of the displayed photograph in those; ``problem``, why there is no photograph, or empty; and
    ``drawing``, what page.js draws when the card scrolls near, as JSON: ``photo`` (data URI or
    null), ``cutouts`` (data URIs), ``unit``, ``shapes`` (outlines, which phrases of several
    captions may share) and ``captions``, for each the objects as ``number``, ``colour``, ``shape``
    (its number or null) and ``box`` (x, y, width, height), larger ones first, so that smaller ones
    are on top.
    """
    try:
        pixels = load_picture(card.place.below(root), card.row["key"])
        height, width = pixels.shape[:2]
        problem = ""
    except ImageError as error:
        # boxes and masks are still informative over an empty image
        pixels, problem = None, f"{card.place}: {error.reason}"
        height, width = card.row["height"] or 1, card.row["width"] or 1
    small = fitted(width, height, _SHOWN_SIDE)
    unit = round(max(small) / _SHOWN_SIDE, 4)
    shapes, cutouts = _draw(card, pixels, (height, width), small)
    captions: list[list[dict[str, object]]] = []
    for caption in card.captions:
        sized = []
        for phrase in caption.phrases:
            box = _scaled(phrase.row["box"], (width, height), small)
            marked = {"number": phrase.number, "colour": phrase.colour, "shape": phrase.shape}
            sized.append((box[2] * box[3], {**marked, "box": box}))
        sized.sort(key=lambda pair: -pair[0])
        captions.append([marked for _, marked in sized])
    drawing = {
        "photo": None if pixels is None else photograph(pixels, _SHOWN_SIDE),
        "cutouts": cutouts,
        "unit": unit,
        "shapes": shapes,
        "captions": captions,
    }
    # numbers, outlines and base64 hold no "<", which alone could end the script element
    text = json.dumps(drawing, separators=(",", ":"))
    size = {"width": small[0], "height": small[1], "unit": unit}
    return {"card": card, **size, "problem": problem, "drawing": text}


def _draw(
    card: ImageCard, pixels: Pixels | None, size: tuple[int, int], small: tuple[int, int]
) -> tuple[list[str], list[str]]:
    """Outlines, and cut-outs of a photograph: each mask once, even if several phrases share it.

    Numbers and problems are noted in the phrases.
    """
    shapes: list[str] = []
    cutouts: list[str] = []
    shape_of: dict[tuple[int | str, ...], tuple[int | None, str]] = {}
    for phrase in (phrase for caption in card.captions for phrase in caption.phrases):
        code = phrase.row["mask"]
        name = *code["size"], code["counts"]
        if name not in shape_of:
            mask = _mask(code, size)
            if isinstance(mask, str):
                shape_of[name] = None, mask
            else:
                shape_of[name] = len(shapes), ""
                shapes.append(outline(shrink(mask, *small)))
                if pixels is not None:
                    cutouts.append(cut_out(pixels, mask, CUTOUT_SIDE))
        phrase.shape, fault = shape_of[name]
        phrase.problem = "; ".join(filter(None, (phrase.problem, fault)))
    return shapes, cutouts


def _mask(code: MaskCode, size: tuple[int, int]) -> NDArray[np.bool_] | str:
    """The mask, or what is wrong with it."""
    if tuple(code["size"]) != size:
        actual, expected = (f"{width} × {height}" for height, width in (code["size"], size))
        return f"mask of {actual} pixels, image of {expected}"
    try:
        mask = decode_mask(code["size"], code["counts"])
    except SightlineError as error:
        return str(error)
    return mask if mask.any() else "the mask is empty"


def _scaled(box: Sequence[float], size: tuple[int, int], small: tuple[int, int]) -> list[float]:
    """x, y, width and height in the small photograph, clipped to its edges, rounded for brevity."""
    scale = np.array([small[0] / size[0], small[1] / size[1]] * 2)
    edges = np.clip(np.nan_to_num(np.array(box, dtype=np.float64)) * scale, 0, np.array(small * 2))
    x0, y0, x1, y1 = edges.round(2).tolist()
    return [x0, y0, round(x1 - x0, 2), round(y1 - y0, 2)]
