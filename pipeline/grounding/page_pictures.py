"""Pictures in pages, as data URIs: small photographs, and cut-outs on a transparent ground."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sightline.cache import IMAGES, places_of, read_manifest
from sightline.errors import SightlineError
from sightline.files.places import here
from sightline.html_pages import Thumbnail
from sightline.optional_imports import require

if TYPE_CHECKING:
    from PIL import Image

Pixels: TypeAlias = NDArray[np.uint8]

_LOSSLESS_SIDE = 128


def fitted(width: int, height: int, side: int) -> tuple[int, int]:
    """Width and height scaled so that the longer is at most ``side``; never enlarged, never 0."""
    scale = min(1.0, side / max(width, height))
    return max(1, round(width * scale)), max(1, round(height * scale))


def photograph(pixels: Pixels, side: int) -> str:
    """A data URI with the image as JPEG, or as PNG if it is an icon that JPEG would blur.

    Args:
        pixels: uint8 [height, width, 3].
        side: maximum length of the longer side, in pixels.
    """
    from PIL import Image

    height, width = pixels.shape[:2]
    image = Image.fromarray(pixels).resize(fitted(width, height, side), Image.Resampling.LANCZOS)
    if max(width, height) <= _LOSSLESS_SIDE:
        return _data_uri(image, "png")
    return _data_uri(image, "jpeg", quality=75, optimize=True)


def cut_out(pixels: Pixels, mask: NDArray[np.bool_], side: int) -> str:
    """A data URI with the masked object as WebP, cropped, with a transparent background.

    For an icon, as defined in `photograph`, every pixel keeps its colour.

    Args:
        pixels: uint8 [height, width, 3].
        mask: bool [height, width], not empty.
        side: maximum length of the longer side, in pixels.
    """
    from PIL import Image

    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    box = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    alpha = mask[box].astype(np.uint8)[..., None] * 255
    image = Image.fromarray(np.concatenate([pixels[box], alpha], axis=2))
    size = fitted(image.width, image.height, side)
    # "RGBa" is premultiplied: the background's colour must not bleed into the edge
    image = image.convert("RGBa").resize(size, Image.Resampling.LANCZOS).convert("RGBA")
    if max(pixels.shape[:2]) <= _LOSSLESS_SIDE:
        return _data_uri(image, "webp", lossless=True, method=2)
    return _data_uri(image, "webp", quality=72, method=2)


def thumbnails(
    manifest: Path,
    root: Path | str,
    image_ids: Sequence[str],
    keys: Mapping[str, bytes] | None = None,
    side: int = 160,
) -> dict[str, Thumbnail]:
    """Image id → its picture, or what is wrong with it.

    Args:
        manifest: an images manifest.
        root: base folder of its paths, or its URL.
        keys: id → SHA-256 of the bytes that an image must have; None: as in the manifest.
        side: maximum longer side, in pixels.

    Raises:
        SightlineError: no such manifest or a malformed one, or Pillow is not installed.
    """
    require("PIL", "a page with photographs")
    from pipeline.extract.decode import ImageError, load_picture

    table = read_manifest(manifest, IMAGES)
    rows = zip(places_of(manifest, table), table["key"].to_pylist(), strict=True)
    sources = dict(zip(table["image_id"].to_pylist(), rows, strict=True))
    pictures = {}
    for image in image_ids:
        if image not in sources or (keys is not None and image not in keys):
            pictures[image] = Thumbnail(problem=f"{image}: not in {manifest.name}")
            continue
        place, key = sources[image]
        try:
            pixels = load_picture(place.below(root), key if keys is None else keys[image])
            pictures[image] = Thumbnail(photograph(pixels, side))
        except ImageError as error:
            pictures[image] = Thumbnail(problem=f"{place}: {error.reason}")
    return pictures


def photographs(
    manifest: Path, root: Path | str, image_ids: Sequence[str], keys: Mapping[str, bytes]
) -> dict[str, Thumbnail] | str:
    """`thumbnails` for a page that can do without them: why there are none, if so."""
    for path in here(manifest, root):
        if not path.exists():
            return f"{path}: not found from here"
    try:
        return thumbnails(manifest, root, image_ids, keys)
    except SightlineError as error:
        return str(error)


def _data_uri(image: Image.Image, kind: str, **options: object) -> str:
    data = io.BytesIO()
    image.save(data, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(data.getvalue()).decode('ascii')}"
