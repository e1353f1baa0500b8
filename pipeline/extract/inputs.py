"""What is encoded: the images, objects or texts of a feature set, as commands name them."""

# pyarrow.compute makes its functions when it is imported:
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sightline.cache import SENTENCES, Place, key_column, keys_of_texts, places_of
from sightline.cache.feature_kind import feature_kind
from sightline.cache.groundings import read_phrases
from sightline.cache.keys import Keys, find_keys, unique_sorted
from sightline.cache.manifest import check_values, read_schema, read_table
from sightline.cache.prepared import RECORD, PreparedDataset
from sightline.errors import SightlineError
from sightline.files.file_kinds import file_kind
from sightline.files.places import base_of, here, path_below, shown
from sightline.files.storage import look
from sightline.plugins import expect, expect_array
from sightline.tables.arrow_arrays import number_array
from sightline.tables.outside_tables import read_sentence_lines
from sightline.wording import counted

if TYPE_CHECKING:
    from pipeline.extract.objects import StoredCutouts


_CHECKED = 1 << 16  # rows at once


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


class Entries(Sequence[Any]):
    """What a feature set is made of, built when it is asked for: a batch at a time.

    A table of millions of images takes 60 to 100 bytes each, their entries as objects 700.

    Args:
        keys: the key of each: uint8 [n, 32].
        build: makes the entries at some positions, in their order.
        groups: equal for those that are read one after the other, such as the key of the image that
            objects are cut out of: uint8 [n, 32].
    """

    def __init__(
        self,
        keys: Keys,
        build: Callable[[NDArray[np.int64]], list[Any]],
        groups: Keys | None = None,
    ) -> None:
        self.keys, self.groups, self._build = keys, groups, build

    @classmethod
    def of(cls, keys: Keys, entries: Sequence[Any], groups: Keys | None = None) -> Entries:
        """Entries that are there already."""
        return cls(keys, lambda rows: [entries[row] for row in rows], groups)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, item: Any) -> Any:
        rows = np.arange(len(self))[item]
        return self._build(rows) if isinstance(item, slice) else self._build(rows[None])[0]

    def take(self, rows: NDArray[np.int64]) -> list[Any]:
        """The entries at these positions."""
        return self._build(rows)


@dataclass(frozen=True)
class FeatureInputs:
    """What is encoded into one feature set; `inputs_of` reads it.

    Attributes:
        kind: kind of the feature set.
        entries: an `ImageEntry`, a `CutoutEntry`, a text, or what another kind has; those with one
            key count once.
        paths: the files and folders that it is read from.
    """

    kind: str
    entries: Entries
    paths: tuple[Path, ...] = ()

    def only(self, rows: NDArray[np.int64]) -> FeatureInputs:
        """The same of the entries at these positions."""
        entries = self.entries
        groups = None if entries.groups is None else entries.groups[rows]
        return replace(self, entries=Entries.of(entries.keys[rows], entries.take(rows), groups))


def inputs_of(
    kind: str, data: PreparedDataset | Path | str, **options: Path | None
) -> FeatureInputs:
    """Read what a feature set of this kind is made of.

    Args:
        data: a prepared data set, its folder or URL; a folder of images or its URL; or, for
            texts, as `text_array`.
        options: for kinds that take them. Of objects, ``phrases``: phrases manifest, or the records
            of a grounding; ``cutouts``: folder of stored cut-outs, which stand in for the
            photographs.

    Raises:
        SightlineError: there is nothing of this kind, images are missing, or a manifest is missing
            or damaged.
    """
    if not isinstance(data, PreparedDataset) and _is_prepared(data):
        data = PreparedDataset.open(data)
    chosen = feature_kind(kind)
    if isinstance(data, str) and chosen.row_of != "image":
        raise SightlineError(
            f"{shown(data)}: features of kind {kind} are made of files on this machine; fetch "
            "them, and give their folder"
        )
    read = chosen.function(chosen.read)
    parameters = signature(read).parameters
    if unused := [name for name in options if options[name] and name not in parameters]:
        raise SightlineError(
            f"features of kind {kind} take no {' and no '.join(unused)}; leave that out"
        )
    chosen_options = {name: options[name] for name in options if name in parameters}
    inputs = read(kind, data, **chosen_options)
    entries = expect(inputs, FeatureInputs, read, "it").entries
    for name, keys in (("keys", entries.keys), ("groups", entries.groups)):
        if name == "keys" or keys is not None:
            expect_array(keys, "uint8", (len(entries), 32), read, f"entries, {name}")
    return inputs


def _is_prepared(data: Path | str) -> bool:
    return data == base_of(data) and look(path_below(data, RECORD)) is not None


def read_texts(kind: str, data: PreparedDataset | Path) -> FeatureInputs:
    """Captions of a data set, or the texts of a file."""
    path = data.captions_manifest if isinstance(data, PreparedDataset) else data
    texts = pa.table({"text": text_array(path)})
    keys = keys_of_texts(text.as_py() for text in texts["text"])
    entries = Entries(keys, lambda rows: texts.take(number_array(rows))["text"].to_pylist())
    return FeatureInputs(kind, entries, paths=_paths(data))


def read_images(kind: str, data: PreparedDataset | Path | str) -> FeatureInputs:
    """Images of a data set, or of a folder and its subfolders."""
    prepared = isinstance(data, PreparedDataset)
    entries = image_entries_of(data) if prepared else images_below(data)
    return FeatureInputs(kind, entries, paths=_paths(data))


def read_objects(
    kind: str,
    data: PreparedDataset | Path,
    phrases: Path | None = None,
    cutouts: Path | None = None,
) -> FeatureInputs:
    """The objects that the phrases of a data set name."""
    if phrases is None:
        raise SightlineError(
            "features of objects need `phrases` (--phrases): the records of a grounding"
        )
    if not isinstance(data, PreparedDataset):
        raise SightlineError(f"{data}: no prepared data set, which features of objects need")
    from pipeline.extract.objects import StoredCutouts

    stored = None if cutouts is None else StoredCutouts(cutouts)
    entries = objects_of_phrases(phrases, data, stored)
    paths = (*_paths(data), phrases, *([cutouts] if cutouts else []))
    return FeatureInputs(kind, entries, paths)


def _paths(data: PreparedDataset | Path | str) -> tuple[Path, ...]:
    if isinstance(data, PreparedDataset):
        return tuple(here(data.folder, data.image_root))
    return tuple(here(data))


def images_below(folder: Path | str) -> Entries:
    """The images of a folder and its subfolders, or of the URL of one.

    Raises:
        SightlineError: no such folder, or no image in it.
    """
    from pipeline.datasets.images import scan_images
    from pipeline.datasets.source import PrepareReport

    if isinstance(folder, Path) and not folder.exists():
        raise SightlineError(f"{folder}: no such folder of images, nor a prepared data set")
    images = scan_images(folder, PrepareReport("images"))
    paths, keys, base = images["path"].to_pylist(), key_column(images["key"]), base_of(folder)

    def build(rows: NDArray[np.int64]) -> list[ImageEntry]:
        places = [Place(path_below(base, paths[row])) for row in rows]
        return [
            ImageEntry(place, keys[row].tobytes()) for place, row in zip(places, rows, strict=True)
        ]

    return Entries(keys, build)


def image_entries_of(data: PreparedDataset) -> Entries:
    """The images of a prepared data set.

    Raises:
        SightlineError: its images are not here, or its manifest has an invalid place.
    """
    root, manifest = data.require_images(), data.images_manifest
    table = data.images
    keys, table = key_column(table["key"]), table.select(["image_id", *Place._fields])
    for start in range(0, table.num_rows, _CHECKED):
        places_of(manifest, table.slice(start, _CHECKED))

    def build(rows: NDArray[np.int64]) -> list[ImageEntry]:
        places = zip(places_of(manifest, table.take(number_array(rows))), keys[rows], strict=True)
        return [ImageEntry(place.below(root), key.tobytes()) for place, key in places]

    return Entries(keys, build)


def objects_of_phrases(
    phrases: Path, data: PreparedDataset, stored: StoredCutouts | None = None
) -> Entries:
    """The distinct objects of a phrases manifest, each with its picture, or the place of its image.

    Args:
        phrases: phrases manifest, or the records of a grounding.
        data: the data set of the same images, read only for objects that are not ``stored``.

    Raises:
        SightlineError: a manifest is missing or of the wrong kind, images are needed and not here,
            or a phrase belongs to an image that ``data`` does not have.
    """
    table = read_phrases(phrases).select(["cutout_key", "image_key", "mask"])
    first = unique_sorted(key_column(table["cutout_key"]))
    table = table.take(number_array(first))
    keys, owners = key_column(table["cutout_key"]), key_column(table["image_key"])
    kept = np.zeros(len(keys), dtype=bool) if stored is None else stored.holds(keys)
    images, image_rows = Entries(keys[:0], lambda rows: []), np.full(len(keys), -1)
    if not kept.all():
        images, image_rows = _images_of(phrases, data, owners, kept, stored)

    def build(rows: NDArray[np.int64]) -> list[CutoutEntry]:
        from_images = iter(images.take(image_rows[rows[~kept[rows]]]))
        kept_at = Place("" if stored is None else str(stored.folder))
        places = [kept_at if kept[row] else next(from_images).place for row in rows]
        entries = cutout_entries(table.take(number_array(rows)), places)
        return entries if stored is None else stored.filled(entries)

    # what is stored is read shard by shard
    return Entries(keys, build, np.where(kept[:, None], keys, owners))


def _images_of(
    phrases: Path,
    data: PreparedDataset,
    owners: Keys,
    kept: NDArray[np.bool_],
    stored: StoredCutouts | None,
) -> tuple[Entries, NDArray[np.int64]]:
    """The images of a data set, and which of them each object is cut out of: int64 [n]."""
    try:
        images = image_entries_of(data)
    except SightlineError as error:
        if stored is None:
            raise
        raise SightlineError(
            f"{stored.folder}: lacks {(~kept).sum():,} of {len(kept):,} objects, which are cut "
            f"out of their images instead; but {error}"
        ) from None
    order = unique_sorted(images.keys)
    places = find_keys(images.keys[order], owners)
    places[places >= 0] = order[places[places >= 0]]
    require_images(phrases, owners[(places < 0) & ~kept])
    return images, places


def require_images(phrases: Path, strange: Keys) -> None:
    """Refuse phrases of images that their data set does not have.

    Args:
        strange: the keys of these images.
    """
    if len(strange):
        names = sorted({key.tobytes() for key in strange})
        raise SightlineError(
            f"{phrases}: its phrases belong to {counted(len(names), 'image')} that the "
            f"data set does not have (such as {names[0].hex()[:16]}); make phrases "
            "for these images, or give the data set that they belong to"
        )


def cutout_entries(objects: pa.Table, places: Sequence[Place]) -> list[CutoutEntry]:
    """The entries of some objects.

    Args:
        objects: rows of `sightline.cache.PHRASES`.
        places: of their images, or of the set that stores them.
    """
    columns = [objects[name].to_pylist() for name in ("cutout_key", "image_key", "mask")]
    return [
        CutoutEntry(place, key, image_key, tuple(mask["size"]), mask["counts"])
        for place, key, image_key, mask in zip(places, *columns, strict=True)
    ]


def _has_texts(path: Path) -> bool:
    """Whether a file is Parquet with one column ``text`` of strings, as our manifests are."""
    if path.suffix != ".parquet" and file_kind(path) != "parquet":
        return False
    kinds = [field.type for field in read_schema(path) if field.name == "text"]
    return kinds in ([pa.string()], [pa.large_string()])


def text_array(path: Path) -> pa.ChunkedArray:
    """The texts that are not empty: column ``text`` of a Parquet table, or a file's lines (UTF-8).

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
    if _has_texts(path):
        table = read_table(path, SENTENCES)
        check_values(path, table)
    else:
        lines = read_sentence_lines(path, "one text per line")
        table = pa.table({"text": pa.array(lines, pa.large_string())})
    column = table["text"]
    del table
    filled = pc.not_equal(column, "")
    texts = column if pc.all(filled).as_py() else column.filter(filled)
    if not len(texts):
        raise SightlineError(f"{path}: contains no text")
    del column
    pa.default_memory_pool().release_unused()  # what reading the table took
    return texts
