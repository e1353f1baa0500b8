"""Readers of caption files: Flickr's token files, and CSV, TSV and JSONL with a header."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from pipeline.datasets.source import DatasetError
from sightline.outside import (
    Identifier,
    Loc,
    Name,
    Text,
    read_lines,
    read_text,
    refusal,
    short,
)

REQUIRED = ("image", "caption")
OPTIONAL = ("split", "caption_id")


class _Columns(TypedDict):
    """The columns of a table of captions, in CSV or TSV."""

    image: list[Text]
    caption: list[Text]
    split: NotRequired[list[Text]]
    caption_id: NotRequired[list[Name]]


class _Line(TypedDict):
    """A line of a JSONL file."""

    image: Text
    caption: Text
    split: NotRequired[Text]
    caption_id: NotRequired[Identifier]


_HINT = (
    f"; every line is an object with {' and '.join(REQUIRED)}, and optionally "
    f"{' and '.join(OPTIONAL)}"
)
_COLUMNS, _LINE = TypeAdapter(_Columns), TypeAdapter(_Line)


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
        remarks: what was read otherwise than it is written, for the user.
    """

    where: str
    images: list[str]
    texts: list[str]
    numbers: list[str] | None = None
    ids: list[str] | None = None
    splits: list[str] | None = None
    lines: Sequence[int] | None = None
    remarks: list[str] = field(default_factory=list)


def read_captions(path: Path) -> Captions:
    """Read a caption file; its suffix determines the format.

    ``.csv`` follows RFC 4180 (quoted fields may contain commas, tabs and line ends); ``.tsv`` has
    no quoting; ``.jsonl`` has one object per line. All three have the columns *image* and
    *caption*, and may have *split* and *caption_id*; a header is read without regard to case and
    surrounding white space. Every other suffix is Flickr's ``name.jpg#k<TAB>caption``.

    Raises:
        SightlineError: the file is missing, empty, not UTF-8, or has the wrong columns or values.
    """
    suffix = path.suffix.lower()
    if suffix == ".csv":
        captions = _read_csv(path, read_text(path))
    elif suffix == ".tsv":
        rows = (row.split("\t") if row else [] for row in read_lines(path))
        captions = _from_rows(path, enumerate(rows, start=1))
    elif suffix in (".jsonl", ".ndjson"):
        captions = _read_jsonl(path)
    else:
        captions = _read_token(path)
    if not captions.texts:
        raise DatasetError(f"{path}: contains no captions")
    return captions


def _read_token(path: Path) -> Captions:
    images, numbers, texts, at = [], [], [], []
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
        images.append(image)
        numbers.append(number)
        texts.append(text)
        at.append(line)
    return Captions(str(path), images, texts, numbers=numbers, lines=at)


def _read_csv(path: Path, text: str) -> Captions:
    usual = csv.field_size_limit(max(len(text), 1))  # the limit of the module, for all of Python
    # newline="": the csv module itself must see the line ends inside quotes
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        return _from_rows(path, ((reader.line_num, row) for row in reader))
    except csv.Error as error:
        raise DatasetError(f"{path}: line {reader.line_num}: not CSV ({error})") from None
    finally:
        csv.field_size_limit(usual)


def _from_rows(path: Path, rows: Iterable[tuple[int, list[str]]]) -> Captions:
    iterator = iter(rows)
    _, written = next(iterator, (0, []))
    header = [name.strip().lower() for name in written]
    _check_columns(path, header, written)
    columns: list[list[str]] = [[] for _ in header]
    lines: list[int] = []
    adders = [column.append for column in columns]
    for line, row in iterator:
        if not row:
            continue
        if len(row) != len(header):
            raise DatasetError(
                f"{path}: line {line}: found {len(row)} columns, expected {len(header)} "
                f"({', '.join(map(short, written))})"
            )
        for add, value in zip(adders, row, strict=True):
            add(value)
        lines.append(line)
    named = dict(zip(header, columns, strict=True))
    remarks = [
        f"{path.name}: column {short(there)} read as {name}"
        for name, there in zip(header, written, strict=True)
        if name != there and name in (*REQUIRED, *OPTIONAL)
    ]
    for name in OPTIONAL:
        if name in named:
            trimmed = [value.strip() for value in named[name]]
            if count := sum(a != b for a, b in zip(trimmed, named[name], strict=True)):
                remarks.append(
                    f"{path.name}: white space around {count:,} values of {name} left out"
                )
            named[name] = trimmed
    try:
        checked: Any = _COLUMNS.validate_python(named)
    except ValidationError as error:
        raise refusal(path, error, lambda loc: _place(loc, lines)) from None
    return _from_columns(path, checked, lines, remarks)


def _place(loc: Loc, lines: Sequence[int]) -> str:
    """Where a value of a table is: pydantic gives its column and row."""
    column, row = loc[:2]
    return f"line {lines[int(row)]}: {column}"


def _read_jsonl(path: Path) -> Captions:
    columns: dict[str, list[Any]] = {name: [] for name in (*REQUIRED, *OPTIONAL)}
    lines: list[int] = []
    try:
        for line, row in enumerate(read_lines(path), start=1):
            if row and not row.isspace():
                lines.append(line)
                record = _LINE.validate_json(row)
                for name, values in columns.items():
                    values.append(record.get(name))
    except ValidationError as error:
        raise refusal(
            path, error, lambda loc: ": ".join((f"line {lines[-1]}", *map(str, loc))), _HINT
        ) from None
    for name in OPTIONAL:
        if None not in columns[name]:
            continue
        given = columns.pop(name)
        if any(value is not None for value in given):
            raise DatasetError(
                f"{path}: line {lines[given.index(None)]}: {name}: is missing, but other lines "
                "have it; give it in all of them, or in none"
            )
    if "caption_id" in columns:
        columns["caption_id"] = list(map(str, columns["caption_id"]))
    return _from_columns(path, columns, lines, [])


def _check_columns(path: Path, header: list[str], written: Sequence[str]) -> None:
    missing = [name for name in REQUIRED if name not in header]
    if missing or len(set(header)) != len(header):
        raise DatasetError(
            f"{path}: wrong columns: found {', '.join(map(short, written)) or 'none'}; expected "
            f"{' and '.join(REQUIRED)}, and optionally {' and '.join(OPTIONAL)}; rename the "
            f"header of the file"
        )


def _from_columns(
    path: Path, columns: Mapping[str, list[str]], lines: list[int], remarks: list[str]
) -> Captions:
    return Captions(
        str(path),
        columns["image"],
        columns["caption"],
        ids=columns.get("caption_id"),
        splits=columns.get("split"),
        lines=lines,
        remarks=remarks,
    )
