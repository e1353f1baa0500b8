"""Writes the page: it loads no external resources, and all text is escaped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup

from pipeline.extract.decode import ImageError, load_picture
from pipeline.grounding.gallery.cards import Contents, ImageCard, Phrase
from pipeline.grounding.gallery.outline import outline, shrink
from pipeline.grounding.gallery.pictures import Pixels, cut_out, fitted, photograph
from sightline.cache.rle import decode_mask
from sightline.errors import SightlineError
from sightline.html_pages import html_templates, source_digest
from sightline.output import check_output_file, replacing_file

MARK = b'<meta name="generator" content="Sightline gallery">'
"""The start of a page, which marks it as replaceable by another."""
CUTOUT_SIDE = 112
"""Longer side of a cut-out on the page, in pixels."""

_HERE = Path(__file__).parent
_SHOWN_SIDE = 384  # CSS pixels of a photograph's longer side, as in page.css


@dataclass(frozen=True)
class Shown:
    """A phrase, the number of its cut-out on the card if it has one, and its problem, if any."""

    phrase: Phrase
    cutout: int | None
    problem: str


@dataclass(frozen=True)
class View:
    """An image as rendered by the template.

    Attributes:
        width, height: of the small photograph, in pixels.
        unit: one CSS pixel of the displayed photograph, in those pixels.
        drawing: what page.js draws when the card scrolls near, as JSON: ``photo`` (data URI or
            null), ``cutouts`` (data URIs), ``unit``, ``shapes`` (outlines, which phrases of
            several captions may share) and ``captions``, for each the objects as ``number``,
            ``colour``, ``shape`` (its number or null) and ``box`` (x, y, width, height), larger
            ones first, so that smaller ones are on top.
        shown: for each caption its phrases.
    """

    card: ImageCard
    width: int
    height: int
    unit: float
    drawing: str
    shown: list[list[Shown]]
    problem: str


@dataclass(frozen=True)
class GallerySummary:
    """What a page holds."""

    images: int
    grounded: int
    phrases: int
    drops: int
    size: int

    def __str__(self) -> str:
        part = f" of {self.grounded:,}" if self.grounded > self.images else ""
        return (
            f"{self.images:,}{part} images, {self.phrases:,} phrases, {self.drops:,} dropped, "
            f"{self.size / 1e6:,.1f} MB"
        )


def write_gallery(
    contents: Contents,
    root: Path,
    out: Path,
    title: str,
    side: int = 384,
    advance: Callable[[int], None] = lambda count: None,
    inputs: Sequence[Path] = (),
) -> GallerySummary:
    """Write the page, one image at a time: memory does not grow with their number.

    Args:
        contents: what to show.
        root: base folder of the image paths.
        side: maximum longer side of a photograph on the page, in pixels.
        advance: receives the number of newly finished images.
        inputs: source files and folders of ``contents``.

    Raises:
        SightlineError: ``out`` is a folder, an input, or not a page written by this command.
    """
    inputs = [root, *inputs]
    check_output_file(out, MARK, inputs)

    def views() -> Iterator[View]:
        for card in contents.cards:
            yield _view(card, root, side)
            advance(1)

    environment = html_templates(_HERE)
    style, script = (_HERE / "page.css").read_text(), (_HERE / "page.js").read_text()
    stream = environment.get_template("page.html.j2").stream(
        title=title,
        contents=contents,
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
        size = part.stat().st_size
    return GallerySummary(
        len(contents.cards),
        contents.grounded,
        contents.phrases,
        sum(contents.reasons.values()),
        size,
    )


def _view(card: ImageCard, root: Path, side: int) -> View:
    try:
        pixels = load_picture(card.place.below(root), card.key)
        height, width = pixels.shape[:2]
        problem = ""
    except ImageError as error:
        # boxes and masks are still informative over an empty image
        pixels, problem = None, f"{card.place}: {error.reason}"
        height, width = card.height or 1, card.width or 1
    small = fitted(width, height, side)
    scale = small[0] / width, small[1] / height
    unit = round(max(small) / _SHOWN_SIDE, 4)
    drawn = _Drawn(pixels, (height, width), small)
    shown: list[list[Shown]] = []
    objects: list[list[dict[str, object]]] = []
    for caption in card.captions:
        shown.append([])
        sized = []
        for phrase in caption.phrases:
            shape, cutout, fault = drawn.add(phrase)
            shown[-1].append(
                Shown(phrase, cutout, "; ".join(filter(None, (phrase.problem, fault))))
            )
            x0, y0, x1, y1 = _scaled(phrase.box, scale, small)
            box = [x0, y0, round(x1 - x0, 2), round(y1 - y0, 2)]
            told = {"number": phrase.number, "colour": phrase.colour, "shape": shape, "box": box}
            sized.append((box[2] * box[3], told))
        sized.sort(key=lambda pair: -pair[0])
        objects.append([told for _, told in sized])
    drawing = {
        "photo": None if pixels is None else photograph(pixels, side),
        "cutouts": drawn.cutouts,
        "unit": unit,
        "shapes": drawn.shapes,
        "captions": objects,
    }
    # numbers, outlines and base64 hold no "<", which alone could end the script element
    text = json.dumps(drawing, separators=(",", ":"))
    return View(card, *small, unit, text, shown, problem)


class _Drawn:
    """Outlines and cut-outs of one image: each mask once, even if several phrases share it."""

    def __init__(self, pixels: Pixels | None, size: tuple[int, int], small: tuple[int, int]):
        self.shapes: list[str] = []
        self.cutouts: list[str] = []
        self._pixels = pixels
        self._size = size
        self._small = small
        self._known: dict[tuple[tuple[int, int], str], tuple[int | None, int | None, str]] = {}

    def add(self, phrase: Phrase) -> tuple[int | None, int | None, str]:
        """(number of the outline, number of the cut-out, what is wrong with the mask)."""
        key = phrase.size, phrase.counts
        if key not in self._known:
            self._known[key] = self._draw(phrase)
        return self._known[key]

    def _draw(self, phrase: Phrase) -> tuple[int | None, int | None, str]:
        if phrase.size != self._size:
            found, expected = (f"{width} × {height}" for height, width in (phrase.size, self._size))
            return None, None, f"mask of {found} pixels, image of {expected}"
        try:
            mask = decode_mask(phrase.size, phrase.counts)
        except SightlineError as error:
            return None, None, str(error)
        if not mask.any():
            return None, None, "the mask is empty"
        self.shapes.append(outline(shrink(mask, *self._small)))
        shape = len(self.shapes) - 1
        if self._pixels is None:
            return shape, None, ""
        self.cutouts.append(cut_out(self._pixels, mask, CUTOUT_SIDE))
        return shape, len(self.cutouts) - 1, ""


def _scaled(
    box: tuple[float, float, float, float], scale: tuple[float, float], small: tuple[int, int]
) -> list[float]:
    """A box in pixels of the small photograph, clipped to its edges, rounded for brevity."""
    edges = np.nan_to_num(np.array(box, dtype=np.float64)) * np.array(scale * 2)
    return np.clip(edges, 0, np.array(small * 2)).round(2).tolist()
