"""MS COCO: one captions JSON per split, and the folder of photographs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import field_validator

from pipeline.datasets.captions import Captions
from pipeline.datasets.images import scan_images
from pipeline.datasets.match import ImageNames, assign_splits, write_pairs
from pipeline.datasets.source import (
    DatasetError,
    ImageFolder,
    PrepareReport,
    Progress,
    Source,
    read_json,
    split_name,
)


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
    body = read_json(path)
    if not isinstance(body, dict):
        body = {}
    try:
        files = {image["id"]: _text(image["file_name"]) for image in body["images"]}
        annotations = body["annotations"]
        for annotation in annotations:
            _append(captions, annotation, files)
    except (KeyError, TypeError) as error:
        raise DatasetError(
            f"{path}: not a COCO captions file ({type(error).__name__}: {error}); expected "
            f"`images` with id and file_name, and `annotations` with id, image_id and caption"
        ) from None
    if not annotations:
        raise DatasetError(f"{path}: contains no captions; expected COCO's captions_*.json")
    return list(files.values())


def _append(captions: Captions, annotation: Mapping[str, Any], files: dict[Any, str]) -> None:
    image = annotation["image_id"]
    text, number = _text(annotation["caption"]), str(annotation["id"])
    assert captions.numbers is not None
    captions.images.append(files.get(image, f"image_id {image}"))
    captions.texts.append(text)
    captions.numbers.append(number)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value
