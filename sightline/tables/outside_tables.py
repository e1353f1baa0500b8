"""The one reader of tables of others: CSV, TSV, JSON lines, JSON, Parquet and Arrow.

`open_table` says which columns a file has, and `read` reads some of them; which are meant is for
`sightline.tables.outside_columns`. Binary files are known by their content; text by its suffix
where it can be read so, else by its content.
"""

from __future__ import annotations

import csv
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from sightline.errors import SightlineError
from sightline.files.file_kinds import file_kind, unexpected
from sightline.files.places import is_url, shown
from sightline.tables.arrow_files import Batches, batches_of, schema_of
from sightline.tables.outside_columns import (
    KNOWN,
    OF_CAPTIONS,
    OutsideTable,
    Row,
    known_name,
    picker,
)
from sightline.tables.outside_json import BATCH, json_lines, json_table, looks_like_json
from sightline.user_files import read_lines, read_text, short, with_line_feeds
from sightline.wording import counted

TABS = (".tsv", ".tab")
_LINES = (".jsonl", ".ndjson", ".jsonlines")
SUFFIXES = (".csv", *TABS, *_LINES, ".json")
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
QUOTED = re.compile(r'"(?:[^"]|"")*"')
"""A field with quotation marks around it, and those in it doubled, as CSV has them."""
_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")
_PICTURES = 64
"""Rows of photographs that are read at once, which take a few megabytes."""
_LONGEST_HEADER = 1000
_SEP = re.compile(r'\A"?sep=([,;\t|])"?[,;\t|]*(?=[\r\n])', re.IGNORECASE)
"""The first line of a CSV that tells a spreadsheet the separator."""


def open_table(
    path: Path | str, expected: str, needed: Sequence[str] = OF_CAPTIONS[:2]
) -> OutsideTable:
    """The columns of a table.

    Args:
        path: a file, or the URL of one in Parquet.
        expected: what the file should be, for messages.
        needed: columns that it must have, for the message about a file that is not a table.

    Raises:
        SightlineError: no such file, or one that is damaged or no table.
    """
    if is_url(path):
        batches = partial(batches_of, path)
        return table_of(Path(shown(path).partition("://")[2]), schema_of(path), batches)
    path = Path(path)
    kind = file_kind(path) if path.is_file() else None
    if kind not in (None, "gzip", "parquet", "arrow"):
        raise unexpected(path, kind, expected, needed)
    if kind in ("parquet", "arrow"):
        return table_of(path, schema_of(path), partial(batches_of, path))
    suffix = text_suffix(path)
    if suffix in (*_LINES, ".json") and not has_known_header(path):
        return (json_lines if suffix in _LINES else json_table)(path, expected)
    text = read_text(path, expected)
    if looks_like_json(text):
        return json_table(path, expected)
    return _delimited(path, text, suffix in TABS)


def text_suffix(path: Path) -> str:
    """The suffix of a file of text, in lower case; ``.csv`` of ``captions.csv.gz``."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return next((suffix for suffix in reversed(suffixes) if suffix != ".gz"), "")


def is_table(path: Path) -> bool:
    """Whether a file is a table: a binary one by its content, a text by its suffix."""
    if not path.is_file():
        return False
    return file_kind(path) in ("parquet", "arrow") or text_suffix(path) in SUFFIXES


def read_sentence_lines(path: Path, expected: str) -> list[str]:
    """The lines of a text without outer white space, where a command takes no other table."""
    if is_table(path):
        columns = ", ".join(map(short, open_table(path, expected).columns))
        raise SightlineError(
            f"{path}: a table (columns {columns}); expected {expected}; write its sentences into a "
            ".txt, one in each line, or prepare it: `sightline prepare sentences --path "
            f"{shlex.quote(str(path))} --column NAME --out FOLDER`"
        )
    return [line.strip() for line in require_one_column(path, read_lines(path, expected))]


def require_one_column(path: Path, lines: list[str]) -> list[str]:
    """The ``lines`` of a text, unless tabs divide all of them into as many columns, as a table."""
    counts = {line.count("\t") for line in lines if line.strip()}
    if len(counts) == 1 and (tabs := counts.pop()):
        raise SightlineError(
            f"{path}: every line has {tabs + 1} columns with tabs between them, expected one "
            "sentence; keep one column: "
            f"`cut -f{tabs + 1} {shlex.quote(str(path))} > sentences.txt`"
        )
    return lines


def has_known_header(path: Path) -> bool:
    """Whether the first line of a text consists of known names of an image and a caption alone."""
    if not path.is_file():
        return False
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        head = file.readline(_LONGEST_HEADER)
    for separator in _SEPARATORS:
        names = [name.strip().lower() for name in head.split(separator)]
        ours = {known_name(name) for name in names}
        if len(names) > 1 and None not in ours and {"image", "caption"} <= ours:
            return True
    return False


def table_of(path: Path, schema: pa.Schema, batches: Batches) -> OutsideTable:
    """The table of rows that any reader of Arrow yields.

    Args:
        path: what they are from, for messages.
        batches: of some columns, at most so many rows at a time.
    """

    def read(columns: Sequence[str]) -> Iterator[Row]:
        names = (c if c in schema.names else c.partition(".")[0] for c in columns)
        top = list(dict.fromkeys(names))
        number, pick = 0, picker(columns)
        binary = any(_holds_bytes(schema.field(column).type) for column in top)
        for batch in batches(top, _PICTURES if binary else BATCH):
            for record in batch.to_pylist():
                number += 1
                yield number, pick(record)

    return OutsideTable(path, tuple(schema.names), read, "row", schema=schema)


def _holds_bytes(kind: pa.DataType) -> bool:
    """Whether values of a type hold bytes, as photographs are stored."""
    if pa.types.is_struct(kind):
        return any(_holds_bytes(field.type) for field in kind)
    return "binary" in str(kind)


def _delimited(path: Path, text: str, has_tabs: bool) -> OutsideTable:
    """A CSV, or what is separated by something else.

    Args:
        has_tabs: whether its suffix says that tabs separate the columns.
    """
    notes: list[str] = []
    separator = _separator_of(text, has_tabs)
    if separator != ("\t" if has_tabs else ","):
        notes.append(f"{path.name}: its columns are separated by {_SEPARATORS[separator]}")
    text = _SEP.sub("", text)  # an empty line stays, which keeps the numbers of the others
    if separator == "\t":
        text = with_line_feeds(text)
    if separator == "\t" and not _tabs_are_quoted(text):
        batches = _unquoted(text)
    else:
        batches = _quoted(path, text, separator, notes)
        if separator == "\t":
            notes.append(f"{path.name}: its quotation marks are those of CSV")
    first = [row for row in next(batches, []) if row[1]]
    _, names = first[0] if first else (0, [])
    batches = chain([first[1:]], batches)
    if max(Counter(filter(str.strip, names)).values(), default=1) > 1:
        raise SightlineError(
            f"{path}: wrong columns: found {', '.join(map(short, names))}; expected each name "
            "once; give each another name in its first line"
        )

    def read(columns: Sequence[str]) -> Iterator[Row]:
        places = [names.index(column) for column in columns]
        for batch in batches:
            for number, row in batch:
                if len(row) != len(names) and row:
                    raise SightlineError(
                        f"{path}: line {number}: found {len(row)} columns, expected {len(names)} "
                        f"({', '.join(map(short, names))}); {remedies[len(row) < len(names)]}"
                    )
            yield from [(number, [row[i] for i in places]) for number, row in batch if row]

    marks = _SEPARATORS[separator]
    quoted = "" if separator == "\t" else f": quotation marks around a value that contains {marks}"
    remedies = (f"correct the line{quoted}", f"put the missing {marks} into the line, or remove it")
    return OutsideTable(path, tuple(names), read, text=True, notes=notes)


def _separator_of(text: str, has_tabs: bool) -> str:
    """What separates the columns: what a first line ``sep=;`` says; or a comma (in a TSV, a tab),
    unless the header has none and something else.
    """
    if match := _SEP.match(text):
        return match[1]
    head = re.split("[\r\n]", text.lstrip("\r\n"), maxsplit=1)[0]
    if not has_tabs:
        return next((mark for mark in _SEPARATORS if mark in head), ",")
    separators = (mark for mark in _SEPARATORS if mark in head and "\t" not in head)
    return next((mark for mark in separators if _known_names(head, mark) > 1), "\t")


def _known_names(head: str, separator: str) -> int:
    return sum(known_name(name, [*KNOWN]) is not None for name in head.split(separator))


def _tabs_are_quoted(text: str) -> bool:
    """Whether a TSV is quoted as CSV is, as pandas writes it.

    Then some mark is doubled, and every field with one has them around it; or a field holds a tab
    or a line end, so that only with quoting all rows have as many columns as the header.
    """
    if '""' not in text:
        return False
    columns = text.partition("\n")[0].count("\t")
    if any(line and line.count("\t") != columns for line in text.split("\n")):
        try:
            rows = _some_rows(_csv_reader(text, "\t"), len(text), None)
        except csv.Error:
            return False
        return all(len(row) == columns + 1 for _, row in rows if row)
    fields = [field for line in text.split("\n") if '"' in line for field in line.split("\t")]
    marked = [field.rstrip("\r") for field in fields if '"' in field]
    return all(map(QUOTED.fullmatch, marked)) and any('""' in field[1:-1] for field in marked)


def _unquoted(text: str) -> Iterator[Sequence[Row]]:
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    rows = (
        (number, bare.split("\t") if bare else []) for number, bare in enumerate(lines, start=1)
    )
    while batch := list(islice(rows, BATCH)):
        yield batch


def _quoted(path: Path, text: str, separator: str, notes: list[str]) -> Iterator[Sequence[Row]]:
    reader, last, header = _csv_reader(text, separator), 0, list[Any]()
    lines, several = list[str](), list[int]()
    try:
        while rows := _some_rows(reader, len(text)):
            for number, row in rows:
                header = header or row
                if number > last + 1:
                    lines = lines or _LINE.findall(text)
                    several.append(last + 1)
                    if len(row) != len(header) or _are_rows(
                        lines[last:number], separator, len(header)
                    ):
                        raise _swallowed(path, lines[last:number], last + 1)
                last = number
            yield rows
    except csv.Error as error:
        first = _first_line_of_a_fault(text, separator)
        place = f" in line {reader.line_num}" if reader.line_num > first else ""
        raise SightlineError(
            f"{path}: line {first}: not CSV ({error}{place}); correct the line: quotation marks "
            "in a value are doubled, and stand around it"
        ) from None
    if several:
        notes.append(
            f"{path.name}: {counted(len(several), 'row')} of several lines, the first begins in "
            f"line {several[0]}"
        )


def _are_rows(lines: Sequence[str], separator: str, columns: int) -> bool:
    """Whether each line of a row is like a whole row; in text, a space follows a comma."""
    mark = re.compile(re.escape(separator) + "(?! )")
    return columns > 1 and all(len(mark.findall(line)) == columns - 1 for line in lines)


def _swallowed(path: Path, lines: Sequence[str], first: int) -> SightlineError:
    """The error of a mark that makes one row of ``lines``, of which ``first`` is the number."""
    return SightlineError(
        f"{path}: line {first}: a quotation mark in it takes in the next "
        f"{counted(len(lines) - 1, 'line')}, such as {short(lines[1].rstrip())}; correct the line: "
        "quotation marks in a value are doubled, and stand around it. If it is one value of "
        "several lines, put spaces in place of their ends"
    )


def _first_line_of_a_fault(text: str, separator: str) -> int:
    """The line in which the first row begins that is not CSV."""
    reader, last = _csv_reader(text, separator), 0
    with suppress(csv.Error):
        while _some_rows(reader, len(text), 1):
            last = reader.line_num
    return last + 1


def _csv_reader(text: str, separator: str) -> Any:
    lines = (match[0] for match in _LINE.finditer(text))  # with their ends, which quotes may hold
    return csv.reader(lines, delimiter=separator, strict=True)


def _some_rows(
    reader: Any, longest: int, count: int | None = BATCH
) -> Sequence[tuple[int, list[Any]]]:
    """The next rows, whose fields may have ``longest`` characters, each with its last line."""
    # a limit for all of Python: put back here, not where a reader may never come to its end
    usual = csv.field_size_limit(max(longest, 1))
    try:
        return [(reader.line_num, row) for row in islice(reader, count)]
    finally:
        csv.field_size_limit(usual)
