"""The grounder `annotations`: human-drawn or ground-truth boxes instead of a model's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pipeline.grounding.drawn_boxes import BoxFormat, PhraseBoxes
from pipeline.grounding.settings import DESCRIBED, GrounderSettings
from sightline.cache import PHRASES, key_column, read_manifest
from sightline.cache.phrase_tokens import pair_keys
from sightline.errors import SightlineError
from sightline.files.file_kinds import file_kind
from sightline.identity import Outside
from sightline.tables.arrow_files import schema_of

if TYPE_CHECKING:
    import torch


class AnnotationSettings(GrounderSettings):
    """Human-drawn boxes.

    Attributes:
        path: a table of boxes, or a phrases manifest.
        box_format: of a table without that column; null is xyxy.
        strict: refuse a table with a damaged row; else such rows are left out, counted and named.
    """

    needs_device = False
    family: Literal["annotations"]
    path: Annotated[Path, DESCRIBED]
    box_format: Annotated[BoxFormat | None, DESCRIBED] = None
    strict: Annotated[bool, Outside("ends a run")] = False

    def require_files(self) -> None:
        require_annotations(self.path)

    def build(self, device: torch.device, precision: str) -> PhraseBoxes:
        return open_annotations(self.path, self.box_format, self.strict)


def open_annotations(
    path: Path, box_format: BoxFormat | None = None, strict: bool = False
) -> PhraseBoxes:
    """Annotations in ``path``: a table of boxes, or a phrases manifest.

    Args:
        box_format: of a table's rows that do not say theirs.
        strict: refuse a table with a damaged row.

    Raises:
        SightlineError: no such file.
    """
    require_annotations(path)
    if file_kind(path) in ("parquet", "arrow") and "cutout_key" in schema_of(path).names:
        if box_format is not None:
            raise SightlineError(
                f"{path}: its boxes are in pixels, as it is not a table; leave out "
                "`grounder.box_format`"
            )
        boxes, table = PhraseBoxes(path, "phrases"), read_manifest(path, PHRASES)
        pairs = pair_keys(key_column(table["image_key"]), key_column(table["caption_key"]))
        boxes.hold(pairs, table.drop_columns(["image_key", "caption_key", "cutout_key"]))
        return boxes
    from pipeline.grounding.box_tables import BoxTable  # not for every command that has settings

    return BoxTable(path, box_format, strict)


def require_annotations(path: Path) -> None:
    """Refuse a path without annotations, as `open_annotations` does."""
    if not path.is_file():
        raise SightlineError(
            f"{path}: no annotations here; expected a phrases manifest (Parquet) or a table of "
            "boxes, as docs/grounding.md shows how to make one of other annotations"
        )
