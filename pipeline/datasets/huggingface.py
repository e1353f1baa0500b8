"""Hugging Face data sets: Parquet or Arrow with a column of images and one of captions."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path

from pydantic import Field, model_validator

from pipeline.datasets.arrow_rows import Columns, ImageRow, read_rows
from pipeline.datasets.folder import MANIFESTS
from pipeline.datasets.hub_files import cached, fetch, files_by_split, missing_numbers
from pipeline.datasets.image_tars import ImageTars
from pipeline.datasets.images import any_pixel_count
from pipeline.datasets.packed import Manifests, Packed
from pipeline.datasets.source import (
    RECORD,
    DatasetError,
    PrepareReport,
    Progress,
    Source,
    split_name,
)
from sightline.cache.keys import key_of_bytes
from sightline.cache.manifest import Place
from sightline.hub_datasets import HUB_DATASET

WRITES = (*MANIFESTS, "images/00000.tar")

_FACT = "images"
_IN_PLACE, _WRITTEN = "in place", "written"
_COMMIT = "commit"


class HuggingFaceSource(Source):
    """A data set on disk or on the hub.

    Attributes:
        path: folder of `save_to_disk`, folder of Parquet or Arrow files, or one such file; in
            `params.yaml` by default `source` itself.
        name: instead of ``path``: a data set on the hub, which is fetched unless it is cached.
        revision: branch, tag or commit of the named data set.
        config: one of several configurations of a data set.
        image: column of images: bytes, paths, or `datasets.Image`.
        caption: column of captions, or of lists of captions.
        splits: for each of train, dev and test, the data set's own split; others are left out.
        split_column: column with the split of each row, instead of the data set's splits.
        images: folder that a column of paths starts from; default: that of the data set.
        strict: treat problems such as images without caption as errors.
    """

    path: Path = Path()
    name: str | None = Field(default=None, min_length=1)
    revision: str | None = Field(default=None, min_length=1)
    config: str | None = Field(default=None, min_length=1)
    image: str = "image"
    caption: str = "caption"
    splits: dict[str, str] | None = None
    split_column: str | None = None
    images: Path | None = None
    strict: bool = False

    @model_validator(mode="after")
    def _one_place(self) -> HuggingFaceSource:
        if self.name is not None and "path" in self.model_fields_set:
            raise ValueError("give `path` (on disk) or `name` (on the hub), but not both")
        if self.name is None and self.revision is not None:
            raise ValueError("`revision` belongs to a data set on the hub: give its `name`")
        if self.splits and self.split_column:
            raise ValueError("give `splits` or `split_column`, but not both")
        return self

    def inputs(self) -> list[Path]:
        """The input files and folders; a data set on the hub has none here."""
        given = [self.path] if self.name is None else []
        return given if self.images is None else [*given, self.images]

    def image_root(self, prepared: Path) -> Path:
        """Where the images are read: the data set itself, or the tars that `prepare` wrote."""
        record = prepared / RECORD
        facts = json.loads(record.read_bytes()) if record.is_file() else {}
        if facts.get(_FACT) == _WRITTEN:
            return prepared / "images"
        if self.images is None and self.name is not None and _COMMIT in facts:
            return cached(self.name, facts[_COMMIT])
        return _root(self, self.path)


def prepare(
    source: HuggingFaceSource, folder: Path, report: PrepareReport, progress: Progress | None = None
) -> None:
    """Write the manifests of ``source`` into ``folder`` and fill ``report``.

    If the data set's files contain its images verbatim (Arrow, and Parquet as `datasets` writes
    it today), an image's place in the manifest is a file of the data set, offset and length.
    Otherwise the images are written once, into tar files below ``images``. Rows of one split with
    the same image are one image with several captions.

    Raises:
        SightlineError: the data set is missing, damaged or cannot be fetched, a column or split is
            missing or has another type, or there are no images with captions.
    """
    path = source.path
    if source.name is not None:
        path = fetch(source.name, source.revision)
        report.facts |= {_COMMIT: path.name, HUB_DATASET: source.name}
    splits = _chosen(source, path, files_by_split(path, source.config))
    every = [file for _, files in splits.values() for file in files]
    reader = _Reader(source, _root(source, path), splits, progress)
    found = reader.read(None)
    report.facts[_FACT] = _IN_PLACE
    if found is None:
        (folder / "images").mkdir()
        with closing(ImageTars(folder / "images")) as tars:
            found = reader.read(tars)
        assert found is not None
        report.facts[_FACT] = _WRITTEN
        report.notes.append(
            f"the images are encoded in their files, so they were written to `images` once "
            f"({tars.bytes / 1e6:,.1f} MB)"
        )
    else:
        report.notes.append(f"the images stay in {reader.root}: use it as --root")
    for each in missing_numbers(every):
        found.problem("missing_files", each)
    found.write(folder, report, source.name or str(path), strict=source.strict)


def _root(source: HuggingFaceSource, path: Path) -> Path:
    if source.images is not None:
        return source.images
    return path.parent if path.is_file() else path


def _chosen(
    source: HuggingFaceSource, path: Path, found: dict[str, list[Path]]
) -> dict[str, tuple[str, list[Path]]]:
    """The data set's split → our name for it, and its files."""
    if source.splits is None:
        where = f"{source.name or path} (choose with `splits` or `split_column`)"
        ours = {
            name: "" if source.split_column or not name else split_name(name, where)
            for name in found
        }
    else:
        ours = {theirs: split_name(name, "splits") for name, theirs in source.splits.items()}
        if unknown := sorted(ours.keys() - found.keys()):
            raise DatasetError(
                f"{source.name or path}: has no split {unknown[0]!r}; it has "
                f"{', '.join(name or 'no splits' for name in found)}"
            )
    return {theirs: (name, found[theirs]) for theirs, name in ours.items()}


class _NotVerbatim(Exception):
    """A file does not contain an image verbatim."""


class _Reader:
    """Reads every row of the chosen splits.

    Attributes:
        root: base folder of the places of images that stay where they are.
    """

    def __init__(
        self,
        source: HuggingFaceSource,
        root: Path,
        splits: dict[str, tuple[str, list[Path]]],
        progress: Progress | None,
    ) -> None:
        self.root = root
        self._real = os.path.realpath(root)
        self._source = source
        self._splits = splits
        self._progress = progress
        self._columns = Columns(source.image, source.caption, source.split_column)
        self._ids: dict[tuple[bytes, str], str] = {}  # key and split of an image → its id
        self._captions: dict[str, int] = {}  # id → captions so far
        self._owners: dict[bytes, str] = {}  # key → split

    def read(self, tars: ImageTars | None) -> Manifests | None:
        """What the data set contains; None if images have to be written and ``tars`` is None."""
        self._ids, self._captions, self._owners = {}, {}, {}
        found = Manifests()
        files = [(theirs, file) for theirs, (_, some) in self._splits.items() for file in some]
        row = 0
        try:
            with any_pixel_count():
                for done, (theirs, file) in enumerate(files, start=1):
                    row = row if done > 1 and files[done - 2][0] == theirs else 0
                    packed = Packed(self._relative(file))
                    for each in read_rows(file, self._columns):
                        name = f"{theirs}/{row}" if theirs else str(row)
                        self._add(packed, name, each, self._splits[theirs][0], tars)
                        row += 1
                    found.add(packed)
                    if self._progress is not None:
                        what = "reading" if tars is None else "writing images"
                        self._progress(what, done, len(files), "files")
        except _NotVerbatim:
            return None
        return found

    def _add(
        self, packed: Packed, name: str, row: ImageRow, split: str, tars: ImageTars | None
    ) -> None:
        if row.split:
            split = split_name(row.split, f"{packed.name}, column {self._columns.split}")
        data, place = self._image(packed, name, row)
        if data is None:
            return
        key = key_of_bytes(data)
        image_id = self._ids.get((key, split))
        if image_id is None:
            if place is None and tars is None:
                raise _NotVerbatim
            if tars is not None:
                tar, offset = tars.add(data)
                place = Place(Path(tar), offset, len(data))
            assert place is not None
            image_id = self._ids[key, split] = name
            packed.add_image(image_id, place, data, split, key)
            if self._owners.setdefault(key, split) != split:
                packed.problem("images_in_two_splits", image_id)
        number = self._captions.get(image_id, 0)
        for text in row.captions:
            packed.add_caption(image_id, number, text, split)
            number += 1
        self._captions[image_id] = number

    def _image(self, packed: Packed, name: str, row: ImageRow) -> tuple[bytes | None, Place | None]:
        """An image's bytes, and where they are if a file contains them verbatim."""
        if row.data is not None:
            if self._source.images is not None:
                raise DatasetError(
                    f"{packed.name}: column {self._columns.image!r} contains the images "
                    "themselves, so `images` does not apply; remove it"
                )
            if row.offset is None:
                return row.data, None
            return row.data, Place(Path(packed.name), row.offset, len(row.data))
        if not row.path:
            packed.problem("rows_without_image", name)
            return None, None
        path = os.path.normpath(os.path.join(self._real, row.path))  # noqa: PTH118
        if "://" in row.path or not Path(path).is_relative_to(self._real):
            packed.problem("images_outside_their_folder", f"{name}: {row.path!a}")
        elif "\0" in path or not os.path.isfile(path):  # noqa: PTH113
            packed.problem("images_without_file", f"{name}: {row.path!a}")
        else:
            return Path(path).read_bytes(), Place(Path(path).relative_to(self._real))
        return None, None

    def _relative(self, file: Path) -> str:
        """A file's path from the root; links to files stay, as in the hub's cache."""
        real = os.path.join(os.path.realpath(file.parent), file.name)  # noqa: PTH118
        if self._source.images is not None:
            return file.name
        if not Path(real).is_relative_to(self._real):
            raise DatasetError(f"{file}: is outside its data set {self.root}; copy it there")
        return Path(real).relative_to(self._real).as_posix()
