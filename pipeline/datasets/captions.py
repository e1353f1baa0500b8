"""Readers of caption files: Flickr's token files, and CSV, TSV and JSONL with a header."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.datasets.source import DatasetError, read_lines, read_utf8

REQUIRED = ("image", "caption")
OPTIONAL = ("split", "caption_id")


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
    """

    where: str
    images: list[str]
    texts: list[str]
    numbers: list[str] | None = None
    ids: list[str] | None = None
    splits: list[str] | None = None
    lines: Sequence[int] | None = None


def read_captions(path: Path) -> Captions:
    """Read a caption file; its suffix determines the format.

    ``.csv`` follows RFC 4180 (quoted fields may contain commas, tabs and line ends); ``.tsv`` has
    no quoting; ``.jsonl`` has one object per line. All three have the columns *image* and
    *caption*, and may have *split* and *caption_id*. Every other suffix is Flickr's
    ``name.jpg#k<TAB>caption``.

    Raises:
        DatasetError: the file is missing, empty, not UTF-8, or has the wrong columns.
    """
    suffix = path.suffix.lower()
    if suffix == ".csv":
        captions = _read_csv(path)
    elif suffix == ".tsv":
        captions = _from_rows(path, _tsv_rows(path))
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
        if not (tab and mark and image and number):
            raise DatasetError(
                f"{path}: line {line}: found {_short(row)}, expected `name.jpg#k<TAB>caption`; a "
                f"file with a header must end in .csv, .tsv or .jsonl"
            )
        images.append(image)
        numbers.append(number)
        texts.append(text)
        at.append(line)
    return Captions(str(path), images, texts, numbers=numbers, lines=at)


def _read_csv(path: Path) -> Captions:
    # newline="": the csv module itself must see the line ends inside quotes
    reader = csv.reader(io.StringIO(read_utf8(path), newline=""), strict=True)
    try:
        return _from_rows(path, ((reader.line_num, row) for row in reader))
    except csv.Error as error:
        raise DatasetError(f"{path}: line {reader.line_num}: not CSV ({error})") from None


def _tsv_rows(path: Path) -> Iterable[tuple[int, list[str]]]:
    for line, row in enumerate(read_lines(path), start=1):
        yield line, row.split("\t") if row else []


def _from_rows(path: Path, rows: Iterable[tuple[int, list[str]]]) -> Captions:
    iterator = iter(rows)
    _, header = next(iterator, (0, []))
    header = [name.strip() for name in header]
    _check_columns(path, header)
    columns: list[list[str]] = [[] for _ in header]
    lines: list[int] = []
    adders = [column.append for column in columns]
    for line, row in iterator:
        if not row:
            continue
        if len(row) != len(header):
            raise DatasetError(
                f"{path}: line {line}: found {len(row)} columns, expected {len(header)} "
                f"({', '.join(header)})"
            )
        for add, value in zip(adders, row, strict=True):
            add(value)
        lines.append(line)
    return _from_columns(path, dict(zip(header, columns, strict=True)), lines)


def _read_jsonl(path: Path) -> Captions:
    columns: dict[str, list[str]] = {}
    lines: list[int] = []
    for line, row in enumerate(read_lines(path), start=1):
        if not row.strip():
            continue
        record = _json_object(path, line, row)
        if not columns:
            _check_columns(path, list(record))
            columns = {name: [] for name in (*REQUIRED, *OPTIONAL) if name in record}
        for name, values in columns.items():
            value = record.get(name)
            if type(value) is int and name == "caption_id":
                value = str(value)
            if not isinstance(value, str):
                raise DatasetError(
                    f"{path}: line {line}: {name!r} is {_short(value)}, expected a string "
                    f"(every row needs the columns of the first: {', '.join(columns)})"
                )
            values.append(value)
        if "\\u" in row:
            _refuse_lone_surrogates(path, line, record)
        lines.append(line)
    return _from_columns(path, columns, lines)


def _json_object(path: Path, line: int, row: str) -> dict[str, Any]:
    try:
        record = json.loads(row)
    except (json.JSONDecodeError, RecursionError) as error:
        raise DatasetError(f"{path}: line {line}: not JSON ({error})") from None
    if not isinstance(record, dict):
        raise DatasetError(f"{path}: line {line}: found {_short(record)}, expected an object")
    return record


def _refuse_lone_surrogates(path: Path, line: int, record: dict[str, Any]) -> None:
    try:
        json.dumps(record, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise DatasetError(
            f"{path}: line {line}: contains an unpaired surrogate (\\ud800–\\udfff), which is not "
            f"a character; write the text as UTF-8"
        ) from None


def _check_columns(path: Path, found: list[str]) -> None:
    missing = [name for name in REQUIRED if name not in found]
    if missing or len(set(found)) != len(found):
        raise DatasetError(
            f"{path}: wrong columns: found {', '.join(map(_short, found)) or 'none'}; expected "
            f"{' and '.join(REQUIRED)}, and optionally {' and '.join(OPTIONAL)}; rename the "
            f"header of the file"
        )


def _from_columns(path: Path, columns: dict[str, list[str]], lines: list[int]) -> Captions:
    return Captions(
        str(path),
        columns.get("image", []),
        columns.get("caption", []),
        ids=columns.get("caption_id"),
        splits=columns.get("split"),
        lines=lines,
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…'"
