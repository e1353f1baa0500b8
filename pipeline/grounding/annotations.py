"""The grounder `annotations`: human-drawn or ground-truth boxes instead of a model's."""

from __future__ import annotations

from pathlib import Path

from pipeline.grounding.box_tables import BoxTable
from pipeline.grounding.drawn_boxes import DrawnBoxes
from pipeline.grounding.entities import Entities
from pipeline.grounding.protocols import Grounder
from pipeline.grounding.settings import BoxFormat
from sightline.arrow_files import schema_of
from sightline.cache import PHRASES, key_column, key_of_file, read_manifest
from sightline.cache.sets import pair_keys
from sightline.errors import SightlineError
from sightline.file_kinds import file_kind


def open_annotations(path: Path, box_format: BoxFormat | None = None) -> Grounder:
    """Annotations in ``path``: a table of boxes, a phrases manifest, or Flickr30k Entities' folder.

    Args:
        box_format: of a table's rows that do not say theirs.

    Raises:
        SightlineError: neither exists.
    """
    require_annotations(path)
    is_manifest = (
        path.is_file()
        and file_kind(path) in ("parquet", "arrow")
        and "cutout_key" in schema_of(path).names
    )
    if path.is_file() and not is_manifest:
        return BoxTable(path, box_format)
    if box_format is not None:
        raise SightlineError(
            f"{path}: its boxes are in pixels, as it is no table; leave out `grounder.box_format`"
        )
    return PhrasesFile(path) if is_manifest else Entities(path)


def require_annotations(path: Path) -> None:
    """Refuse a path without annotations, as `open_annotations` does."""
    if path.is_file() or all((path / name).is_dir() for name in ("Sentences", "Annotations")):
        return
    raise SightlineError(
        f"{path}: no annotations here; expected a phrases manifest (Parquet), a table of boxes, or "
        "a folder with Sentences/*.txt and Annotations/*.xml as in Flickr30k Entities"
    )


class PhrasesFile(DrawnBoxes):
    """Phrases, boxes and masks from a manifest, such as that of `scenes`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._sha256 = key_of_file(path).hex()
        table = read_manifest(path, PHRASES)
        pairs = pair_keys(key_column(table["image_key"]), key_column(table["caption_key"]))
        self.hold(pairs, table.drop_columns(["image_key", "caption_key", "cutout_key"]))

    def describe(self) -> dict[str, object]:
        return {"family": self.name, "format": "phrases", "sha256": self._sha256}
