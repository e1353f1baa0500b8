"""Captions that lie beside their images: ``0001.jpg`` with ``0001.txt`` or ``0001.json``."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import TypeAdapter

from pipeline.datasets.caption_tables import CaptionColumns, captions_of
from pipeline.datasets.captions import Captions
from pipeline.datasets.images import files_below, image_files, suffix_of
from pipeline.datasets.source import DatasetError
from sightline.outside_tables import OutsideTable, Row, field_of
from sightline.user_files import read_json, read_lines

Beside = Literal["txt", "json"]
_IMAGE = "image"
_OBJECT = TypeAdapter(dict[str, Any])


def captions_beside(root: Path, beside: Beside, columns: CaptionColumns) -> Captions:
    """The captions of the images below ``root``: the lines of a text, or fields of an object.

    A text without an image, or with several (``1.jpg`` and ``1.png``), is a problem of its own.

    Raises:
        SightlineError: no such folder, no such files, or a file that cannot be read.
    """
    kind = f".{beside}"
    images, _ = image_files(root, root)
    images_of: dict[str, list[str]] = defaultdict(list)
    for path in sorted(images):
        images_of[_stem(path)].append(path)
    files = sorted(name for name in files_below(root, root, Counter()) if suffix_of(name) == kind)
    if not files:
        raise DatasetError(f"{root}: no {kind} lies beside its images; check `beside`")
    alone = [name for name in files if len(images_of.get(_stem(name), ())) == 1]
    pairs = [(images_of[_stem(name)][0], root / name) for name in alone]
    captions = captions_of(_table(root, pairs), columns)
    for name in files:
        images = images_of.get(_stem(name), [])
        if len(images) != 1:
            problem = "captions_of_ambiguous_image" if images else "captions_without_image"
            captions.problems[problem].append(" or ".join((name, *images)))
    return captions


def _stem(path: str) -> str:
    return str(PurePosixPath(path).with_suffix(""))


def _table(root: Path, pairs: Sequence[tuple[str, Path]]) -> OutsideTable:
    """The captions of images, each in a file of its own."""

    def record(image: str, path: Path) -> dict[str, Any]:
        if suffix_of(path.name) == ".json":
            return {**read_json(path, _OBJECT, "an object with a caption"), _IMAGE: image}
        lines = read_lines(path, "one caption per line")
        return {_IMAGE: image, "caption": [line for line in lines if line.strip()]}

    def read(columns: Sequence[str]) -> Iterator[Row]:
        for image, path in pairs:
            values = record(image, path)
            yield path.relative_to(root).as_posix(), [field_of(values, name) for name in columns]

    names = tuple(record(*pairs[0])) if pairs else (_IMAGE, "caption")
    return OutsideTable(root, names, read, "file")
