"""MS COCO: one captions JSON per split, and the folder of photographs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, TypeAdapter, field_validator
from typing_extensions import TypedDict

from pipeline.datasets.captions import Captions
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
    """COCO captions.

    Attributes:
        images: the folder that contains ``train2017``, ``val2017`` etc., or one folder of images.
        folders: subfolders of ``images`` to search, ``[train2017, val2017]``; default: all.
        captions: the file of each split, ``{train: captions_train2017.json, val: …}``.
        strict: treat problems such as captions without image or images without caption as errors.
    """

    licence: ClassVar[str] = (
        "MS COCO: annotations under CC BY 4.0; photographs under the terms of Flickr"
    )

    images: ImageFolder
    captions: dict[str, Path]
    folders: list[str] | None = None
    strict: bool = False

    @field_validator("captions")
    @classmethod
    def _some_captions(cls, value: dict[str, Path]) -> dict[str, Path]:
        if not value:
            raise ValueError("give the captions JSON of at least one split")
        return value


def prepare(
    source: CocoSource, folder: Path, report: PrepareReport, progress: Progress | None = None
) -> None:
    """Write the manifests of ``source`` into ``folder``; a caption's number is its annotation id.

    Raises:
        DatasetError: the images or a captions file cannot be used; the message explains why.
    """
    captions = Captions(", ".join(map(str, source.captions.values())), [], [], numbers=[])
    listed: list[tuple[str, str, str]] = []
    for name, path in source.captions.items():
        split = split_name(name, "captions")
        files = _read_split(path, captions)
        listed += [(file, split, str(path)) for file in files]
    images = scan_images(source.images, report, source.folders, progress)
    names = ImageNames(images.paths)
    splits = assign_splits(listed, names, images, report)
    write_pairs(folder, images, captions, splits, report, strict=source.strict, names=names)


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
