"""Inputs of an extraction: folders, text files and manifests, as given to commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.extract.encode_missing import ImageEntry
from sightline.cache import IMAGES, Place, key_column, places_of, read_manifest
from sightline.cache.keys import unique_sorted
from sightline.cache.manifest import check_values
from sightline.cache.parquet import read_schema, read_table
from sightline.cache.tables import read_phrases
from sightline.errors import SightlineError
from sightline.outside import read_lines

if TYPE_CHECKING:
    from pipeline.extract.objects import CutoutEntry


def image_entries_of(images: Path, root: Path | None = None) -> list[ImageEntry]:
    """The images of a folder and its subfolders, or of a manifest.

    Args:
        images: a folder, or an images manifest (Parquet).
        root: base folder of a manifest's paths.

    Raises:
        SightlineError: nothing there, no image in the folder, or a manifest without a root.
    """
    if images.is_dir():
        from pipeline.datasets.images import scan_images
        from pipeline.datasets.source import PrepareReport

        found = scan_images(images, PrepareReport("images"))
        keys = [key.tobytes() for key in found.keys]
        places = [Place(images / path) for path in found.paths]
        return [ImageEntry(place, key) for place, key in zip(places, keys, strict=True)]
    if not images.exists():
        raise SightlineError(f"{images}: no such folder or manifest")
    if root is None:
        raise SightlineError(
            f"{images}: the manifest's paths are relative to its image folder; pass it with --root"
        )
    return entries_of_manifest(images, root)


def entries_of_manifest(manifest: Path, root: Path) -> list[ImageEntry]:
    """The images of a manifest, with their places below ``root``.

    Raises:
        SightlineError: the manifest is missing, of the wrong kind or has a row with an invalid
            place, or ``root`` is not a folder.
    """
    table = read_manifest(manifest, IMAGES)
    if not root.is_dir():
        raise SightlineError(f"{root}: no such image folder; check the path")
    places, keys = places_of(manifest, table), table["key"].to_pylist()
    return [ImageEntry(place.below(root), key) for place, key in zip(places, keys, strict=True)]


def objects_of_phrases(phrases: Path, images: Path, root: Path) -> list[CutoutEntry]:
    """The distinct objects of a phrases manifest, each with the place of its image.

    Args:
        phrases: phrases manifest, or the records of a grounding.
        images: images manifest of the same data set.
        root: base folder of the paths in ``images``.

    Raises:
        SightlineError: a manifest is missing or of the wrong kind, ``root`` is not a folder, or a
            phrase belongs to an image that ``images`` does not have.
    """
    from pipeline.extract.objects import CutoutEntry

    places = {entry.key: entry.place for entry in entries_of_manifest(images, root)}
    table = read_phrases(phrases)
    table = table.take(unique_sorted(key_column(table["cutout_key"])))
    keys, image_keys = table["cutout_key"].to_pylist(), table["image_key"].to_pylist()
    strange = {key for key in image_keys if key not in places}
    if strange:
        raise SightlineError(
            f"{phrases}: its phrases belong to {len(strange):,} images that {images} does not "
            f"have (such as {min(strange).hex()[:16]}); make phrases for these images, or pass the "
            "matching manifest"
        )
    entries: list[CutoutEntry] = []
    for key, image_key, mask in zip(keys, image_keys, table["mask"].to_pylist(), strict=True):
        height, width = mask["size"]
        entries.append(
            CutoutEntry(places[image_key], key, image_key, (height, width), mask["counts"])
        )
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
        found = {field.name: str(field.type) for field in read_schema(path)}
        if found.get("text") not in ("string", "large_string"):
            columns = ", ".join(f"{name}: {kind}" for name, kind in found.items())
            raise SightlineError(f"{path}: has columns {columns}; expected a string column `text`")
        table = read_table(path, ["text"])
        check_values(path, table)
        texts = table["text"].to_pylist()
    else:
        texts = [line.strip() for line in read_lines(path)]
    texts = [text for text in texts if text]
    if not texts:
        raise SightlineError(f"{path}: contains no text")
    return texts
