"""What is encoded: the images, objects or texts of a feature set, as commands name them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from sightline.cache import Place, key_column, keys_of_texts, places_of
from sightline.cache.groundings import read_phrases
from sightline.cache.keys import Keys, as_keys, unique_sorted
from sightline.cache.manifest import check_values, read_schema, read_table
from sightline.cache.prepared import RECORD, PreparedDataset
from sightline.cache.record import TEXT_KINDS, Kind
from sightline.errors import SightlineError
from sightline.user_files import read_lines
from sightline.wording import counted

if TYPE_CHECKING:
    from pipeline.extract.objects import StoredCutouts


class ImageEntry(NamedTuple):
    """Where one image is, and the SHA-256 of its bytes."""

    place: Place
    key: bytes


class CutoutEntry(NamedTuple):
    """One object: its image and its mask, or its stored picture.

    Attributes:
        place: where the image is, or the set that stores the picture.
        key: key of the cut-out, from `sightline.cache.cutout_identity.cutout_key` (32 bytes).
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
        stored: cut-outs that stand in for the images of their objects.
        paths: the files and folders that it is read from.
    """

    kind: Kind
    entries: Sequence[Any]
    stored: StoredCutouts | None = None
    paths: tuple[Path, ...] = ()

    @property
    def are_texts(self) -> bool:
        """Whether a text encoder reads them."""
        return self.kind in TEXT_KINDS

    @cached_property
    def keys(self) -> Keys:
        """The key of each entry: uint8 [n, 32]."""
        if self.are_texts:
            return keys_of_texts(self.entries)
        return as_keys([entry.key for entry in self.entries])


def inputs_of(
    kind: Kind,
    data: PreparedDataset | Path,
    *,
    phrases: Path | None = None,
    cutouts: Path | None = None,
) -> FeatureInputs:
    """Read what a feature set of this kind is made of.

    Args:
        data: a prepared data set or its folder; a folder of images; or, for texts, as `texts_in`.
        phrases: of objects: phrases manifest, or the records of a grounding.
        cutouts: of objects: folder of stored cut-outs, which stand in for the photographs.

    Raises:
        SightlineError: there is nothing of this kind, images are missing, or a manifest is missing
            or damaged.
    """
    if isinstance(data, Path) and (data / RECORD).is_file():
        data = PreparedDataset.open(data)
    prepared = data if isinstance(data, PreparedDataset) else None
    place = data.folder if isinstance(data, PreparedDataset) else data
    entries: Sequence[Any]
    stored = None
    if kind in TEXT_KINDS:
        entries = texts_in(prepared.captions_manifest if prepared else place)
    elif kind == "image":
        entries = image_entries_of(prepared) if prepared else images_below(place)
    elif phrases is None:
        raise SightlineError(
            "features of objects need `phrases` (--phrases): the records of a grounding"
        )
    elif prepared is None:
        raise SightlineError(f"{data}: no prepared data set, which features of objects need")
    else:
        from pipeline.extract.objects import StoredCutouts

        stored = None if cutouts is None else StoredCutouts(cutouts)
        entries = objects_of_phrases(phrases, prepared, stored)
    root = prepared.image_root if prepared else None
    paths = tuple(filter(None, (place, root, phrases, cutouts)))
    return FeatureInputs(kind, entries, stored, paths)


def images_below(folder: Path) -> list[ImageEntry]:
    """The images of a folder and its subfolders.

    Raises:
        SightlineError: no such folder, or no image in it.
    """
    from pipeline.datasets.images import scan_images
    from pipeline.datasets.source import PrepareReport

    if not folder.is_dir():
        raise SightlineError(f"{folder}: no such folder of images, nor a prepared data set")
    images = scan_images(folder, PrepareReport("images"))
    files = zip(images.paths, images.keys, strict=True)
    return [ImageEntry(Place(folder / path), key.tobytes()) for path, key in files]


def image_entries_of(data: PreparedDataset) -> list[ImageEntry]:
    """The images of a prepared data set.

    Raises:
        SightlineError: its images are not here, or its manifest has an invalid place.
    """
    root, table = data.require_images(), data.images
    places, keys = places_of(data.images_manifest, table), table["key"].to_pylist()
    return [ImageEntry(place.below(root), key) for place, key in zip(places, keys, strict=True)]


def objects_of_phrases(
    phrases: Path, data: PreparedDataset, stored: StoredCutouts | None = None
) -> list[CutoutEntry]:
    """The distinct objects of a phrases manifest, each with the place of its picture.

    Args:
        phrases: phrases manifest, or the records of a grounding.
        data: the data set of the same images, read only for objects that are not ``stored``.

    Raises:
        SightlineError: a manifest is missing or of the wrong kind, images are needed and not here,
            or a phrase belongs to an image that ``data`` does not have.
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
        places = {entry.key: entry.place for entry in image_entries_of(data)}
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
                f"data set does not have (such as {min(strange).hex()[:16]}); make phrases "
                "for these images, or give the data set that they belong to"
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
        fault = f"a folder without {RECORD}" if path.is_dir() else "no such file"
        raise SightlineError(
            f"{path}: {fault}; expected a prepared data set, or a file with one text per line"
        )
    if path.suffix == ".parquet":
        columns = [(field.name, str(field.type)) for field in read_schema(path)]
        kinds = [kind for name, kind in columns if name == "text"]
        if kinds not in (["string"], ["large_string"]):
            described = ", ".join(f"{name}: {kind}" for name, kind in columns)
            raise SightlineError(f"{path}: has columns {described}; expected one `text` of strings")
        table = read_table(path, ["text"])
        check_values(path, table)
        texts = table["text"].to_pylist()
    else:
        texts = [line.strip() for line in read_lines(path)]
    texts = [text for text in texts if text]
    if not texts:
        raise SightlineError(f"{path}: contains no text")
    return texts
