"""Flickr30k: an image folder, its captions, and the splits of Entities or Karpathy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, NotRequired

from pydantic import Field, TypeAdapter, model_validator
from typing_extensions import TypedDict

from pipeline.datasets.captions import Captions, read_captions
from pipeline.datasets.images import scan_images
from pipeline.datasets.match import ImageNames, assign_splits, splits_from_lists, write_pairs
from pipeline.datasets.source import (
    DatasetError,
    ImageFolder,
    PrepareReport,
    Progress,
    Source,
    split_name,
)
from sightline.outside import Name, Text, read_json


class _Sentence(TypedDict):
    raw: Text


class _Entry(TypedDict):
    filename: Name
    split: Name
    sentences: NotRequired[list[_Sentence] | None]


class _File(TypedDict):
    """Karpathy's file of a data set."""

    images: Annotated[list[_Entry], Field(min_length=1)]


_FILE = TypeAdapter(_File)


class Flickr30kSource(Source):
    """Flickr30k as it is distributed.

    Attributes:
        images: folder of photographs, ``1000092795.jpg`` etc.
        captions: ``results_20130124.token`` or another caption file; without it, the captions
            come from ``karpathy``.
        splits: the lists of Flickr30k Entities, ``{train: train.txt, val: val.txt, …}``, which
            contain image names without suffix.
        karpathy: ``dataset_flickr30k.json``; instead of ``splits``.
        strict: treat problems such as captions without image or images without caption as errors.
    """

    licence: ClassVar[str] = (
        "Flickr30k: photographs under the terms of Flickr and their authors, for "
        "non-commercial research and education only; do not pass on the photographs"
    )

    images: ImageFolder
    captions: Path | None = None
    splits: dict[str, Path] | None = None
    karpathy: Path | None = None
    strict: bool = False

    @model_validator(mode="after")
    def _one_split(self) -> Flickr30kSource:
        if bool(self.splits) == bool(self.karpathy):
            raise ValueError(
                "give `splits` (the lists of Flickr30k Entities) or `karpathy` "
                "(dataset_flickr30k.json), but not both"
            )
        if self.captions is None and self.karpathy is None:
            raise ValueError("`captions` is missing: the token file of Flickr30k")
        return self


def prepare(
    source: Flickr30kSource, folder: Path, report: PrepareReport, progress: Progress | None = None
) -> None:
    """Write the manifests of ``source`` into ``folder`` and fill ``report``.

    Raises:
        DatasetError: the images, captions or split lists cannot be used; the message explains why.
    """
    karpathy = _read_karpathy(source.karpathy) if source.karpathy else []
    if source.captions is not None:
        captions = read_captions(source.captions)
    else:
        captions = _karpathy_captions(source.karpathy, karpathy)
    images = scan_images(source.images, report, progress=progress)
    names = ImageNames(images.paths)
    if source.splits:
        splits = splits_from_lists(source.splits, names, images, report)
    else:
        where = str(source.karpathy)
        rows = ((e["filename"], split_name(e["split"], where), where) for e in karpathy)
        splits = assign_splits(rows, names, images, report)
    write_pairs(folder, images, captions, splits, report, strict=source.strict, names=names)


def _read_karpathy(path: Path) -> list[_Entry]:
    expected = "Karpathy's dataset_flickr30k.json: `images` with filename, split and sentences"
    return read_json(path, _FILE, expected)["images"]


def _karpathy_captions(path: Path | None, entries: list[_Entry]) -> Captions:
    images, numbers, texts = [], [], []
    for entry in entries:
        for k, sentence in enumerate(entry.get("sentences") or []):
            images.append(entry["filename"])
            numbers.append(str(k))
            texts.append(sentence["raw"])
    if not texts:
        raise DatasetError(f"{path}: contains no captions; pass the token file as `captions`")
    return Captions(str(path), images, texts, numbers=numbers)
