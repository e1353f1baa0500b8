"""A prepared data set: one folder with its manifests, and a record that says where its images are.

`sightline prepare` writes it, and every command takes it as ``--data FOLDER``, or its URL.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from sightline.cache.keys import Keys
from sightline.cache.manifest import (
    CAPTIONS,
    IMAGES,
    SENTENCES,
    count_rows,
    key_column,
    read_manifest,
)
from sightline.cache.remote_sets import copy, fetched, read_first, say_fetching
from sightline.errors import CacheError, SightlineError
from sightline.files.places import beside, is_url, path_below, required_location, shown, why_no_path
from sightline.files.storage import FileState, look_at_all
from sightline.user_files import read_json

RECORD = "dataset.json"
SCHEMA: Literal["sightline.dataset/1"] = "sightline.dataset/1"
LICENCE = "licence"
"""Field of the record: what is known about the licence of the data."""
HUB_DATASET = "hub_dataset"
"""Field of the record: the data set's name on the hub, or several names with commas."""
IMAGE_ROOT = "images"
"""Field of the record: base folder of the image paths, relative to the record's own, or its URL;
absent if it is the folder ``images`` beside the manifests."""
MANIFESTS = ("images.parquet", "captions.parquet", "sentences.parquet")
"""The files of every data set; a data set of sentences has no rows in the first two."""
LICENCE_UNKNOWN = "not known here; the terms of the data set that it was computed from apply"


class DatasetRecord(BaseModel):
    """What readers of a prepared data set need of ``dataset.json``; the fields above."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    written_as: Literal["sightline.dataset/1"] = Field(alias="schema")
    licence: str = LICENCE_UNKNOWN
    hub_dataset: str = ""
    images: str | None = None


def dataset_facts(folder: Path) -> DatasetRecord:
    """What is recorded of the data in ``folder``; the defaults for manifests from elsewhere."""
    try:
        return _read_record(folder)
    except SightlineError:
        return DatasetRecord(schema=SCHEMA)


def _read_record(folder: Path) -> DatasetRecord:
    path = folder / RECORD
    if not path.is_file():
        raise SightlineError(
            f"{folder}: no prepared data set here (no {RECORD}); `sightline prepare` makes one"
        )
    return read_json(path, TypeAdapter(DatasetRecord), "the record of a prepared data set")


def local_dataset(place: Path | str) -> Path:
    """The folder of a prepared data set: its own, or what was fetched of the one at a URL.

    Its manifests are looked at there each time, and fetched if they changed; its images stay there
    and are read in place.
    """
    place = required_location(place)
    if not is_url(place):
        if fault := why_no_path(place):
            raise SightlineError(fault)
        return Path(place)
    url = str(place)
    with fetched(url) as (folder, incoming):
        (incoming / RECORD).write_bytes(read_first(url, RECORD, "prepared data set"))
        images = beside(url, _read_record(incoming).images or "images")
        body = read_json(incoming / RECORD, TypeAdapter(dict[str, Any]), "a JSON object")
        states = _fetch_manifests(url, folder, incoming)
        (incoming / RECORD).write_text(json.dumps({**body, IMAGE_ROOT: images}))
        (incoming / RECORD).replace(folder / RECORD)
        (incoming / "states").write_text(json.dumps(states))
        return folder


def _fetch_manifests(url: str, folder: Path, incoming: Path) -> dict[str, str]:
    """Bring the manifests that changed at a URL; returns name → state there."""
    memory = incoming / "states"
    remembered: Any = None
    with suppress(OSError, ValueError, RecursionError):  # of a torn one nothing
        remembered = json.loads(memory.read_bytes())
    states: dict[str, Any] = remembered if isinstance(remembered, dict) else {}
    memory.unlink(missing_ok=True)
    places = [path_below(url, name) for name in MANIFESTS]
    manifests = dict[str, FileState]()
    for name, file in zip(MANIFESTS, files := look_at_all(places), strict=True):
        if file is None:
            raise CacheError(f"{shown(url)}: has no {name}; copy the whole data set there")
        manifests[name] = file
    changed = {
        name: file
        for name, file in manifests.items()
        if not file.state or states.get(name) != file.state or not (folder / name).is_file()
    }
    if changed:
        (folder / RECORD).unlink(missing_ok=True)  # no data set until all of them are there
        say_fetching(url, len(changed), sum(file.size for file in changed.values()), folder)
    for name, file in changed.items():
        (incoming / name).unlink(missing_ok=True)
        copy(path_below(url, name), incoming / name, file.size)
        (incoming / name).replace(folder / name)
    if changed and look_at_all(places) != files:
        raise CacheError(f"{shown(url)}: changed while it was fetched; try again")
    return {name: file.state for name, file in manifests.items()}


def hub_datasets(folders: Iterable[Path]) -> tuple[str, ...]:
    """Names on the hub that are recorded in the folders of data sets, each once."""
    names = [dataset_facts(folder).hub_dataset for folder in dict.fromkeys(folders)]
    return tuple(dict.fromkeys(name for entry in names if entry for name in entry.split(",")))


@dataclass(frozen=True)
class PreparedDataset:
    """The manifests of a data set.

    Attributes:
        folder: the folder of the manifests.
        image_root: base folder of the image paths, or its URL; None: not known.
    """

    folder: Path
    image_root: Path | str | None = None

    @classmethod
    def open(cls, folder: Path | str, images: Path | str | None = None) -> PreparedDataset:
        """The data set in ``folder``, or at a URL (`local_dataset`).

        Args:
            images: base folder of its images, or its URL; by default the one that its record
                names, or the folder ``images`` beside the manifests. Needed only to read pixels.

        Raises:
            SightlineError: no data set was prepared there, or there is no such image folder.
        """
        folder = local_dataset(folder)
        _read_record(folder)  # it is there, and sound
        root = cls(folder)._recorded_root() if images is None else images
        root = required_location(root)
        is_here = is_url(root) or Path(root).is_dir()
        if images is not None and not is_here:
            raise SightlineError(f"{images}: no such image folder; check the path")
        return cls(folder, root if is_here else None)

    @property
    def images_manifest(self) -> Path:
        """`images.parquet`."""
        return self.folder / "images.parquet"

    @property
    def captions_manifest(self) -> Path:
        """`captions.parquet`."""
        return self.folder / "captions.parquet"

    @property
    def sentences_manifest(self) -> Path:
        """`sentences.parquet`."""
        return self.folder / "sentences.parquet"

    @property
    def has_pairs(self) -> bool:
        """Whether it has images with captions; else it has sentences alone."""
        captions = self.captions_manifest
        return not captions.is_file() or count_rows(captions) > 0

    @property
    def images(self) -> pa.Table:
        """One row per image: ``image_id``, ``path``, ``key``, ``width``, ``height``, ``split``."""
        return read_manifest(self.images_manifest, IMAGES)

    @property
    def captions(self) -> pa.Table:
        """One row per caption: ``caption_id``, ``image_id``, ``text``, ``split``."""
        return read_manifest(self.captions_manifest, CAPTIONS)

    @property
    def sentences(self) -> pa.Table:
        """One row per sentence of the text stream: ``text``."""
        return read_manifest(self.sentences_manifest, SENTENCES)

    @property
    def texts(self) -> list[str]:
        """Every caption and sentence, each once."""
        columns = (self.captions["text"], self.sentences["text"])
        return list(dict.fromkeys(text for column in columns for text in column.to_pylist()))

    @property
    def image_keys(self) -> Keys:
        """SHA-256 of each image's bytes, in the order of `images`: uint8 [n, 32]."""
        return key_column(self.images["key"])

    def require_images(self) -> Path | str:
        """The image folder, or its URL."""
        if self.image_root is None or not (
            is_url(self.image_root) or Path(self.image_root).is_dir()
        ):
            if not self.has_pairs:
                raise SightlineError(
                    f"{self.folder}: has sentences and no images; give a data set of images"
                )
            raise SightlineError(
                f"{self.folder}: its images are not here: there is no folder "
                f"{self.image_root or self._recorded_root()}. Put them there, or prepare the data "
                "set again with the folder where they are; in Python: "
                "PreparedDataset.open(folder, images=…)"
            )
        return self.image_root

    def _recorded_root(self) -> Path | str:
        recorded = dataset_facts(self.folder).images or "images"
        if is_url(recorded):
            return recorded
        root = self.folder / recorded
        short = Path(os.path.normpath(root))
        return root.resolve() if root.is_dir() and root.resolve() != short.resolve() else short
