"""Readers of captions: Flickr's token files, CSV, TSV and JSONL, Karpathy's JSON and COCO's."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from pipeline.datasets.source import DatasetError, split_name
from sightline.user_files import (
    Identifier,
    Loc,
    Name,
    Text,
    read_json,
    read_lines,
    read_text,
    refusal,
    short,
)

REQUIRED = ("image", "caption")
OPTIONAL = ("split", "caption_id")


class _Row(TypedDict):
    """A row of a table of captions, or a line of a JSONL file."""

    image: Text
    caption: Text
    split: NotRequired[Text]
    caption_id: NotRequired[Identifier]


class _Sentence(TypedDict):
    raw: Text


class _KarpathyImage(TypedDict):
    """An image of Karpathy's files (dataset_flickr30k.json, dataset_coco.json)."""

    filename: Name
    split: Name
    sentences: NotRequired[list[_Sentence] | None]


class _Karpathy(TypedDict):
    images: Annotated[list[_KarpathyImage], Field(min_length=1)]


class _CocoImage(TypedDict):
    id: Identifier
    file_name: Name


class _CocoAnnotation(TypedDict):
    id: Identifier
    image_id: Identifier
    caption: Text


class _Coco(TypedDict):
    """A captions file of COCO."""

    images: list[_CocoImage]
    annotations: Annotated[list[_CocoAnnotation], Field(min_length=1)]


_HINT = (
    f"; every line is an object with {' and '.join(REQUIRED)}, and optionally "
    f"{' and '.join(OPTIONAL)}"
)
_ROW, _KARPATHY, _COCO = TypeAdapter(_Row), TypeAdapter(_Karpathy), TypeAdapter(_Coco)
_Records = Iterator[tuple[int, Any]]


@dataclass
class Captions:
    """The rows of a caption file, in file order.

    Attributes:
        where: the file, for messages.
        images: [n], each image as named in the file.
        texts: [n], verbatim.
        numbers: [n], the number after ``#`` in Flickr's files, or None: number in file order.
        ids: [n], caption ids from the file, or None.
        splits: [n], the split of each row, or None.
        lines: [n], line of each row in the file (the last line of a multi-line row), or None.
        listed: (name of an image, its split, the file that says so), or None.
        left_out: names of the files of images that are not wanted.
        remarks: what was read otherwise than it is written, for the user.
    """

    where: str
    images: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    numbers: list[str] | None = None
    ids: list[str] | None = None
    splits: list[str] | None = None
    lines: list[int] | None = None
    listed: list[tuple[str, str, str]] | None = None
    left_out: set[str] = field(default_factory=set)
    remarks: list[str] = field(default_factory=list)


def read_captions(path: Path) -> Captions:
    """Read a caption file; its suffix determines the format.

    ``.csv`` follows RFC 4180 (quoted fields may contain commas, tabs and line ends); ``.tsv`` has
    no quoting; ``.jsonl`` has one object per line. All three have the columns *image* and
    *caption*, and may have *split* and *caption_id*; a header is read without regard to case and
    surrounding white space. Every other suffix is Flickr's ``name.jpg#k<TAB>caption``.

    Raises:
        SightlineError: the file is missing, not UTF-8, or has the wrong columns or values.
    """
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return _read_table(path, _csv_rows if suffix == ".csv" else _tsv_rows)
    if suffix in (".jsonl", ".ndjson"):
        lines = enumerate(read_lines(path), start=1)
        rows = ((line, row) for line, row in lines if row and not row.isspace())
        return _of_rows(Captions(str(path), lines=[]), rows, _ROW.validate_json, _HINT)
    return _read_token(path)


def read_karpathy(path: Path, restval: str | None = "restval") -> Captions:
    """Karpathy's splits and captions, numbered within their image; an image may have none.

    Args:
        restval: what his split of that name is here; None: its images are left out.
    """
    expected = "Karpathy's dataset_….json: `images` with filename, split and sentences"
    where, numbers, listed = str(path), [], []
    captions = Captions(where, numbers=numbers, listed=listed)
    for image in read_json(path, _KARPATHY, expected)["images"]:
        name, split = image["filename"], image["split"]
        split = restval if split == "restval" else split
        if split is None:
            captions.left_out.add(name)
            continue
        listed.append((name, split_name(split, where), where))
        for number, sentence in enumerate(image.get("sentences") or []):
            captions.images.append(name)
            captions.texts.append(sentence["raw"])
            numbers.append(str(number))
    return captions


def read_coco(files: Mapping[str, Path]) -> Captions:
    """The captions of one file of COCO per split; a caption's number is its annotation id."""
    numbers, listed = [], []
    where = ", ".join(map(str, files.values()))
    captions = Captions(where, numbers=numbers, listed=listed)
    expected = (
        "COCO's captions_*.json: `images` with id and file_name, and `annotations` with id, "
        "image_id and caption"
    )
    for name, path in files.items():
        split = split_name(name, "captions")
        body = read_json(path, _COCO, expected)
        names = {image["id"]: image["file_name"] for image in body["images"]}
        if len(names) != len(body["images"]):
            twice, _ = Counter(image["id"] for image in body["images"]).most_common(1)[0]
            raise DatasetError(f"{path}: images: several have the id {twice!r}; give each its own")
        listed += [(image, split, str(path)) for image in names.values()]
        for annotation in body["annotations"]:
            image = annotation["image_id"]
            captions.images.append(names.get(image, f"image_id {image}"))
            captions.texts.append(annotation["caption"])
            numbers.append(str(annotation["id"]))
    return captions


def _read_token(path: Path) -> Captions:
    captions = Captions(str(path), numbers=(numbers := []), lines=(lines := []))
    for line, row in enumerate(read_lines(path), start=1):
        if not row.strip():
            continue
        head, tab, text = row.partition("\t")
        image, mark, number = head.rpartition("#")
        if not (tab and mark and image and number.strip()):
            raise DatasetError(
                f"{path}: line {line}: found {short(row)}, expected `name.jpg#k<TAB>caption`; a "
                f"file with a header must end in .csv, .tsv or .jsonl"
            )
        captions.images.append(image)
        captions.texts.append(text)
        numbers.append(number)
        lines.append(line)
    return captions


def _csv_rows(path: Path) -> _Records:
    text = read_text(path)
    usual = csv.field_size_limit(max(len(text), 1))  # the limit of the module, for all of Python
    # newline="": the csv module itself must see the line ends inside quotes
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise DatasetError(f"{path}: line {reader.line_num}: not CSV ({error})") from None
    finally:
        csv.field_size_limit(usual)


def _tsv_rows(path: Path) -> _Records:
    for line, row in enumerate(read_lines(path), start=1):
        yield line, row.split("\t") if row else []


def _read_table(path: Path, read: Callable[[Path], _Records]) -> Captions:
    rows = read(path)
    _, names = next(rows, (0, []))
    header = [name.strip().lower() for name in names]
    _check_columns(path, header, names)
    trimmed = dict.fromkeys(OPTIONAL, 0)

    def records() -> _Records:
        for line, row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise DatasetError(
                    f"{path}: line {line}: found {len(row)} columns, expected {len(header)} "
                    f"({', '.join(map(short, names))})"
                )
            record = dict(zip(header, row, strict=True))
            for name in OPTIONAL:
                if name in record and (value := record[name].strip()) != record[name]:
                    record[name] = value
                    trimmed[name] += 1
            yield line, record

    captions = _of_rows(Captions(str(path), lines=[]), records(), _ROW.validate_python)
    captions.remarks += [
        f"{path.name}: column {short(original)} read as {name}"
        for name, original in zip(header, names, strict=True)
        if name != original and name in (*REQUIRED, *OPTIONAL)
    ]
    captions.remarks += [
        f"{path.name}: white space around {count:,} values of {name} left out"
        for name, count in trimmed.items()
        if count
    ]
    return captions


def _check_columns(path: Path, header: list[str], names: Sequence[str]) -> None:
    missing = [name for name in REQUIRED if name not in header]
    if missing or len(set(header)) != len(header):
        raise DatasetError(
            f"{path}: wrong columns: found {', '.join(map(short, names)) or 'none'}; expected "
            f"{' and '.join(REQUIRED)}, and optionally {' and '.join(OPTIONAL)}; rename the "
            f"header of the file"
        )


def _of_rows(
    captions: Captions, rows: _Records, check: Callable[[Any], _Row], hint: str = ""
) -> Captions:
    """Fill ``captions`` with the rows that ``check`` accepts."""
    optional: dict[str, dict[int, str]] = {name: {} for name in OPTIONAL}  # line → value
    path, lines = Path(captions.where), captions.lines
    assert lines is not None
    for line, row in rows:
        try:
            record = check(row)
        except ValidationError as error:
            place = partial(_place, line)
            raise refusal(path, error, place, hint) from None
        lines.append(line)
        captions.images.append(record["image"])
        captions.texts.append(record["caption"])
        for name, values in optional.items():
            if (value := record.get(name)) is not None:
                values[line] = str(value)
    for name, values in optional.items():
        if 0 < len(values) < len(lines):
            raise DatasetError(
                f"{path}: line {next(line for line in lines if line not in values)}: {name}: is "
                "missing, but other lines have it; give it in all of them, or in none"
            )
    captions.splits, captions.ids = (list(optional[name].values()) or None for name in OPTIONAL)
    return captions


def _place(line: int, loc: Loc) -> str:
    return ": ".join((f"line {line}", *map(str, loc)))
