"""Small pictures of some images of a manifest, for a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sightline.cache import IMAGES, places_of, read_manifest
from sightline.errors import SightlineError
from sightline.extras import require
from sightline.html_pages import Thumbnail


def thumbnails(
    manifest: Path,
    root: Path,
    image_ids: Sequence[str],
    keys: Mapping[str, bytes] | None = None,
    side: int = 160,
) -> dict[str, Thumbnail]:
    """Image id → its picture, or what is wrong with it.

    Args:
        manifest: an images manifest.
        root: base folder of its paths.
        keys: id → SHA-256 of the bytes that an image must have; None: as in the manifest.
        side: maximum longer side, in pixels.

    Raises:
        SightlineError: no such manifest or a malformed one, or Pillow is not installed.
    """
    require("PIL", "a page with photographs")
    from pipeline.extract.decode import ImageError, load_picture
    from pipeline.grounding.gallery.pictures import photograph

    table = read_manifest(manifest, IMAGES)
    row_of = {image: row for row, image in enumerate(table["image_id"].to_pylist())}
    places = places_of(manifest, table)
    if keys is None:
        keys = {
            image: table["key"][row_of[image]].as_py() for image in image_ids if image in row_of
        }
    found = {}
    for image in image_ids:
        if image not in row_of or image not in keys:
            found[image] = Thumbnail(problem=f"{image}: not in {manifest.name}")
            continue
        place = places[row_of[image]]
        try:
            pixels = load_picture(place.below(root), keys[image])
            found[image] = Thumbnail(photograph(pixels, side))
        except ImageError as error:
            found[image] = Thumbnail(problem=f"{place}: {error.reason}")
    return found


def photographs(
    manifest: Path, root: Path, image_ids: Sequence[str], keys: Mapping[str, bytes]
) -> dict[str, Thumbnail] | str:
    """`thumbnails` for a page that can do without them: why there are none, if so."""
    for path in (manifest, root):
        if not path.exists():
            return f"{path}: not found from here"
    try:
        return thumbnails(manifest, root, image_ids, keys)
    except SightlineError as error:
        return str(error)
