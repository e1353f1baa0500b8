"""Captions that lie beside their images: ``0001.jpg`` with ``0001.txt`` or ``0001.json``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import TypeAdapter

from pipeline.datasets.caption_tables import CaptionColumns, captions_of
from pipeline.datasets.captions import Captions
from pipeline.datasets.images import image_files
from pipeline.datasets.source import DatasetError
from sightline.atomic_files import folders_below, is_hidden
from sightline.outside_tables import OutsideTable, Row, field_of
from sightline.user_files import read_json, read_lines

Beside = Literal["txt", "json"]
_IMAGE = "image"
_OBJECT = TypeAdapter(dict[str, Any])


def captions_beside(root: Path, kind: Beside, given: CaptionColumns) -> Captions:
    """The captions of the images below ``root``: the lines of a text, or fields of an object.

    A text without an image, or with several (``1.jpg`` and ``1.png``), is a problem of its own.

    Raises:
        SightlineError: no such folder, no such files, or a file that cannot be read.
    """
    images, _ = image_files(root, root)
    images_of: dict[str, list[str]] = defaultdict(list)
    for path in sorted(images):
        images_of[_stem(path)].append(path)
    files = sorted(
        (parent.relative_to(root) / name).as_posix()
        for parent, names in folders_below(root, is_hidden)
        for name in names
        if name.lower().endswith(f".{kind}") and not name.startswith(".")
    )
    if not files:
        raise DatasetError(f"{root}: no .{kind} lies beside its images; check `beside`")
    alone = [name for name in files if len(images_of.get(_stem(name), ())) == 1]
    pairs = [(images_of[_stem(name)][0], root / name) for name in alone]
    table = _of_texts(root, pairs) if kind == "txt" else _of_objects(root, pairs)
    captions = captions_of(table, given)
    for name in files:
        found = images_of.get(_stem(name), [])
        if len(found) != 1:
            problem = "captions_of_ambiguous_image" if found else "captions_without_image"
            captions.problems[problem].append(" or ".join((name, *found)))
    return captions


def _stem(path: str) -> str:
    return str(PurePosixPath(path).with_suffix(""))


def _of_texts(root: Path, pairs: Sequence[tuple[str, Path]]) -> OutsideTable:
    def read(columns: Sequence[str]) -> Iterator[Row]:
        for image, path in pairs:
            lines = [line for line in read_lines(path, "one caption per line") if line.strip()]
            values = {_IMAGE: image, "caption": lines}
            yield path.relative_to(root).as_posix(), [values[column] for column in columns]

    return OutsideTable(root, (_IMAGE, "caption"), read, "file")


def _of_objects(root: Path, pairs: Sequence[tuple[str, Path]]) -> OutsideTable:
    def record(image: str, path: Path) -> dict[str, Any]:
        return {**read_json(path, _OBJECT, "an object with a caption"), _IMAGE: image}

    def read(columns: Sequence[str]) -> Iterator[Row]:
        for image, path in pairs:
            found = record(image, path)
            yield path.relative_to(root).as_posix(), [field_of(found, column) for column in columns]

    names = tuple(record(*pairs[0])) if pairs else (_IMAGE, "caption")
    return OutsideTable(root, names, read, "file")
