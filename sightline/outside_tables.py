"""The one reader of tables of others: CSV, TSV, JSON lines, JSON, Parquet and Arrow.

`open_table` says which columns a file has, `choose` which of them are meant, and `read` reads
these. Binary files are known by their content, text by its suffix.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from sightline.arrow_files import batches_of, schema_of
from sightline.errors import SightlineError
from sightline.file_kinds import file_kind
from sightline.user_files import OBJECT, read_json, read_lines, read_text, refusal, short

KNOWN: dict[str, tuple[str, ...]] = {
    "image": (
        "image", "file_name", "filename", "filepath", "image_name", "image_path", "image_file",
    ),
    "caption": (
        "caption", "captions", "text", "title", "description", "sentence", "comment", "raw",
    ),
    "split": ("split",),
    "caption_id": ("caption_id",),
    "sentence": ("sentence", "text", "caption", "content", "raw"),
    "sentence1": ("sentence1", "sentence_1", "sentence_a"),
    "sentence2": ("sentence2", "sentence_2", "sentence_b"),
    "score": ("score", "similarity_score", "relatedness_score"),
    "phrase": ("phrase", "noun_phrase", "noun_chunk", "expression"),
    "char_start": ("char_start", "start_char", "start"),
    "char_end": ("char_end", "end_char", "end"),
    "box": ("box", "bbox", "bounding_box"),
    "box_format": ("box_format", "bbox_format"),
    "mask": ("mask", "segmentation"),
}  # fmt: skip
"""What others call these columns, our own name first; case and white space around do not count."""

_ADDRESSES = ("url", "urls", "image_url", "img_url", "link")
FETCH = "fetch them with `img2dataset --output_format webdataset` and use the kind `webdataset`"
"""What to do about URLs in place of images."""

_OF_CAPTIONS = ("image", "caption", "split", "caption_id")
_OF_PAIRS = ("score", "sentence1", "sentence2")
_OF_BOXES = (
    *_OF_CAPTIONS,
    "phrase",
    "char_start",
    "char_end",
    "box",
    "box_format",
    "mask",
    "score",
)

COMMAS, TABS = (".csv",), (".tsv", ".tab")
LINES, WHOLE = (".jsonl", ".ndjson", ".jsonlines"), (".json",)
SUFFIXES = (*COMMAS, *TABS, *LINES, *WHOLE)
_SEPARATORS = (",", ";", "\t", "|")
_IN_WORDS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
QUOTED = re.compile(r'"(?:[^"]|"")*"')
"""A field with quotation marks around it, and those in it doubled, as CSV has them."""
_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")
BATCH, _PICTURES = 128, 64
"""Rows that are read at once: of text (more, and each batch would set off a full collection of
garbage), and of photographs, which then take a few megabytes.
"""
_LONGEST_HEADER = 1000
_ANY = TypeAdapter(list[dict[str, Any]] | dict[str, Any])

Row = tuple[int | str, list[Any]]
"""Number of a row in its file, from 1 (for text, of its last line), or the name of its own file;
and its values."""


@dataclass(frozen=True)
class OutsideTable:
    """A table that somebody else wrote.

    Attributes:
        path: the file.
        columns: their names as written; of JSON those of the first object.
        read: the rows of some columns, in their order; None where an object lacks one.
        unit: what the numbers of rows count.
        text: whether all values are text, as in CSV.
        notes: what was read otherwise than its suffix says.
        not_read: columns that `choose` did not choose.
    """

    path: Path
    columns: tuple[str, ...]
    read: Callable[[Sequence[str]], Iterator[Row]]
    unit: Literal["line", "row", "file"] = "line"
    text: bool = False
    notes: list[str] = field(default_factory=list)
    not_read: list[str] = field(default_factory=list)

    def error(self, number: int | str, fault: str) -> SightlineError:
        """The error for what is wrong with a row."""
        return SightlineError(f"{self.path}: {self.unit} {number}: {fault}")

    def refusal(self, number: int | str, error: ValidationError, hint: str = "") -> SightlineError:
        """The error for what a schema found in a row."""
        return _refused(self.path, f"{self.unit} {number}", error, hint)

    def known_as(self, others: Mapping[tuple[str, ...], str]) -> str | None:
        """What a table is that is meant for another reader: columns that one has → words."""
        return next((what for names, what in others.items() if {*names} <= {*self.columns}), None)


class Wanted(NamedTuple):
    """A column that a reader needs or can use.

    Attributes:
        names: its name or names in the file, as the user wrote them; empty: one of the known names.
            ``sentences.raw`` is the field ``raw`` of the objects in ``sentences``.
        setting: what gives it, for messages; by default our name. None: nothing does.
        required: whether there must be one.
    """

    names: tuple[str, ...] = ()
    setting: str | None = ""
    required: bool = True


def as_columns(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """The columns that a setting names, for `Wanted`: one, several or none."""
    return (names,) if isinstance(names, str) else tuple(names or ())


def open_table(path: Path, expected: str) -> OutsideTable:
    """The columns of a table.

    Args:
        expected: what the file should be, for messages.

    Raises:
        SightlineError: no such file, or one that is damaged or no table.
    """
    if path.is_file() and file_kind(path) in ("parquet", "arrow"):
        return _of_arrow(path)
    suffix = text_suffix(path)
    if suffix in LINES:
        return _of_lines(path, expected)
    if suffix in WHOLE:
        return _of_json(path, expected)
    if suffix in TABS:
        return _delimited(path, "\t", expected)
    return _delimited(path, None, expected)


def text_suffix(path: Path) -> str:
    """The suffix of a file of text, in lower case; ``.csv`` of ``captions.csv.gz``."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return next((suffix for suffix in reversed(suffixes) if suffix != ".gz"), "")


def texts_in(cell: Any) -> list[Any]:
    """The texts of a cell: itself, or the items of its list; of an object its only value."""
    items = cell if isinstance(cell, list) else [cell]
    return [next(iter(i.values())) if isinstance(i, dict) and len(i) == 1 else i for i in items]


def by_name(columns: Mapping[str, Sequence[str]], values: Sequence[Any]) -> dict[str, list[Any]]:
    """Our names → the cells that their columns have in a row."""
    cells = iter(values)
    return {ours: [next(cells) for _ in theirs] for ours, theirs in columns.items()}


def has_known_header(path: Path) -> bool:
    """Whether the first line of a text consists of known names of an image and a caption alone."""
    if not path.is_file():
        return False
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        head = file.readline(_LONGEST_HEADER)
    for separator in _SEPARATORS:
        names = [name.strip().lower() for name in head.split(separator)]
        ours = {_ours(name) for name in names}
        if len(names) > 1 and None not in ours and {"image", "caption"} <= ours:
            return True
    return False


def choose(table: OutsideTable, wanted: Mapping[str, Wanted]) -> dict[str, tuple[str, ...]]:
    """Our name of each wanted column that is there → its names in the file; notes the guesses.

    Raises:
        SightlineError: a given or required column is not there, or two may be meant.
    """
    chosen = {name: _columns(table, name, column) for name, column in wanted.items()}
    chosen = {name: columns for name, columns in chosen.items() if columns}
    table.notes.extend(
        f"{table.path.name}: column {short(column)} read as {name}"
        for name, columns in chosen.items()
        for column in columns
        if column != name and not wanted[name].names
    )
    taken = [column for columns in chosen.values() for column in columns]
    used = {*taken, *(column.partition(".")[0] for column in taken)}
    table.not_read[:] = [column for column in table.columns if column not in used]
    for name in ("caption", "split"):
        left = [c for c in table.columns if _is(c, name) and c not in used and name in wanted]
        if left:
            setting = wanted[name].setting
            chooses = "" if setting is None else f"; `{setting or name}` chooses it"
            table.notes.append(f"{table.path.name}: column {short(left[0])} is not used{chooses}")
    return chosen


def _columns(table: OutsideTable, name: str, wanted: Wanted) -> tuple[str, ...]:
    available = ", ".join(map(short, table.columns)) or "none"
    setting = wanted.setting or name
    for column in wanted.names:
        if column.partition(".")[0] not in table.columns and column not in table.columns:
            raise SightlineError(
                f"{table.path}: has no column {column!r}, which `{setting}` names; it has "
                f"{available}"
            )
    if wanted.names:
        return wanted.names
    remedy = f"call one {name!r}" if wanted.setting is None else f"choose one with `{setting}`"
    candidates = [column for column in table.columns if _is(column, name)]
    candidates = [column for column in candidates if column.strip().lower() == name] or candidates
    if len(candidates) == 1:
        return (candidates[0],)
    if candidates:
        raise SightlineError(
            f"{table.path}: {' and '.join(map(short, candidates))} may both be the {name}; {remedy}"
        )
    if wanted.required and name == "image" and (address := _address_in(table)):
        raise SightlineError(
            f"{table.path}: {short(address)} gives URLs, expected names of images; {FETCH}"
        )
    if wanted.required:
        raise SightlineError(
            f"{table.path}: wrong columns: found {available}; expected {name} (or "
            f"{', '.join(KNOWN[name][1:4])} …); {remedy}"
        )
    return ()


def is_address(value: Any) -> bool:
    """Whether a value is a URL."""
    return isinstance(value, str) and value.lower().startswith(("http://", "https://"))


def _address_in(table: OutsideTable) -> str | None:
    """A column of URLs by its name, or a URL in place of a header."""
    named = (c for c in table.columns if is_address(c) or c.strip().lower() in _ADDRESSES)
    return next(named, None)


def _is(column: str, name: str) -> bool:
    """Whether a column is known by its name."""
    return column.strip().lower() in KNOWN[name]


def _ours(column: str, ours: Sequence[str] = _OF_CAPTIONS) -> str | None:
    """What a column is, by its name; by default one of captions."""
    return next((name for name in ours if _is(column, name)), None)


# -- formats -----------------------------------------------------------------------------------


def _of_arrow(path: Path) -> OutsideTable:
    def read(columns: Sequence[str]) -> Iterator[Row]:
        top = list(dict.fromkeys(_top(schema.names, column) for column in columns))
        number, pick = 0, _picker(columns)
        binary = any(_holds_bytes(schema.field(column).type) for column in top)
        for batch in batches_of(path, top, _PICTURES if binary else BATCH):
            for record in batch.to_pylist():
                number += 1
                yield number, pick(record)

    schema = schema_of(path)
    return OutsideTable(path, tuple(schema.names), read, "row")


def _holds_bytes(kind: pa.DataType) -> bool:
    """Whether values of a type hold bytes, as photographs are stored."""
    if pa.types.is_struct(kind):
        return any(_holds_bytes(field.type) for field in kind)
    return "binary" in str(kind)


def _top(names: Sequence[str], column: str) -> str:
    return column if column in names else column.partition(".")[0]


def field_of(record: Mapping[str, Any], column: str) -> Any:
    """A value of an object; with dots, of the objects in it, or of each in a list."""
    if column in record or "." not in column:
        return record.get(column)
    name, _, rest = column.partition(".")
    inner = record.get(name)
    if isinstance(inner, list):
        return [field_of(item, rest) for item in inner if isinstance(item, dict)]
    return field_of(inner, rest) if isinstance(inner, dict) else None


def _of_lines(path: Path, expected: str) -> OutsideTable:
    lines = read_lines(path, expected)
    first = next((line for line in lines if line and not line.isspace()), "{}")
    if first.lstrip().startswith("["):
        return _of_json(path, expected)

    def parsed(number: int, line: str) -> dict[str, Any]:
        try:
            record = from_json(
                line, cache_strings="keys"
            )  # twice as fast as a schema, which words what is wrong
        except ValueError:
            record = None
        try:
            return record if isinstance(record, dict) else OBJECT.validate_json(line)
        except ValidationError as error:
            hint = "; expected an object in every line"
            raise _refused(path, f"line {number}", error, hint) from None

    def batches() -> Iterator[list[tuple[int, dict[str, Any]]]]:
        for start in range(0, len(lines), BATCH):
            batch = enumerate(lines[start : start + BATCH], start=start + 1)
            lines[start : start + BATCH] = [""] * len(lines[start : start + BATCH])  # frees them
            yield [(n, parsed(n, line)) for n, line in batch if line and not line.isspace()]

    head = next((n for n, line in enumerate(lines) if line is first), 0) + 1
    return _of_objects(path, tuple(parsed(head, first)), batches(), "line")


def _of_objects(
    path: Path,
    names: tuple[str, ...],
    batches: Iterable[list[tuple[int, dict[str, Any]]]],
    unit: Literal["line", "row"],
) -> OutsideTable:
    """A table of JSON objects, of which the first has ``names``."""
    known = set(names)

    def read(columns: Sequence[str]) -> Iterator[Row]:
        pick = _picker(columns)
        for records in batches:
            for number, record in records:
                if not known.issuperset(record):
                    _require_known(path, f"{unit} {number}", record, names)
            yield from [(number, pick(record)) for number, record in records]

    return OutsideTable(path, names, read, unit)


def _refused(path: Path, place: str, error: ValidationError, hint: str) -> SightlineError:
    return refusal(path, error, lambda loc: ": ".join((place, *map(str, loc))), hint)


def _picker(columns: Sequence[str]) -> Callable[[Mapping[str, Any]], list[Any]]:
    """What takes the values of some columns out of an object."""
    if any("." in column for column in columns):
        return lambda record: [field_of(record, column) for column in columns]
    return lambda record: [record.get(column) for column in columns]


def _require_known(path: Path, place: str, record: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse a column that is known by its name and that the first object lacks."""
    ours = _OF_BOXES if any(_is(name, "box") for name in names) else _OF_CAPTIONS
    new = next((name for name in record if name not in names and _ours(name, ours)), None)
    if new is not None:
        raise SightlineError(
            f"{path}: {place}: has {short(new)}, which the first object lacks; give it in all of "
            "them, or in none"
        )


def _of_json(path: Path, expected: str) -> OutsideTable:
    """An array of objects, an object of columns, or one of name → captions.

    Of any other object, the columns are its keys and there are no rows.
    """
    content = read_json(path, _ANY, expected)
    if isinstance(content, dict):
        keys, content = tuple(content), _records_of(path, content)
        if not content:
            return _of_objects(path, keys, [], "row")
    rows = ([(number, record)] for number, record in enumerate(content, start=1))
    return _of_objects(path, tuple(content[0]) if content else (), rows, "row")


def _records_of(path: Path, content: dict[str, Any]) -> list[dict[str, Any]]:
    tables = (("image", "caption"), _OF_PAIRS, ("sentence",), ("phrase", "box"))
    if any(all(any(_is(key, name) for key in content) for name in names) for names in tables):
        # as pandas writes tables
        columns = [list(v.values()) if isinstance(v, dict) else v for v in content.values()]
        lists = [column for column in columns if isinstance(column, list)]
        if len(lists) < len(columns) or len(set(map(len, lists))) > 1:
            raise SightlineError(f"{path}: expected columns of one length")
        return [dict(zip(content, row, strict=True)) for row in zip(*lists, strict=True)]
    if all(isinstance(v, str) or _are_texts(v) for v in content.values()):
        return [{"image": name, "caption": value} for name, value in content.items()]
    return []


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _delimited(path: Path, separator: str | None, expected: str) -> OutsideTable:
    """A CSV, or what is separated by something else."""
    notes: list[str] = []
    text = read_text(path, expected)
    if separator is None:  # a comma, unless the first line has none and something else
        head = text.partition("\n")[0]
        separator = next((mark for mark in _SEPARATORS if mark in head), ",")
        if separator != ",":
            notes.append(f"{path.name}: its columns are separated by {_IN_WORDS[separator]}")
    if separator == "\t" and not _tabs_are_quoted(text):
        batches = _unquoted(text)
    else:
        batches = _quoted(path, text, separator)
        if separator == "\t":
            notes.append(f"{path.name}: its quotation marks are those of CSV")
    first = next(batches, [])
    _, names = first[0] if first else (0, [])
    batches = chain([first[1:]], batches)
    if len(set(names)) != len(names):
        raise SightlineError(
            f"{path}: wrong columns: found {', '.join(map(short, names))}; expected each name once"
        )

    def read(columns: Sequence[str]) -> Iterator[Row]:
        places = [names.index(column) for column in columns]
        for batch in batches:
            for number, row in batch:
                if len(row) != len(names) and row:
                    raise SightlineError(
                        f"{path}: line {number}: found {len(row)} columns, expected {len(names)} "
                        f"({', '.join(map(short, names))})"
                    )
            yield from [(number, [row[i] for i in places]) for number, row in batch if row]

    return OutsideTable(path, tuple(names), read, text=True, notes=notes)


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


def _quoted(path: Path, text: str, separator: str) -> Iterator[Sequence[Row]]:
    reader = _csv_reader(text, separator)
    try:
        while rows := _some_rows(reader, len(text)):
            yield rows
    except csv.Error as error:
        raise SightlineError(f"{path}: line {reader.line_num}: not CSV ({error})") from None


def _csv_reader(text: str, separator: str) -> Any:
    lines = (match[0] for match in _LINE.finditer(text))  # with their ends, which quotes may hold
    return csv.reader(lines, delimiter=separator, strict=True)


def _some_rows(reader: Any, longest: int, count: int | None = BATCH) -> Sequence[Row]:
    """The next rows, whose fields may have ``longest`` characters, each with its last line."""
    # a limit for all of Python: put back here, not where a reader may never come to its end
    usual = csv.field_size_limit(max(longest, 1))
    try:
        return [(reader.line_num, row) for row in islice(reader, count)]
    finally:
        csv.field_size_limit(usual)
