"""What is encoded: the images, objects or texts of a feature set, as commands name them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import Field

from sightline.cache import (
    IMAGES,
    Place,
    key_column,
    keys_of_texts,
    places_of,
    read_manifest,
)
from sightline.cache.groundings import read_phrases
from sightline.cache.keys import Keys, as_keys, unique_sorted
from sightline.cache.manifest import check_values, read_schema, read_table
from sightline.cache.record import Kind
from sightline.errors import SightlineError
from sightline.outside import read_lines
from sightline.settings import Settings
from sightline.wording import counted

if TYPE_CHECKING:
    from pipeline.extract.objects import StoredCutouts


class CutoutRules(Settings):
    """Options for turning a cut-out into an input.

    Attributes:
        margin: on every side, as a fraction of the longer side.
        background: what transparent pixels are composited on: the encoder's ``mean`` colour
            (which normalises to 0), ``white`` or ``black``. ``keep`` leaves the image's own
            pixels in the box; only what lies outside the box is the mean colour.
    """

    margin: float = Field(default=0.1, ge=0, le=1)
    background: Literal["mean", "white", "black", "keep"] = "mean"


class ImageEntry(NamedTuple):
    """Where one image is, and the SHA-256 of its bytes."""

    place: Place
    key: bytes


class CutoutEntry(NamedTuple):
    """One object: its image and its mask, or its stored picture.

    Attributes:
        place: where the image is, or the set that stores the picture.
        key: key of the cut-out, from `sightline.cache.rle.cutout_key` (32 bytes).
        image_key: SHA-256 of the image's bytes (32 bytes).
        size: (height, width) of the mask in pixels.
        counts: COCO's compressed runs.
        png: the stored picture; None: cut it out of the image.
    """

    place: Place
    key: bytes
    image_key: bytes
    size: tuple[int, int]
    counts: str
    png: bytes | None = None


@dataclass(frozen=True)
class FeatureInputs:
    """What is encoded into one feature set; `inputs_of` reads it.

    Attributes:
        kind: kind of the feature set.
        entries: an `ImageEntry`, a `CutoutEntry` or a text each; those with one key count once.
        rules: how objects become inputs of an encoder.
        stored: cut-outs that stand in for the images of their objects.
        paths: the files and folders that it is read from.
    """

    kind: Kind
    entries: Sequence[Any]
    rules: CutoutRules = field(default_factory=CutoutRules)
    stored: StoredCutouts | None = None
    paths: tuple[Path, ...] = ()

    @property
    def are_texts(self) -> bool:
        """Whether a text encoder reads them."""
        return self.kind in ("text", "teacher")

    @cached_property
    def keys(self) -> Keys:
        """The key of each entry: uint8 [n, 32]."""
        if self.are_texts:
            return keys_of_texts(self.entries)
        return as_keys([entry.key for entry in self.entries])


def inputs_of(
    kind: Kind,
    path: Path,
    root: Path | None = None,
    *,
    phrases: Path | None = None,
    rules: CutoutRules | None = None,
    cutouts: Path | None = None,
) -> FeatureInputs:
    """Read what a feature set of this kind is made of.

    Args:
        path: of images: a folder or images manifest; of objects: the images manifest; of texts: as
            `texts_in`.
        root: base folder of a manifest's image paths.
        phrases: of objects: as `objects_of_phrases`.
        rules: of objects; None: the defaults.
        cutouts: of objects: folder of stored cut-outs.

    Raises:
        SightlineError: as the functions named here and `image_entries_of`.
    """
    stored = None
    if kind == "image":
        entries: Sequence[Any] = image_entries_of(path, root)
    elif kind != "object":
        entries = texts_in(path)
    elif phrases is None:
        raise SightlineError("features of objects need `phrases`: the records of a grounding")
    else:
        from pipeline.extract.objects import StoredCutouts

        stored = None if cutouts is None else StoredCutouts(cutouts)
        entries = objects_of_phrases(phrases, path, root, stored)
    paths = tuple(filter(None, (path, root, phrases, cutouts)))
    return FeatureInputs(kind, entries, rules or CutoutRules(), stored, paths)


def image_entries_of(images: Path, root: Path | None = None) -> list[ImageEntry]:
    """The images of a folder and its subfolders, or of a manifest.

    Args:
        images: a folder, or an images manifest (Parquet).
        root: base folder of a manifest's paths.

    Raises:
        SightlineError: nothing there, no image in the folder; or a manifest without a root, of the
            wrong kind or with a row that has an invalid place.
    """
    if images.is_dir():
        from pipeline.datasets.images import scan_images
        from pipeline.datasets.source import PrepareReport

        found = scan_images(images, PrepareReport("images"))
        files = zip(found.paths, found.keys, strict=True)
        return [ImageEntry(Place(images / path), key.tobytes()) for path, key in files]
    if not images.exists():
        raise SightlineError(f"{images}: no such folder or manifest")
    if root is None:
        raise SightlineError(
            f"{images}: the manifest's paths are relative to its image folder; pass it with --root"
        )
    table = read_manifest(images, IMAGES)
    if not root.is_dir():
        raise SightlineError(f"{root}: no such image folder; check the path")
    places, keys = places_of(images, table), table["key"].to_pylist()
    return [ImageEntry(place.below(root), key) for place, key in zip(places, keys, strict=True)]


def objects_of_phrases(
    phrases: Path, images: Path, root: Path | None, stored: StoredCutouts | None = None
) -> list[CutoutEntry]:
    """The distinct objects of a phrases manifest, each with the place of its picture.

    Args:
        phrases: phrases manifest, or the records of a grounding.
        images: images manifest of the same data set.
        root: base folder of the paths in ``images``; these two are read only for objects that are
            not ``stored``.

    Raises:
        SightlineError: a manifest is missing or of the wrong kind, ``root`` is not a folder, or a
            phrase belongs to an image that ``images`` does not have.
    """
    table = read_phrases(phrases)
    objects = key_column(table["cutout_key"])
    first = unique_sorted(objects)
    kept = np.zeros(len(first), dtype=bool) if stored is None else stored.holds(objects[first])
    entries = []
    if stored is not None:
        place = Place(stored.folder)
        entries = cutout_entries(phrases, table.take(first[kept]), defaultdict(lambda: place))
    if kept.all():
        return entries
    try:
        places = {entry.key: entry.place for entry in image_entries_of(images, root)}
    except SightlineError as error:
        if stored is None:
            raise
        raise SightlineError(
            f"{stored.folder}: lacks {(~kept).sum():,} of {len(kept):,} objects, which are cut "
            f"out of their images instead; but {error}"
        ) from None
    return entries + cutout_entries(phrases, table.take(first[~kept]), places)


def cutout_entries(
    phrases: Path, objects: pa.Table, places: Mapping[bytes, Place]
) -> list[CutoutEntry]:
    """The entries of some objects.

    Args:
        phrases: the file or folder that names them, for messages.
        objects: rows of `sightline.cache.PHRASES`.
        places: place of each image, by key.

    Raises:
        SightlineError: an image is not among ``places``.
    """
    columns = [objects[name].to_pylist() for name in ("cutout_key", "image_key", "mask")]
    entries: list[CutoutEntry] = []
    for key, image_key, mask in zip(*columns, strict=True):
        try:
            place = places[image_key]
        except KeyError:
            strange = set(columns[1]) - places.keys()
            raise SightlineError(
                f"{phrases}: its phrases belong to {counted(len(strange), 'image')} that the "
                f"images manifest does not have (such as {min(strange).hex()[:16]}); make phrases "
                "for these images, or pass the matching manifest"
            ) from None
        height, width = mask["size"]
        entries.append(CutoutEntry(place, key, image_key, (height, width), mask["counts"]))
    return entries


def texts_in(path: Path) -> list[str]:
    """The texts of a file: a Parquet table with a column ``text``, or one text per line (UTF-8).

    Raises:
        SightlineError: no such file, no column ``text``, a null in it, not UTF-8, or no text.
    """
    if not path.is_file() and path.suffix == ".parquet":
        raise SightlineError(f"{path}: no such manifest; `sightline prepare` writes it")
    if not path.is_file():
        raise SightlineError(f"{path}: no such file; expected texts, one per line, or a manifest")
    if path.suffix == ".parquet":
        columns = [(field.name, str(field.type)) for field in read_schema(path)]
        kinds = [kind for name, kind in columns if name == "text"]
        if kinds not in (["string"], ["large_string"]):
            there = ", ".join(f"{name}: {kind}" for name, kind in columns)
            raise SightlineError(f"{path}: has columns {there}; expected one `text` of strings")
        table = read_table(path, ["text"])
        check_values(path, table)
        texts = table["text"].to_pylist()
    else:
        texts = [line.strip() for line in read_lines(path)]
    texts = [text for text in texts if text]
    if not texts:
        raise SightlineError(f"{path}: contains no text")
    return texts
