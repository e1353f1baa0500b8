"""Small pictures of some images of a manifest, for a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.cache import IMAGES, Place, places_of, read_manifest
from pipeline.extract.decode import ImageError, load_image
from pipeline.grounding.gallery.pictures import photograph


@dataclass(frozen=True)
class ManifestImages:
    """An images manifest, by id.

    Attributes:
        manifest: its file.
        rows: image id → place, SHA-256 of its bytes, split.
    """

    manifest: Path
    rows: dict[str, tuple[Place, bytes, str]]

    @classmethod
    def read(cls, manifest: Path) -> ManifestImages:
        """
        Raises:
            CacheError: no such manifest, or one that is malformed.
        """
        table = read_manifest(manifest, IMAGES)
        columns = (table[name].to_pylist() for name in ("image_id", "key", "split"))
        places = places_of(manifest, table)
        return cls(
            manifest,
            {
                image_id: (place, key, split)
                for place, image_id, key, split in zip(places, *columns, strict=True)
            },
        )

    def of_split(self, split: str | None) -> tuple[list[str], list[bytes]]:
        """Ids and keys of the images of one split, or of all."""
        rows = [(i, key) for i, (_, key, own) in self.rows.items() if split in (None, own)]
        return [i for i, _ in rows], [key for _, key in rows]

    def thumbnails(
        self, image_ids: Sequence[str], root: Path, side: int
    ) -> dict[str, tuple[str, str]]:
        """Image id → (data URI, "") or ("", what is wrong with it).

        Args:
            root: base folder of the manifest's paths.
            side: maximum longer side, in pixels.
        """
        found = {}
        for image_id in image_ids:
            if image_id not in self.rows:
                found[image_id] = "", f"{image_id}: not in {self.manifest.name}"
                continue
            place, key, _ = self.rows[image_id]
            try:
                pixels = load_image(place.below(root), key).permute(1, 2, 0).numpy()
                found[image_id] = photograph(pixels, side), ""
            except ImageError as error:
                found[image_id] = "", f"{place}: {error.reason}"
        return found
