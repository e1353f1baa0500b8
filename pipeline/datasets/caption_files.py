"""Files of captions: tables, Flickr's lines, an image folder's metadata, texts beside images."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline.datasets.caption_tables import LONGEST_NAME, CaptionTables, no_splits
from pipeline.datasets.images import files_below, found_images, suffix_of
from pipeline.datasets.samples import Samples, captions_in, of_flickr, one_by_one
from pipeline.datasets.source import DatasetError, PrepareReport
from sightline.files.file_kinds import file_kind, kind_of_names, unexpected
from sightline.tables.image_names import split_in
from sightline.tables.outside_columns import (
    OF_CAPTIONS,
    OutsideTable,
    Row,
    Wanted,
    field_of,
    is_address,
)
from sightline.tables.outside_tables import (
    SUFFIXES,
    has_known_header,
    is_table,
    open_table,
    text_suffix,
)
from sightline.user_files import OBJECT, read_json, read_lines

EXPECTED = "a table of captions: CSV, TSV, JSON lines, JSON, Parquet or Arrow"
_TALKS = (
    "conversations, as LLaVA has them, not captions; write the answer that describes each image "
    "into an object of its own, with its image and caption"
)
_HINTS = {
    ("images", "annotations"): "COCO's captions; use the kind `coco`, with "
    "`captions: {train: FILE}`",
    ("images", "messages"): _TALKS,
    ("images", "conversations"): _TALKS,
    ("image", "conversations"): _TALKS,
    ("annotations", "data", "predictions"): "Label Studio's tasks; export JSON-MIN or CSV instead",
    ("images",): "Karpathy's captions and splits; give it as `karpathy` (for the split restval: "
    "with the kind `coco`)",
    ("url", "key", "status"): "img2dataset's own table; its captions lie beside the images: leave "
    "out `captions` and give `beside: txt`; for its tar files use the kind `webdataset`",
}
"""Columns of JSON and tables that another kind reads → what they are, and how to use them."""
_TOKEN = re.compile(r"[^\t]+#\s*\d+\t")
_METADATA = "metadata"
"""The table of an image folder, as `datasets` calls it."""


def of_captions(
    path: Path,
    columns: Mapping[str, Wanted],
    report: PrepareReport,
    splits: Mapping[str, str] | None = None,
    root: Path | str = "",
) -> Samples:
    """The captions of a file: a table of any format, or Flickr's ``name.jpg#k<TAB>caption``.

    Text is a table by its suffix, or if its first line consists of names that are known here; lines
    as Flickr's are those whatever the file is called. Of a folder, every table called ``metadata``
    is read: its names start from its own folder, and its split is the folder's.

    Args:
        columns: those that a reader needs or can use.
        splits: value of the column of splits → our name for it; None: all, under usual names.
        root: folder of the images.

    Raises:
        SightlineError: no such file, a column that is not there, a wrong value, or a line that is
            no caption.
    """
    if path.is_dir():
        if kind := kind_of_names(os.listdir(path)):  # noqa: PTH208
            raise unexpected(path, kind, EXPECTED, OF_CAPTIONS[:2])
        return _of_metadata(path, columns, report, splits, root)
    is_text = not path.is_file() or file_kind(path) in (None, "gzip")
    is_headed = text_suffix(path) in SUFFIXES or has_known_header(path)
    if is_text and (_is_flickr(path) or not is_headed):
        if splits is not None:
            raise no_splits(path)
        if text_suffix(path) in SUFFIXES:
            report.guess(f"{path.name}: read as lines `name.jpg#k<TAB>caption`")
        return of_flickr(path, report)
    return CaptionTables(columns, splits, report).only(_opened(path, columns))


def _is_flickr(path: Path) -> bool:
    """Whether the first line is one of Flickr's, whose number no table has before its first tab."""
    if not path.is_file() or file_kind(path) is not None:
        return False
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        return bool(_TOKEN.match(file.readline(LONGEST_NAME)))


def _opened(path: Path, columns: Mapping[str, Wanted]) -> OutsideTable:
    table = open_table(path, EXPECTED, OF_CAPTIONS[:2])
    are_named = columns["image"].names and columns["caption"].names
    if not are_named and (hint := table.known_as(_HINTS)):
        raise DatasetError(f"{path}: {hint}")
    return table


def _of_metadata(
    folder: Path,
    columns: Mapping[str, Wanted],
    report: PrepareReport,
    splits: Mapping[str, str] | None,
    root: Path | str,
) -> Samples:
    """The captions of an image folder: those of each ``metadata.jsonl`` below it, or like it."""
    names = files_below(folder, folder, Counter())
    tables = [folder / name for name in sorted(names) if Path(name).stem == _METADATA]
    tables = [table for table in tables if is_table(table)]
    if not tables:
        raise DatasetError(
            f"{folder}: a folder without a {_METADATA}.jsonl or .csv, expected a file of captions; "
            "those that lie beside the images are read without `captions`, by `beside: txt` or "
            "`beside: json`, and folders of tables with images by the kind `huggingface`"
        )
    if not tables[0].resolve().is_relative_to(Path(root).resolve()):
        raise DatasetError(
            f"{folder}: the {_METADATA} files name images beside them; give this folder, or one "
            "above it, as `images`"
        )
    reader = CaptionTables(columns, splits, report)
    for path in tables:
        below = path.parent.resolve().relative_to(Path(root).resolve())
        split = split_in(path.parent.resolve().parts[-2:])
        for sample in one_by_one(reader.samples(_opened(path, columns))):
            name = sample.image
            if isinstance(name, str) and name.strip() and not is_address(name):
                sample.image = (below / name).as_posix()
            if sample.split == "":
                sample.split = split
            yield sample
    reader.finish()


def of_files_beside(
    root: Path,
    suffix: str,
    columns: Mapping[str, Wanted],
    report: PrepareReport,
    splits: Mapping[str, str] | None = None,
) -> Samples:
    """The captions of the images below ``root``: the lines of a text, or fields of an object.

    A text without an image, or with several (``1.jpg`` and ``1.png``), is a problem of its own.

    Args:
        suffix: of the files beside the images, with its dot; those of ``.json`` hold an object.
    """
    images, _ = found_images(root, root)
    images_of: dict[str, list[str]] = defaultdict(list)
    for path in sorted(images):
        images_of[_stem(path)].append(path)
    files = sorted(name for name in files_below(root, root, Counter()) if suffix_of(name) == suffix)
    if not files:
        raise DatasetError(f"{root}: no {suffix} lies beside its images; check `beside`")
    alone = [name for name in files if len(images_of.get(_stem(name), ())) == 1]
    pairs = [(images_of[_stem(name)][0], root / name) for name in alone]
    reader = CaptionTables(columns, splits, report)
    yield from reader.only(_table_beside(root, pairs))
    for name in files:
        images = images_of.get(_stem(name), [])
        if len(images) != 1:
            problem = "captions_of_ambiguous_image" if images else "captions_without_image"
            report.note(problem, [" or ".join((name, *images))])


def _stem(path: str) -> str:
    return str(PurePosixPath(path).with_suffix(""))


def _table_beside(root: Path, pairs: Sequence[tuple[str, Path]]) -> OutsideTable:
    """The captions of images, each in a file of its own."""

    def record(image: str, path: Path) -> dict[str, Any]:
        if suffix_of(path.name) == ".json":
            return {**read_json(path, OBJECT, "an object with a caption"), "image": image}
        text = "\n".join(read_lines(path, "one caption per line"))
        return {"image": image, "caption": captions_in(text)}

    def read(columns: Sequence[str]) -> Iterator[Row]:
        for image, path in pairs:
            values = record(image, path)
            yield path.relative_to(root).as_posix(), [field_of(values, name) for name in columns]

    names = tuple(record(*pairs[0])) if pairs else ("image", "caption")
    return OutsideTable(root, names, read, "file")
