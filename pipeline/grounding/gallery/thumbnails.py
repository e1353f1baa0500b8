"""Small pictures of some images of a manifest, for a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.cache import IMAGES, places_of, read_manifest
from sightline.thumbnail import Thumbnail


def thumbnails(
    manifest: Path, root: Path, image_ids: Sequence[str], side: int = 160
) -> dict[str, Thumbnail]:
    """Image id → its picture, or what is wrong with it.

    Args:
        manifest: an images manifest.
        root: base folder of its paths.
        side: maximum longer side, in pixels.

    Raises:
        CacheError: no such manifest, or one that is malformed.
    """
    # PyTorch, which a page without photographs does not need
    from pipeline.extract.decode import ImageError, load_image
    from pipeline.grounding.gallery.pictures import photograph

    table = read_manifest(manifest, IMAGES)
    row_of = {image: row for row, image in enumerate(table["image_id"].to_pylist())}
    places, keys = places_of(manifest, table), table["key"]
    found = {}
    for image in image_ids:
        if image not in row_of:
            found[image] = Thumbnail(problem=f"{image}: not in {manifest.name}")
            continue
        row = row_of[image]
        try:
            pixels = load_image(places[row].below(root), keys[row].as_py())
            found[image] = Thumbnail(photograph(pixels.permute(1, 2, 0).numpy(), side))
        except ImageError as error:
            found[image] = Thumbnail(problem=f"{places[row]}: {error.reason}")
    return found
