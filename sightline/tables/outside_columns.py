"""Tables of others: what their columns are called, and which of them are meant."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import ValidationError

from sightline.errors import SightlineError
from sightline.user_files import refusal, short

if TYPE_CHECKING:
    import pyarrow as pa

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

_ADDRESSES = ("url", "urls", "image_url", "image_urls", "img_url", "link")
FETCH = "fetch them with `img2dataset --output_format webdataset` and use the kind `webdataset`"
"""What to do about URLs in place of images."""

OF_CAPTIONS = ("image", "caption", "split", "caption_id")
OF_PAIRS = ("score", "sentence1", "sentence2")

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
        schema: of Parquet and Arrow.
        notes: what was read otherwise than its suffix says.
        not_read: columns that `choose` did not choose.
        looked_for: our names of the columns that `choose` looked for by their usual names.
        remedy: what to do if it lacks a column, where none of it can be meant; empty: choose one.
    """

    path: Path
    columns: tuple[str, ...]
    read: Callable[[Sequence[str]], Iterator[Row]]
    unit: Literal["line", "row", "file"] = "line"
    text: bool = False
    schema: pa.Schema | None = None
    notes: list[str] = field(default_factory=list)
    not_read: list[str] = field(default_factory=list)
    looked_for: list[str] = field(default_factory=list)
    remedy: str = ""

    def error(self, number: int | str, fault: str) -> SightlineError:
        """The error for what is wrong with a row."""
        return SightlineError(f"{self.path}: {self.unit} {number}: {fault}")

    def refusal(self, number: int | str, error: ValidationError, hint: str = "") -> SightlineError:
        """The error for what a schema found in a row."""
        return refused(self.path, f"{self.unit} {number}", error, hint)

    def known_as(self, readers: Mapping[tuple[str, ...], str]) -> str | None:
        """What a table is that is meant for another reader: columns that one has → words."""
        return next(
            (reader for names, reader in readers.items() if {*names} <= {*self.columns}), None
        )


class Wanted(NamedTuple):
    """A column that a reader needs or can use.

    Attributes:
        names: its name or names in the file, as the user wrote them; empty: one of the known names.
            ``sentences.raw`` is the field ``raw`` of the objects in ``sentences``.
        setting: what gives it, for messages; by default our name with ``_column``. None: nothing.
        required: whether there must be one.
    """

    names: tuple[str, ...] = ()
    setting: str | None = ""
    required: bool = True


def as_columns(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """The columns that a setting names, for `Wanted`: one, several or none."""
    return (names,) if isinstance(names, str) else tuple(names or ())


def wanted_of_captions(
    image: str | None = None,
    caption: str | Sequence[str] | None = None,
    split: str | None = None,
    caption_id: str | None = None,
    setting: str = "{}_column",
) -> dict[str, Wanted]:
    """The columns of captions, under the user's names; those without are looked for.

    Args:
        setting: what gives them; ``{}`` is our name.
    """
    names = dict(zip(OF_CAPTIONS, (image, caption, split, caption_id), strict=True))
    return {
        ours: Wanted(as_columns(theirs), setting.format(ours), ours in ("image", "caption"))
        for ours, theirs in names.items()
    }


def texts_in(cell: Any) -> list[Any]:
    """The texts of a cell: itself, or the items of its list; of an object its only value."""
    items = cell if isinstance(cell, list) else [cell]
    return [next(iter(i.values())) if isinstance(i, dict) and len(i) == 1 else i for i in items]


def by_name(columns: Mapping[str, Sequence[str]], values: Sequence[Any]) -> dict[str, list[Any]]:
    """Our names → the cells that their columns have in a row."""
    cells = iter(values)
    return {ours: [next(cells) for _ in theirs] for ours, theirs in columns.items()}


def choose(table: OutsideTable, requested: Mapping[str, Wanted]) -> dict[str, tuple[str, ...]]:
    """Our name of each wanted column that is there → its names in the file; notes the guesses.

    Raises:
        SightlineError: a given or required column is not there, or two may be meant.
    """
    table.looked_for[:] = [name for name, column in requested.items() if not column.names]
    chosen = {name: _columns(table, name, column) for name, column in requested.items()}
    chosen = {name: columns for name, columns in chosen.items() if columns}
    table.notes.extend(
        f"{table.path.name}: column {short(column)} read as {name}"
        for name, columns in chosen.items()
        for column in columns
        if column != name and not requested[name].names
    )
    selected = [column for columns in chosen.values() for column in columns]
    used = {*selected, *(column.partition(".")[0] for column in selected)}
    table.not_read[:] = [column for column in table.columns if column not in used]
    for name in ("caption", "split"):
        left = [
            c for c in table.columns if is_known(c, name) and c not in used and name in requested
        ]
        if left:
            setting = requested[name].setting
            chooses = "" if setting is None else f"; `{setting or f'{name}_column'}` chooses it"
            table.notes.append(f"{table.path.name}: column {short(left[0])} is not used{chooses}")
    return chosen


def _columns(table: OutsideTable, name: str, request: Wanted) -> tuple[str, ...]:
    available = ", ".join(map(short, table.columns)) or "none"
    setting = request.setting or f"{name}_column"
    for column in request.names:
        # a cell of text has no fields
        within = column if table.text else column.partition(".")[0]
        if within not in table.columns and column not in table.columns:
            raise SightlineError(
                f"{table.path}: has no column {column!r}, which `{setting}` names; it has "
                f"{available}"
            )
    if request.names:
        return request.names
    remedy = f"call one {name!r}" if request.setting is None else f"choose one with `{setting}`"
    remedy = table.remedy or remedy
    if table.text and not any(known_name(column, [*KNOWN]) for column in table.columns):
        remedy += " or, if the first line is not a header, write one above it"
    candidates = [column for column in table.columns if is_known(column, name)]
    candidates = [column for column in candidates if column.strip().lower() == name] or candidates
    if len(candidates) == 1:
        return (candidates[0],)
    if candidates:
        raise SightlineError(
            f"{table.path}: {' and '.join(map(short, candidates))} may both be the {name}; {remedy}"
        )
    if request.required and name == "image" and (address := _address_in(table)):
        raise SightlineError(
            f"{table.path}: {short(address)} gives URLs, expected names of images; {FETCH}"
        )
    if request.required:
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
    addresses = (c for c in table.columns if is_address(c) or c.strip().lower() in _ADDRESSES)
    return next(addresses, None)


def field_of(record: Mapping[str, Any], column: str) -> Any:
    """A value of an object; with dots, of the objects in it, or of each in a list."""
    if column in record or "." not in column:
        return record.get(column)
    name, _, subfield = column.partition(".")
    inner = record.get(name)
    if isinstance(inner, list):
        return [field_of(item, subfield) for item in inner if isinstance(item, dict)]
    return field_of(inner, subfield) if isinstance(inner, dict) else None


def picker(columns: Sequence[str]) -> Callable[[Mapping[str, Any]], list[Any]]:
    """What takes the values of some columns out of an object."""
    if any("." in column for column in columns):
        return lambda record: [field_of(record, column) for column in columns]
    return lambda record: [record.get(column) for column in columns]


def is_known(column: str, name: str) -> bool:
    """Whether a column is known by its name."""
    return column.strip().lower() in KNOWN[name]


def known_name(column: str, ours: Sequence[str] = OF_CAPTIONS) -> str | None:
    """What a column is, by its name; by default one of captions."""
    return next((name for name in ours if is_known(column, name)), None)


def refused(path: Path, place: str, error: ValidationError, hint: str) -> SightlineError:
    """The error for what a schema found in ``place`` of a file."""
    return refusal(path, error, lambda loc: ": ".join((place, *map(str, loc))), hint)
