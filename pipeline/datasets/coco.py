"""MS COCO: its captions JSON per split, or Karpathy's, and the folder of photographs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field, TypeAdapter, model_validator
from typing_extensions import TypedDict

from pipeline.datasets.captions import Captions, captions_of, read_karpathy
from pipeline.datasets.images import scan_images
from pipeline.datasets.match import ImageNames, assign_splits, write_pairs
from pipeline.datasets.source import (
    DatasetError,
    ImageFolder,
    PrepareReport,
    Progress,
    Source,
    split_name,
)
from sightline.outside import Identifier, Name, Text, read_json

_Listed = list[tuple[str, str, str]]  # name of an image, its split, the file that says so


class _Image(TypedDict):
    id: Identifier
    file_name: Name


class _Annotation(TypedDict):
    id: Identifier
    image_id: Identifier
    caption: Text


class _File(TypedDict):
    """A captions file of COCO."""

    images: list[_Image]
    annotations: Annotated[list[_Annotation], Field(min_length=1)]


_FILE = TypeAdapter(_File)


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
        "sightline prepare coco --set images=coco --set captions.train=captions_train2017.json "
        "--out data/coco"
    )
    licence: ClassVar[str] = (
        "MS COCO: annotations under CC BY 4.0; photographs under the terms of Flickr"
    )

    images: ImageFolder
    captions: dict[str, Path] = {}
    karpathy: Path | None = None
    restval: bool = False
    folders: list[str] | None = None
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
    source: CocoSource, folder: Path, report: PrepareReport, progress: Progress | None = None
) -> None:
    """Write the manifests of ``source`` into ``folder``; a caption's number is its annotation id.

    With Karpathy's file, captions are numbered within their image.

    Raises:
        DatasetError: the images or a captions file cannot be used; the message explains why.
    """
    left_out: set[str] = set()
    if source.karpathy is not None:
        captions, listed, left_out = _read_karpathy(source.karpathy, restval=source.restval)
    else:
        captions = Captions(", ".join(map(str, source.captions.values())), numbers=[])
        listed: _Listed = []
        for name, path in source.captions.items():
            split = split_name(name, "captions")
            listed += [(file, split, str(path)) for file in _read_split(path, captions)]
    folders = source.folders or ["."]
    images = scan_images(source.images, report, folders, progress, leave_out=left_out)
    names = ImageNames(images.paths)
    splits = assign_splits(listed, names, images, report)
    write_pairs(folder, images, captions, splits, report, strict=source.strict, names=names)


def _read_karpathy(path: Path, *, restval: bool) -> tuple[Captions, _Listed, set[str]]:
    """The captions of Karpathy's file, the split of each image, and the images to leave out."""
    wanted, listed, left_out = [], [], set()
    for image in read_karpathy(path):
        if image["split"] == "restval" and not restval:
            left_out.add(image["filename"])
            continue
        split = "train" if image["split"] == "restval" else split_name(image["split"], str(path))
        wanted.append(image)
        listed.append((image["filename"], split, str(path)))
    return captions_of(path, wanted), listed, left_out


def _read_split(path: Path, captions: Captions) -> list[str]:
    """Append the captions of one file; returns the names of its images."""
    body = read_json(
        path,
        _FILE,
        "COCO's captions_*.json: `images` with id and file_name, and `annotations` with id, "
        "image_id and caption",
    )
    files = {image["id"]: image["file_name"] for image in body["images"]}
    if len(files) != len(body["images"]):
        twice, _ = Counter(image["id"] for image in body["images"]).most_common(1)[0]
        raise DatasetError(f"{path}: images: several have the id {twice!r}; give each its own")
    assert captions.numbers is not None
    for annotation in body["annotations"]:
        image = annotation["image_id"]
        captions.images.append(files.get(image, f"image_id {image}"))
        captions.texts.append(annotation["caption"])
        captions.numbers.append(str(annotation["id"]))
    return list(files.values())
