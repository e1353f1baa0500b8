"""Images that stay packed in larger files, with their captions, and the manifests about them."""

# pyarrow.compute makes its functions when it is imported:
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import io
import statistics
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.datasets.captioned import write_captioned
from pipeline.datasets.images import upright_size
from pipeline.datasets.source import DatasetError, PrepareReport
from sightline.cache.keys import key_of_bytes
from sightline.cache.manifest import CAPTIONS, IMAGES, Place
from sightline.outside import CONTROL

_LISTED_SHARDS = 6  # on the terminal; dataset.json has all
_INVISIBLE = ("C", "Z")


@dataclass
class Packed:
    """The images and captions found in one file, in its order.

    Attributes:
        name: of the file.
        problems: type of problem → the names that it concerns.
    """

    name: str
    problems: dict[str, list[str]] = field(default_factory=dict)
    images: dict[str, list] = field(default_factory=lambda: {name: [] for name in IMAGES.names})
    captions: dict[str, list] = field(default_factory=lambda: {n: [] for n in CAPTIONS.names})

    def add_image(
        self, image_id: str, place: Place, data: bytes, split: str, key: bytes | None = None
    ) -> None:
        """Add an image; call it within `pipeline.datasets.images.any_pixel_count`.

        Args:
            place: relative to the data set's image root.
            data: its bytes.
            split: train, dev, test or empty.
            key: of ``data``, if it is known.
        """
        width, height = upright_size(io.BytesIO(data))
        if not width:
            self.problem("unreadable_images", image_id)
        path = place.path.as_posix()
        key = key or key_of_bytes(data)
        row = (image_id, path, place.offset, place.length, key, width, height, split)
        for values, value in zip(self.images.values(), row, strict=True):
            values.append(value)

    def add_caption(self, image_id: str, number: int, text: str, split: str) -> None:
        """Add caption ``number`` of an image, unless nobody could see it."""
        caption_id = f"{image_id}#{number}"
        readable = text.strip()
        if not (readable and readable.isprintable()):
            readable, removed = CONTROL.subn("", readable)
            readable = readable.strip()
            if removed:
                self.problem("captions_without_their_control_characters", caption_id)
            if all(unicodedata.category(each)[0] in _INVISIBLE for each in readable):
                self.problem("empty_captions", caption_id)
                return
        row = (caption_id, image_id, readable, split)
        for values, value in zip(self.captions.values(), row, strict=True):
            values.append(value)

    def problem(self, kind: str, name: str) -> None:
        """Note that ``name`` has a problem."""
        self.problems.setdefault(kind, []).append(name)

    @property
    def tables(self) -> tuple[pa.Table, pa.Table]:
        """Its rows of the schemas IMAGES and CAPTIONS."""
        return pa.table(self.images, schema=IMAGES), pa.table(self.captions, schema=CAPTIONS)


class Manifests:
    """Collects what the files of a data set give, in order, and writes its manifests."""

    def __init__(self) -> None:
        self._images: list[pa.Table] = []
        self._captions: list[pa.Table] = []
        self._problems: dict[str, list[str]] = {}
        self._shards: dict[str, dict[str, int]] = {}
        self.count = 0

    def add(self, packed: Packed, most: int | None = None) -> None:
        """Add one file, at most ``most`` images of it."""
        images, captions = packed.tables
        if most is not None and most < len(images):
            images = images.slice(0, most)
            captions = captions.filter(pc.is_in(captions["image_id"], images["image_id"]))
        self._images.append(images)
        self._captions.append(captions)
        self._shards[packed.name] = {"images": len(images), "captions": len(captions)}
        self.count += len(images)
        for kind, names in packed.problems.items():
            self._problems.setdefault(kind, []).extend(names)

    def problem(self, kind: str, name: str) -> None:
        """Note that ``name`` has a problem."""
        self._problems.setdefault(kind, []).append(name)

    def write(self, folder: Path, report: PrepareReport, where: str, *, strict: bool) -> None:
        """Write the manifests (`write_captioned`) into ``folder`` and fill ``report``.

        Args:
            where: the data set, for messages.

        Raises:
            DatasetError: no image has a caption, or ``strict`` is set and there are problems.
        """
        images, captions = pa.concat_tables(self._images), pa.concat_tables(self._captions)
        report.counts |= {
            "shards": len(self._shards),
            "images": len(images),
            "captions": len(captions),
        }
        for split in ("train", "dev", "test", ""):
            count = pc.sum(pc.equal(images["split"], split)).as_py() or 0
            report.counts[f"images_{split or 'without_split'}"] = count
        bare = pc.invert(pc.is_in(images["image_id"], pc.unique(captions["image_id"])))
        for kind, names in sorted(self._problems.items()):
            report.note(kind, names)
        report.note("images_without_caption", images.filter(bare)["image_id"].to_pylist())
        report.shards = self._shards
        report.notes += [*_sizes(self._shards), *_incomplete(report)]
        if not len(captions):
            raise DatasetError(_nothing(where, len(images), report))
        if strict:
            report.refuse_problems()
        write_captioned(folder, images.combine_chunks(), captions.combine_chunks())


def _nothing(where: str, images: int, report: PrepareReport) -> str:
    found = "; ".join(
        f"{kind.replace('_', ' ')}: {report.problem_counts[kind]} (such as {names[0]})"
        for kind, names in report.problems.items()
        if kind != "images_without_caption"
    )
    return (
        f"{where}: found {images} images and no usable caption"
        f"{f' ({found})' if found else ''}; check where the images and captions are"
    )


def _sizes(shards: dict[str, dict[str, int]]) -> Iterable[str]:
    """How many files there are and what each holds, so that a missing one is noticed."""
    names = list(shards)
    if len(names) <= _LISTED_SHARDS:
        for name, counts in shards.items():
            yield f"{name}: {counts['images']:,} images, {counts['captions']:,} captions"
        return
    sizes: Sequence[int] = [counts["images"] for counts in shards.values()]
    yield (
        f"{len(names):,} files, {names[0]} to {names[-1]}: {min(sizes):,} to {max(sizes):,} images "
        f"each, median {statistics.median(sizes):,.0f}"
    )


def _incomplete(report: PrepareReport) -> Iterable[str]:
    for kind in ("incomplete_shards", "missing_files"):
        for name in report.problems.get(kind, [])[:_LISTED_SHARDS]:
            yield f"warning: {name}"
