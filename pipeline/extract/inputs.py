"""What is encoded: the inputs of a feature set, as given to commands, and the way to its rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pipeline.extract.cutouts import CutoutEntry, CutoutRules
from pipeline.extract.encode_missing import (
    ImageEntry,
    extract_images,
    extract_objects,
    extract_texts,
)
from pipeline.extract.runner import RunSettings, SetSummary
from sightline.cache import (
    IMAGES,
    FeatureSet,
    Place,
    key_column,
    keys_of_texts,
    places_of,
    read_manifest,
)
from sightline.cache.groundings import read_phrases
from sightline.cache.keys import unique_sorted
from sightline.cache.manifest import check_values, read_schema, read_table
from sightline.cache.record import Kind, refuse_other_kinds, set_output
from sightline.devices import check_precision, pick_device
from sightline.errors import SightlineError
from sightline.outside import read_lines
from sightline.wording import counted

if TYPE_CHECKING:
    from pipeline.datasets.prepared import PreparedDataset
    from pipeline.encoders.config import EncoderConfig
    from pipeline.extract.objects import StoredCutouts


def extract_features(
    data: PreparedDataset | Path | str,
    encoder: EncoderConfig,
    out: Path | str,
    kind: Kind = "image",
    *,
    phrases: Path | None = None,
    cutouts: Path | None = None,
    rules: CutoutRules | None = None,
    device: str = "auto",
    settings: RunSettings = RunSettings(),  # noqa: B008  (frozen)
) -> FeatureSet:
    """Make ``out`` hold one row for every image, object or caption of ``data``, and open it.

    Rows that are there already are kept; after a kill, the same call resumes.

    Args:
        data: a prepared data set; or a folder of images; or for texts a file, one a line.
        kind: ``image``; ``object`` (cut-outs); ``text`` or ``teacher`` (captions).
        phrases: for objects: the records of a grounding, or a phrases manifest.
        cutouts: for objects: stored cut-outs, which stand in for the photographs.
        rules: how objects become inputs; None: the defaults.
        device: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`.
        settings: batch size, precision, storage type and so on; its device and inputs are set here.

    Raises:
        SightlineError: the encoder cannot be built, the images are missing, too many rows failed,
            or as `pipeline.extract.encode_missing.extract_images`.
    """
    from pipeline.datasets.prepared import PreparedDataset

    texts = kind in ("text", "teacher")
    if not isinstance(data, PreparedDataset):
        path = Path(data)
        if kind == "object":
            raise SightlineError(f"{path}: features of objects need a prepared data set")
        paths = [path]
        inputs = texts_of(encoder, path, kind) if texts else images_of(encoder, path, None)
    elif texts:
        paths = [data.folder]
        inputs = texts_of(encoder, data.captions_manifest, kind)
    elif kind == "image":
        paths = [data.folder, data.require_images()]
        inputs = images_of(encoder, data.images_manifest, data.image_root)
    elif phrases is None:
        raise SightlineError("features of objects need `phrases`: the records of a grounding")
    else:
        root = data.require_images() if cutouts is None else data.image_root
        paths = [data.folder, phrases, *filter(None, [root, cutouts])]
        rules = rules or CutoutRules()
        inputs = objects_of(encoder, phrases, data.images_manifest, root, rules, cutouts)
    how = replace(
        settings,
        precision=check_precision(settings.precision),
        device=device,
        inputs=(*settings.inputs, *paths),
    )
    inputs.encode(Path(out), how)
    return FeatureSet.open(out)


@dataclass(frozen=True)
class FeatureInputs:
    """An encoder and its inputs.

    Attributes:
        kind: kind of the feature set.
        config: configuration of the encoder.
        entries: images, objects or texts.
        rules: preprocessing of objects; None for other kinds.
        root: base folder of a manifest's image paths.
        stored: of objects: cut-outs that stand in for images.
    """

    kind: Kind
    config: EncoderConfig
    entries: Sequence[Any]
    rules: CutoutRules | None = None
    root: Path | None = None
    stored: StoredCutouts | None = None

    def by_key(self) -> dict[bytes, Any]:
        """Every entry by the key of its row."""
        if self.kind in ("image", "object"):
            return {entry.key: entry for entry in self.entries}
        keys = keys_of_texts(list(self.entries))
        return {key.tobytes(): text for key, text in zip(keys, self.entries, strict=True)}

    def encode(self, out: Path, settings: RunSettings) -> SetSummary:
        """Build the encoder on ``settings.device`` and compute what the feature set ``out`` lacks.

        Raises:
            SightlineError: the device is not available, the encoder cannot be built; or as
                `extract_images`.
        """
        refuse_other_kinds(out, self.kind)
        set_output(out, settings.inputs, str(settings.worker or "")).check_place()
        self.config.require_files()
        device = pick_device(settings.device or "cpu")
        settings = replace(settings, device=str(device))
        if self.kind in ("text", "teacher"):
            texts = self.config.build_text(device, settings.precision)
            return extract_texts(self.entries, texts, out, settings, self.kind)
        images = self.config.build_image(device, settings.precision)
        if self.rules is None:
            return extract_images(self.entries, images, out, settings)
        return extract_objects(self.entries, images, self.rules, out, settings, self.stored)


def images_of(config: EncoderConfig, images: Path, root: Path | None) -> FeatureInputs:
    """The images of a folder or manifest; as `image_entries_of`."""
    return FeatureInputs("image", config, image_entries_of(images, root), root=root)


def objects_of(
    config: EncoderConfig,
    phrases: Path,
    images: Path,
    root: Path | None,
    rules: CutoutRules,
    cutouts: Path | None = None,
) -> FeatureInputs:
    """The objects of a phrases manifest; as `objects_of_phrases`.

    Args:
        cutouts: folder of stored cut-outs.
    """
    from pipeline.extract.objects import StoredCutouts

    stored = None if cutouts is None else StoredCutouts(cutouts)
    entries = objects_of_phrases(phrases, images, root, stored)
    return FeatureInputs("object", config, entries, rules, root, stored)


def texts_of(config: EncoderConfig, texts: Path, kind: Kind) -> FeatureInputs:
    """The texts of a file; as `texts_in`."""
    return FeatureInputs(kind, config, texts_in(texts))


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
        keys = [key.tobytes() for key in found.keys]
        places = [Place(images / path) for path in found.paths]
        return [ImageEntry(place, key) for place, key in zip(places, keys, strict=True)]
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
