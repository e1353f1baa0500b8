"""Folders of images with their captions and splits: any such folder, Flickr30k and MS COCO."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from pipeline.datasets.caption_images import not_wanted, write_pairs
from pipeline.datasets.caption_tables import (
    Beside,
    captions_beside,
    choose_splits,
    read_captions,
)
from pipeline.datasets.captions import Captions, read_coco, read_karpathy
from pipeline.datasets.images import scan_images
from pipeline.datasets.source import (
    Below,
    DatasetError,
    ImageFolder,
    PrepareReport,
    Progress,
    Source,
    split_name,
)
from sightline.files.places import base_of, is_url, shown
from sightline.tables.outside_columns import wanted_of_captions
from sightline.user_files import read_lines


class PairsSource(Source):
    """Any folder of images with their captions, and splits from lists or Karpathy's JSON.

    Attributes:
        images: folder of images, searched with its subfolders.
        captions: file of lines ``name.jpg#k<TAB>caption``, or a table: CSV, TSV, JSON lines, JSON,
            Parquet or Arrow; without it, the captions come from ``beside`` or ``karpathy``.
        beside: txt or json: the captions lie beside the images, ``0001.jpg`` with ``0001.txt``, one
            in each line, or with ``0001.json``, an object.
        image_column: column of the images' names, if it has no usual name.
        caption_column: column of the captions, or a list of several; ``sentences.raw`` is the field
            ``raw`` of the objects in ``sentences``.
        split_column: column of the splits, if it is not called split.
        caption_id_column: column of the captions' ids, if it is not called so.
        splits: for each split, a file of image names, one per line; or the values of the column of
            splits that belong to it, as a list: ``[train, restval]``.
        karpathy: Karpathy's JSON, such as ``dataset_flickr30k.json``; instead of ``splits``.
        strict: treat problems such as captions without image or images without caption as errors.
    """

    example: ClassVar[str] = (
        "sightline prepare pairs --images photos --captions captions.csv --out data/mine"
    )

    kind: Literal["pairs"] = "pairs"
    images: ImageFolder
    captions: Path | None = None
    beside: Beside | None = None
    image_column: str | None = None
    caption_column: str | list[str] | None = None
    split_column: str | None = None
    caption_id_column: str | None = None
    splits: dict[str, Path | list[str]] | None = None
    karpathy: Path | None = None
    strict: bool = False

    @model_validator(mode="after")
    def _captions_and_one_split(self) -> Self:
        kinds = {isinstance(value, list) for value in (self.splits or {}).values()}
        if len(kinds) > 1:
            raise ValueError("`splits`: give files of image names, or values of a column as lists")
        if self.splits and self.karpathy:
            raise ValueError("give `splits` (lists of images) or `karpathy`, but not both")
        if self.captions is not None and self.beside is not None:
            raise ValueError("give `captions` (a file) or `beside` (files), but not both")
        if self.captions is None and self.beside is None and self.karpathy is None:
            raise ValueError(
                "`captions` is missing: the file of the captions; if they lie beside the images, "
                "give `beside`, txt or json"
            )
        return self

    def read(self) -> Captions:
        """The captions, and the split of each image if a file tells."""
        listed = None if self.karpathy is None else read_karpathy(self.karpathy)
        captions = listed
        wanted = wanted_of_captions(
            self.image_column, self.caption_column, self.split_column, self.caption_id_column
        )
        if self.beside is not None:
            if is_url(self.images):
                raise DatasetError(
                    f"{shown(self.images)}: `beside` reads captions beside images on this machine; "
                    "write them into a table, and give it as `captions`"
                )
            captions = captions_beside(Path(self.images), self.beside, wanted)
        elif self.captions is not None:
            captions = read_captions(self.captions, wanted)
        assert captions is not None  # one of them is given
        if listed is not None:
            captions.listed = listed.listed
        elif lists := {n: p for n, p in (self.splits or {}).items() if isinstance(p, Path)}:
            captions.listed = [
                (entry.strip(), split_name(name, "splits"), str(path))
                for name, path in lists.items()
                for entry in read_lines(path)
                if entry.strip()
            ]
        if values := {n: v for n, v in (self.splits or {}).items() if isinstance(v, list)}:
            choose_splits(captions, values)
        if captions.splits and captions.listed is not None and captions is not listed:
            raise DatasetError(
                f"{captions.where}: has a column `split`, but "
                f"`{'splits' if self.splits else 'karpathy'}` also gives splits; use one of them"
            )
        return captions

    def prepare(
        self, folder: Path, report: PrepareReport, progress: Progress | None = None
    ) -> None:
        _write_manifests(self, ["."], folder, report, progress)


class Flickr30kSource(PairsSource):
    """Flickr30k as it is distributed: `pairs` with its licence, which must have splits.

    The captions are ``results_20130124.token``; the splits are the lists of Flickr30k Entities,
    which contain image names without suffix, or Karpathy's.
    """

    example: ClassVar[str] = (
        "sightline prepare flickr30k --images flickr30k-images "
        "--karpathy dataset_flickr30k.json --out data/flickr30k"
    )
    licence: ClassVar[str] = (
        "Flickr30k: photographs under the terms of Flickr and their authors, for "
        "non-commercial research and education only; do not pass on the photographs"
    )

    kind: Literal["flickr30k"] = "flickr30k"  # pyright: ignore[reportIncompatibleVariableOverride]

    @model_validator(mode="after")
    def _some_split(self) -> Self:
        if not (self.splits or self.karpathy):
            raise ValueError(
                "give `splits` (the lists of Flickr30k Entities) or `karpathy` "
                "(dataset_flickr30k.json)"
            )
        return self


class CocoSource(Source):
    """MS COCO captions, COCO's own or with Karpathy's splits.

    Attributes:
        images: the folder that contains ``train2017``, ``val2017`` etc., or one folder of images.
        folders: subfolders of ``images`` to search, ``[train2017, val2017]``; default: all.
        captions: for each split, train or val, its file, such as ``captions_train2017.json``.
        karpathy: his ``dataset_coco.json``; instead of ``captions``. Its splits train, val and
            test have 82,783 (those of train2014), 5,000 and 5,000 images.
        restval: train on Karpathy's 30,504 further images as well; they are left out otherwise.
        strict: treat problems such as captions without image or images without caption as errors.
    """

    example: ClassVar[str] = (
        "sightline prepare coco --images coco --captions train=captions_train2017.json "
        "--out data/coco"
    )
    licence: ClassVar[str] = (
        "MS COCO: annotations under CC BY 4.0; photographs under the terms of Flickr"
    )

    kind: Literal["coco"] = "coco"
    images: ImageFolder
    captions: dict[str, Path] = {}
    karpathy: Path | None = None
    restval: bool = False
    folders: list[Below] | None = None
    strict: bool = False

    @model_validator(mode="after")
    def _one_kind_of_file(self) -> Self:
        if bool(self.captions) == bool(self.karpathy):
            raise ValueError(
                "give `captions` (COCO's JSON of at least one split) or `karpathy` "
                "(dataset_coco.json), but not both"
            )
        if self.restval and not self.karpathy:
            raise ValueError("`restval` is a split of `karpathy` (dataset_coco.json): give it")
        return self

    def read(self) -> Captions:
        """The captions, and the split of each image."""
        if self.karpathy is not None:
            return read_karpathy(self.karpathy, "train" if self.restval else None)
        return read_coco(self.captions)

    def prepare(
        self, folder: Path, report: PrepareReport, progress: Progress | None = None
    ) -> None:
        _write_manifests(self, self.folders or ["."], folder, report, progress)


def _write_manifests(
    source: PairsSource | CocoSource,
    subfolders: Sequence[str],
    folder: Path,
    report: PrepareReport,
    progress: Progress | None,
) -> None:
    captions = source.read()
    if not captions.texts:
        raise DatasetError(f"{captions.where}: contains no captions; give a file that holds them")
    beside = isinstance(source, PairsSource) and source.beside
    root = base_of(source.images)
    images = scan_images(
        source.images,
        report,
        subfolders,
        progress,
        partial(not_wanted, captions, root) if captions.left_out else None,
        f".{beside or ''}",
    )
    write_pairs(folder, images, captions, report, strict=source.strict, root=root)
