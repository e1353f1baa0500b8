"""Tables of others in JSON and JSON lines: where their rows are, and what names them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from sightline.errors import SightlineError
from sightline.tables.outside_columns import (
    KNOWN,
    OF_PAIRS,
    OutsideTable,
    Row,
    is_known,
    known_name,
    picker,
    refused,
)
from sightline.user_files import (
    OBJECT,
    dotted,
    read_lines,
    read_text,
    refusal,
    short,
    with_line_feeds,
)

BATCH = 128
"""Rows of text that are read at once: more, and each batch would set off a full collection of
garbage.
"""
_ANY = TypeAdapter(list[Any] | dict[str, Any])
_FILE_NAME = re.compile(r"\.[A-Za-z]\w{2,4}$")
_SPLIT = {"columns", "index", "data", "index_names", "column_names"}
"""The keys of pandas' orients `split` and `tight`."""
_REMEDY = 'write a list of objects that have these as keys, [{…}, {…}] (pandas: `orient="records"`)'


def looks_like_json(text: str) -> bool:
    """Whether a text is JSON, or JSON lines: it begins as one, and parses."""
    first = _first_line(text)
    return first.startswith(("{", "[")) and (_is_object(first) or _is_json(text))


def json_lines(path: Path, expected: str) -> OutsideTable:
    """The objects in the lines of a file; or JSON, if the file is that. A null is a row without
    values.
    """
    lines = read_lines(path, expected)
    first = next((line for line in lines if line.strip() not in ("", "null")), "{}")
    if not _is_object(first) and (first.lstrip().startswith("[") or _is_json("\n".join(lines))):
        return json_table(path, expected)

    def parsed(number: int, line: str) -> dict[str, Any]:
        try:
            # twice as fast as a schema, which words what is wrong
            record = from_json(line, cache_strings="keys")
        except ValueError:
            record = None
        try:
            if isinstance(record, dict) or line.strip() == "null":
                return record or {}
            return OBJECT.validate_json(line)
        except ValidationError as error:
            hint = "; expected an object in every line"
            raise refused(path, f"line {number}", error, hint) from None

    def batches() -> Iterator[list[tuple[int, dict[str, Any]]]]:
        for start in range(0, len(lines), BATCH):
            batch = enumerate(lines[start : start + BATCH], start=start + 1)
            lines[start : start + BATCH] = [""] * len(lines[start : start + BATCH])  # frees them
            yield [(n, parsed(n, line)) for n, line in batch if line and not line.isspace()]

    head = next((n for n, line in enumerate(lines) if line is first), 0) + 1
    return _of_objects(path, tuple(parsed(head, first)), batches(), "line")


def json_table(path: Path, expected: str) -> OutsideTable:
    """A list of objects or of sentences; or an object of columns, of name → captions or objects, of
    pandas' orients, or with only one list of objects; or JSON lines, if the file is that.

    Of any other object, the columns are its keys and there are no rows. A null of a list is a row
    without values.
    """
    text = read_text(path, expected)
    try:
        content = _ANY.validate_json(text)
    except ValidationError as error:
        if _is_object(_first_line(text)):
            return json_lines(path, expected)
        raise refusal(path, error, dotted, f"; expected {expected}") from None
    notes: list[str] = []
    if isinstance(content, dict):
        keys, content = tuple(content), _records_of(path, content, notes)
        if not content:
            return _of_objects(path, keys, [], "row", remedy=_REMEDY if keys else "")
    elif any(isinstance(item, str) for item in content) and all(
        isinstance(item, str | None) for item in content
    ):
        content = [{"sentence": item} for item in content]
    elif content and all(isinstance(item, list) for item in content):
        raise SightlineError(
            f'{path}: a list of lists, as pandas writes with `orient="values"`, which does not say '
            "what its columns are called; expected a list of objects; write it with "
            '`orient="records"`'
        )
    elif wrong := [item for item in content if not isinstance(item, dict | None)]:
        raise SightlineError(
            f"{path}: found {short(wrong[0])} in its array, expected an object; expected "
            f"{expected}; remove it, or write an object in its place"
        )
    first = next(filter(None, content), {})
    rows = ([(number, record or {})] for number, record in enumerate(content, start=1))
    table = _of_objects(path, tuple(first), rows, "row")
    table.notes.extend(notes)
    return table


def _first_line(text: str) -> str:
    return with_line_feeds(text).lstrip().partition("\n")[0]


def _is_object(text: str) -> bool:
    try:
        return isinstance(from_json(text), dict)
    except ValueError:
        return False


def _is_json(text: str) -> bool:
    try:
        return isinstance(from_json(text), dict | list)
    except ValueError:
        return False


def _of_objects(
    path: Path,
    names: tuple[str, ...],
    batches: Iterable[list[tuple[int, dict[str, Any]]]],
    unit: Literal["line", "row"],
    remedy: str = "",
) -> OutsideTable:
    """A table of JSON objects, of which the first has ``names``."""
    first_names = set(names)

    def read(columns: Sequence[str]) -> Iterator[Row]:
        pick = picker(columns)
        for records in batches:
            for number, record in records:
                if not first_names.issuperset(record):
                    _require_known(table, number, record)
            yield from [(number, pick(record)) for number, record in records]

    table = OutsideTable(path, names, read, unit, remedy=remedy)
    return table


def _require_known(table: OutsideTable, number: int, record: Mapping[str, Any]) -> None:
    """Refuse a column that is meant by its name and that the first object lacks."""
    new = (name for name in record if name not in table.columns)
    name = next((name for name in new if known_name(name, table.looked_for)), None)
    if name is not None:
        raise table.error(
            number,
            f"has {short(name)}, which the first object lacks; give it in all of them, or in none",
        )


def _records_of(path: Path, content: dict[str, Any], notes: list[str]) -> list[dict[str, Any]]:
    """The rows of an object; none if it is no known form of a table."""
    if {"columns", "data"} <= content.keys() <= _SPLIT:  # as pandas writes tables, here and below
        return _split(path, content["columns"], content["data"])
    tables = (("image", "caption"), OF_PAIRS, ("sentence",), ("phrase", "box"))
    for names in tables:
        keys = [next((key for key in content if is_known(key, name)), None) for name in names]
        if None not in keys:
            return _columns(path, content, is_row=not _is_column(content[keys[0] or ""]))
    values = [*content.values()]
    if not values:
        return []
    if all(isinstance(value, dict) and value for value in values):
        inner = values[0].keys()
        if _are_numbers(inner) and all(value.keys() == inner for value in values):
            return _columns(path, content)
        return _by_name(path, {key: [value] for key, value in content.items()}, notes)
    of_objects = all(isinstance(value, list) and value and _are_objects(value) for value in values)
    if of_objects and _FILE_NAME.search(next(iter(content))):
        return _by_name(path, content, notes)
    arrays = [k for k, v in content.items() if isinstance(v, list) and v and _are_objects(v)]
    if len(arrays) == 1 and arrays != ["images"]:  # Karpathy's are read elsewhere
        notes.append(f"{path.name}: the rows are those of {short(arrays[0])}")
        return content[arrays[0]]
    cells = (v if isinstance(v, list) else [v] for v in values)
    texts = all(isinstance(text, str) for cell in cells for text in cell)
    if texts and not any(is_known(key, "caption") for key in content):
        return [{"image": name, "caption": value} for name, value in content.items()]
    return []


def _is_column(value: Any) -> bool:
    return isinstance(value, list | dict)


def _split(path: Path, names: Any, rows: Any) -> list[dict[str, Any]]:
    lists = [names, *rows] if isinstance(rows, list) else [names, rows]
    if not all(isinstance(row, list) and len(row) == len(names) for row in lists):
        raise SightlineError(
            f"{path}: expected as many values in each row of 'data' as 'columns' has; {_REMEDY}"
        )
    return [dict(zip(map(str, names), row, strict=True)) for row in rows]


def _columns(path: Path, content: dict[str, Any], *, is_row: bool = False) -> list[dict[str, Any]]:
    """The rows of an object of columns, each a list or an object of row → value.

    Args:
        is_row: whether it is itself a row, the only one of a file.
    """
    if is_row:
        return [content]
    columns = [list(v.values()) if isinstance(v, dict) else v for v in content.values()]
    lists = [column for column in columns if isinstance(column, list)]
    if len(lists) < len(columns) or len(set(map(len, lists))) > 1:
        raise SightlineError(f"{path}: expected columns of one length; {_REMEDY}")
    return [dict(zip(content, row, strict=True)) for row in zip(*lists, strict=True)]


def _by_name(
    path: Path, content: Mapping[str, list[dict[str, Any]]], notes: list[str]
) -> list[dict[str, Any]]:
    """The rows of an object of objects: its keys name images, or count its rows."""
    records = [record for several in content.values() for record in several]
    inner = next((key for record in records for key in record if is_known(key, "image")), None)
    if inner is None:
        if not (
            _FILE_NAME.search(next(iter(content)))
            or any(known_name(key, [*KNOWN]) for key in records[0])
        ):
            return []
        notes.append(f"{path.name}: its keys, such as {short(next(iter(content)))}, name images")
        return [{"image": key, **record} for key, group in content.items() for record in group]
    if _are_numbers(content):
        return records
    file_name = next(filter(_FILE_NAME.search, content), None)
    if file_name is not None:
        raise SightlineError(
            f"{path}: its keys, such as {short(file_name)}, and {short(inner)} in its objects may "
            f"both name images; remove {short(inner)} from them, or write a list of the objects"
        )
    return []


def _are_numbers(keys: Iterable[str]) -> bool:
    return all(map(str.isdecimal, keys))


def _are_objects(values: list[Any]) -> bool:
    return all(isinstance(value, dict) for value in values)
