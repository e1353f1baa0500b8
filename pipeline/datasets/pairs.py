"""Any folder of images with a captions file, and optional split lists (Flickr8k's layout)."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from pipeline.datasets.captions import read_captions
from pipeline.datasets.images import scan_images
from pipeline.datasets.match import ImageNames, splits_from_lists, write_pairs
from pipeline.datasets.source import DatasetError, ImageFolder, PrepareReport, Progress, Source


class PairsSource(Source):
    """Images and their captions.

    Attributes:
        images: folder of images, searched with its subfolders.
        captions: ``name.jpg#k<TAB>caption``, or CSV, TSV or JSONL with a header.
        splits: for each split, a file of image names, one per line.
        strict: treat problems such as captions without image or images without caption as errors.
    """

    images: ImageFolder
    captions: Path
    splits: dict[str, Path] | None = Field(default=None)
    strict: bool = False


def prepare(
    source: PairsSource, folder: Path, report: PrepareReport, progress: Progress | None = None
) -> None:
    """Write the manifests of ``source`` into ``folder`` and fill ``report``.

    Raises:
        DatasetError: the images or the captions cannot be used; the message explains why.
    """
    captions = read_captions(source.captions)
    if source.splits and captions.splits is not None:
        raise DatasetError(
            f"{source.captions}: has a column `split`, but `splits` also gives lists; "
            f"use one of them"
        )
    images = scan_images(source.images, report, progress=progress)
    names = ImageNames(images.paths)
    splits = None
    if source.splits:
        splits = splits_from_lists(source.splits, names, images, report)
    write_pairs(folder, images, captions, splits, report, strict=source.strict, names=names)
