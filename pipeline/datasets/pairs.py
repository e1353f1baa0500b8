"""Any folder of images with their captions and splits; Flickr8k and Flickr30k are such folders."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Self

from pydantic import model_validator

from pipeline.datasets.captions import captions_of, read_captions, read_karpathy
from pipeline.datasets.images import scan_images
from pipeline.datasets.match import ImageNames, assign_splits, listed_splits, write_pairs
from pipeline.datasets.source import (
    DatasetError,
    ImageFolder,
    PrepareReport,
    Progress,
    Source,
    split_name,
)


class PairsSource(Source):
    """Any folder of images with their captions, and splits from lists or Karpathy's JSON.

    Attributes:
        images: folder of images, searched with its subfolders.
        captions: file of lines ``name.jpg#k<TAB>caption``, or CSV, TSV or JSONL with a header;
            without it, the captions come from ``karpathy``.
        splits: for each split, a file of image names, one per line.
        karpathy: Karpathy's JSON, such as ``dataset_flickr30k.json``; instead of ``splits``.
        strict: treat problems such as captions without image or images without caption as errors.
    """

    example: ClassVar[str] = (
        "sightline prepare pairs --set images=photos --set captions=captions.csv --out data/mine"
    )

    images: ImageFolder
    captions: Path | None = None
    splits: dict[str, Path] | None = None
    karpathy: Path | None = None
    strict: bool = False

    @model_validator(mode="after")
    def _captions_and_one_split(self) -> Self:
        if self.splits and self.karpathy:
            raise ValueError("give `splits` (lists of images) or `karpathy`, but not both")
        if self.captions is None and self.karpathy is None:
            raise ValueError("`captions` is missing: the file of the captions")
        return self


class Flickr30kSource(PairsSource):
    """Flickr30k as it is distributed: `pairs` with its licence, which must have splits.

    The captions are ``results_20130124.token``; the splits are the lists of Flickr30k Entities,
    which contain image names without suffix, or Karpathy's.
    """

    example: ClassVar[str] = (
        "sightline prepare flickr30k --set images=flickr30k-images "
        "--set karpathy=dataset_flickr30k.json --out data/flickr30k"
    )
    licence: ClassVar[str] = (
        "Flickr30k: photographs under the terms of Flickr and their authors, for "
        "non-commercial research and education only; do not pass on the photographs"
    )

    @model_validator(mode="after")
    def _some_split(self) -> Self:
        if not (self.splits or self.karpathy):
            raise ValueError(
                "give `splits` (the lists of Flickr30k Entities) or `karpathy` "
                "(dataset_flickr30k.json)"
            )
        return self


def prepare(
    source: PairsSource, folder: Path, report: PrepareReport, progress: Progress | None = None
) -> None:
    """Write the manifests of ``source`` into ``folder`` and fill ``report``.

    Raises:
        DatasetError: the images or the captions cannot be used; the message explains why.
    """
    entries = [] if source.karpathy is None else read_karpathy(source.karpathy)
    if source.captions is not None:
        captions = read_captions(source.captions)
    else:
        assert source.karpathy is not None
        captions = captions_of(source.karpathy, entries)
    if captions.splits is not None and (source.splits or entries):
        raise DatasetError(
            f"{source.captions}: has a column `split`, but "
            f"`{'splits' if source.splits else 'karpathy'}` also gives splits; use one of them"
        )
    images = scan_images(source.images, report, progress=progress)
    names = ImageNames(images.paths)
    splits = None
    if source.splits:
        splits = assign_splits(listed_splits(source.splits), names, images, report)
    elif entries:
        where = str(source.karpathy)
        rows = ((each["filename"], split_name(each["split"], where), where) for each in entries)
        splits = assign_splits(rows, names, images, report)
    write_pairs(folder, images, captions, splits, report, strict=source.strict, names=names)
