"""Folders of images with their captions and splits: any such folder, Flickr30k and MS COCO."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, model_validator

from pipeline.datasets.caption_files import of_captions, of_files_beside
from pipeline.datasets.caption_images import NamedCaptions
from pipeline.datasets.caption_tables import chosen_splits, no_splits
from pipeline.datasets.image_formats import image_suffixes
from pipeline.datasets.images import scan_images
from pipeline.datasets.samples import Samples, Split, of_coco, of_karpathy, splits_in
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


def _a_suffix(value: str) -> str:
    suffix = f".{value.removeprefix('.').lower()}"
    if not re.fullmatch(r"\.\w+", suffix) or suffix in image_suffixes():
        raise ValueError(
            f"found {value!r}, expected the suffix of files with captions, such as txt"
        )
    return suffix


def _folder_below(file: Path, root: Path | str) -> str:
    """The folder of ``file`` below ``root``; empty if it is not below it."""
    if isinstance(root, str) or not file.is_file():
        return ""
    folder = file.parent.resolve()
    below = folder.relative_to(root.resolve()) if folder.is_relative_to(root.resolve()) else Path()
    return "" if below == Path() else below.as_posix()


class PairsSource(Source):
    """Any folder of images with their captions, and splits from lists or Karpathy's JSON.

    Attributes:
        images: folder of images, searched with its subfolders.
        captions: file of lines ``name.jpg#k<TAB>caption``, or a table: CSV, TSV, JSON lines, JSON,
            Parquet or Arrow; or an image folder whose tables are called ``metadata.jsonl`` or
            ``.csv``; without it, the captions come from ``beside`` or ``karpathy``.
        beside: suffix of the files beside the images that hold their captions: ``0001.txt`` of
            ``0001.jpg``, one in each line; of ``json``, an object.
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
    beside: Annotated[str, AfterValidator(_a_suffix)] | None = None
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
                "`captions` is missing: the file of the captions, or the folder of images with "
                "their metadata.jsonl; if they lie beside the images, give `beside`, such as txt"
            )
        return self

    def captions_in(self, report: PrepareReport) -> NamedCaptions:
        """The captions, and the split of each image if a file tells."""
        splits: list[Split] | None = None
        samples: Samples = ()
        where, base = str(self.captions or self.karpathy or shown(self.images)), ""
        if self.karpathy is not None:
            samples = of_karpathy(self.karpathy, report)
            splits = splits_in(samples, str(self.karpathy))
        lists = {n: p for n, p in (self.splits or {}).items() if isinstance(p, Path)}
        if lists:
            splits = [
                (entry.strip(), split_name(name, "splits"), str(path))
                for name, path in lists.items()
                for entry in read_lines(path)
                if entry.strip()
            ]
        values = {n: v for n, v in (self.splits or {}).items() if isinstance(v, list)}
        chosen = chosen_splits(values) if values else None
        columns = wanted_of_captions(
            self.image_column, self.caption_column, self.split_column, self.caption_id_column
        )
        if self.beside is not None:
            if is_url(self.images):
                raise DatasetError(
                    f"{shown(self.images)}: `beside` reads captions beside images on this machine; "
                    "write them into a table, and give it as `captions`"
                )
            samples = of_files_beside(Path(self.images), self.beside, columns, report, chosen)
        elif self.captions is not None:
            root = base_of(self.images)
            base = _folder_below(self.captions, root)
            samples = of_captions(self.captions, columns, report, chosen, root)
        elif chosen is not None:
            raise no_splits(where)
        return NamedCaptions.of(samples, where, report, splits, base)

    def prepare(
        self, folder: Path, report: PrepareReport, progress: Progress | None = None
    ) -> None:
        captions = self.captions_in(report)
        _write_manifests(self, ["."], captions, folder, report, progress, self.beside or "")


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
        karpathy: Karpathy's ``dataset_coco.json``; instead of ``captions``. Its splits train, val
            and test have 82,783 (those of train2014), 5,000 and 5,000 images.
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

    def prepare(
        self, folder: Path, report: PrepareReport, progress: Progress | None = None
    ) -> None:
        if self.karpathy is not None:
            where = str(self.karpathy)
            samples = of_karpathy(self.karpathy, report, "train" if self.restval else None)
            splits = splits_in(samples, where)
        else:
            where = ", ".join(map(str, self.captions.values()))
            samples, splits = of_coco(self.captions, report)
        captions = NamedCaptions.of(samples, where, report, splits)
        _write_manifests(self, self.folders or ["."], captions, folder, report, progress)


def _write_manifests(
    source: PairsSource | CocoSource,
    subfolders: Sequence[str],
    captions: NamedCaptions,
    folder: Path,
    report: PrepareReport,
    progress: Progress | None,
    beside: str = "",
) -> None:
    root = base_of(source.images)
    images = scan_images(
        source.images,
        report,
        subfolders,
        progress,
        partial(captions.not_wanted, root) if captions.left_out else None,
        beside,
    )
    captions.write(folder, images, report, strict=source.strict, root=root)
