"""Captions in tables: which columns are meant, and what their cells say, whatever the source."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from io import StringIO
from itertools import islice
from pathlib import Path
from token import STRING
from tokenize import generate_tokens
from typing import Any, NotRequired

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from pipeline.datasets.samples import (
    Plain,
    QuotedTexts,
    Sample,
    Samples,
)
from pipeline.datasets.source import DatasetError, PrepareReport, split_name
from sightline.tables.arrow_files import plain_type
from sightline.tables.outside_columns import (
    OutsideTable,
    Row,
    Wanted,
    as_columns,
    by_name,
    choose,
    texts_in,
)
from sightline.tables.outside_tables import (
    BATCH,
    TABS,
    text_suffix,
)
from sightline.user_files import CONTROL, Identifier, short

_IMAGE, _SPLIT, _ID = "image", "split", "caption_id"
_SHOWN = 20  # values of a column
LONGEST_NAME = 1024
"""Characters of the name of an image; what is longer is an image as text."""
_TYPES = {
    _IMAGE: (("string", "binary"), "bytes, a path, or a struct of both"),
    "caption": (("string",), "a string or a list of strings"),
    _SPLIT: (("string",), "a string"),
}
"""Our name of a column → the types that fit, and the same for messages."""


class _Row(TypedDict):
    """A caption of a table, with what stands beside it."""

    image: str | bytes
    caption: str
    split: NotRequired[str]
    caption_id: NotRequired[Identifier]


_VALIDATE = TypeAdapter(_Row).validator.validate_python


def chosen_splits(
    splits: Mapping[str, str | Sequence[str]] | None,
) -> dict[str, str] | None:
    """Value of a split → our name for it, of the setting ``splits``."""
    if splits is None:
        return None
    return {
        theirs: split_name(name, "splits")
        for name, several in splits.items()
        for theirs in as_columns(several)
    }


def no_splits(path: Path | str) -> DatasetError:
    """The error for `splits` of values where there is no column of splits."""
    return DatasetError(
        f"{path}: has no column of splits for `splits` to choose from; name it with "
        "`split_column`, or remove `splits`"
    )


class CaptionTables:
    """Reads the captions of one table, or of several of a data set, into samples.

    Args:
        columns: those that a reader needs or can use.
        splits: value of the column of splits → our name for it; None: all, under usual names.
        report: gets what was read otherwise than it is written, and what was not read.
        held: whether the tables hold their images, or name them by path. Such tables have splits
            themselves: a column of a usual name is only mentioned.
    """

    def __init__(
        self,
        columns: Mapping[str, Wanted],
        splits: Mapping[str, str] | None,
        report: PrepareReport,
        *,
        held: bool = False,
    ) -> None:
        left_out = (_SPLIT,) if held and not columns[_SPLIT].names else ()
        self._requested = {ours: column for ours, column in columns.items() if ours not in left_out}
        self._split_setting = columns[_SPLIT].setting
        self._splits, self._report, self._held = splits, report, held
        self._values: dict[str, str] = {}  # of the column of splits → where it stands first
        self._unused_splits: set[str] = set()
        self._not_read: set[str] = set()
        self._guessed: dict[str, tuple[str, ...]] | None = None

    def samples(self, table: OutsideTable) -> Samples:
        """The samples of a table, one for each of its rows."""
        reader = _TableReader(table, self._requested, self._splits, self._values, held=self._held)
        self._not_read |= set(table.not_read)
        yield from reader.read(self._unused_splits)
        if reader.columns != self._guessed:
            self._guessed = reader.columns
            self._report.guess(*table.notes)
        reader.note(self._report)

    def only(self, table: OutsideTable) -> Samples:
        """The samples of the only table."""
        yield from self.samples(table)
        self.finish()

    def finish(self) -> None:
        """Report what concerns all tables.

        Raises:
            DatasetError: a split that was chosen is nowhere.
        """
        for theirs, ours in (self._splits or {}).items():
            if _SPLIT in self._requested and self._values and theirs not in self._values:
                raise DatasetError(
                    f"{next(iter(self._values.values()))}: no row has {theirs!r}, which "
                    f"`splits.{ours}` names; it has "
                    f"{', '.join(sorted(filter(None, self._values))[:_SHOWN])}"
                )
        if self._unused_splits:
            self._report.guess(
                f"column {_SPLIT!r} ({', '.join(sorted(self._unused_splits)[:_SHOWN])}) is not "
                f"used; `{self._split_setting}` takes the splits of the rows from it"
            )
        self._report.leave_columns(self._not_read)


class _TableReader:
    """Reads the cells of one table."""

    def __init__(
        self,
        table: OutsideTable,
        requested: Mapping[str, Wanted],
        splits: Mapping[str, str] | None,
        values: dict[str, str],
        *,
        held: bool,
    ) -> None:
        self._table, self._requested, self._splits, self._values = table, requested, splits, values
        self.columns = choose(table, requested)
        if splits is not None and _SPLIT in requested and _SPLIT not in self.columns:
            raise no_splits(table.path)
        self._labels = self._labels_of(self.columns.get(_SPLIT, ()))
        self._require_types(held)
        self._unused = self._unused_column()
        self._trimmed: dict[str, int] = dict.fromkeys((_SPLIT, _ID), 0)
        self._lists = self._cells = 0
        self._with_ids: int | str | None = None  # the first rows with and without
        self._without_ids: int | str | None = None
        self._names: dict[str, str] = {}  # one object for each name of an image
        self._ours: dict[str, str | None] = {}
        self._quoted = QuotedTexts() if text_suffix(table.path) in TABS else None

    def read(self, unused: set[str]) -> Samples:
        """Every row.

        Args:
            unused: gets the values of a column of splits that is not used.
        """
        columns = {**self.columns, "": self._unused} if self._unused else self.columns
        names = [column for of_ours in columns.values() for column in of_ours]
        rows = self._table.read(names)
        if list(columns) == [_IMAGE, "caption"] and len(names) == 2:
            yield from self._read_plain(rows)
            return
        for number, values in rows:
            row = by_name(columns, values)
            unused.update(filter(None, map(self._label, row.pop("", ()))))
            yield self._sample(number, row)

    def note(self, report: PrepareReport) -> None:
        """Report what was read otherwise than it is written."""
        path = self._table.path
        if 0 < self._lists < self._cells:
            raise DatasetError(
                f"{path}: caption: {self._lists:,} of {self._cells:,} cells hold lists, the others "
                "text; write all of them in one way"
            )
        if self._lists:
            report.guess(f"{path.name}: lists of captions read from its cells")
        report.guess(
            *(
                f"{path.name}: white space around {count:,} values of {name} left out"
                for name, count in self._trimmed.items()
                if count
            )
        )
        if self._quoted is not None:
            self._quoted.note(report)

    def _read_plain(self, rows: Iterator[Row]) -> Samples:
        """Batches of nothing but names and texts, as most are, and the rows of others."""
        same = self._names.setdefault
        while batch := list(islice(rows, BATCH)):
            numbers, values = zip(*batch, strict=True)
            images, texts = zip(*values, strict=True)
            if not _are_plain(images, texts):
                for number, cells in batch:
                    yield self._sample(number, by_name(self.columns, cells))
                continue
            self._cells += len(batch)
            self._see_quoted(numbers, texts)
            yield Plain(numbers, [same(image, image) for image in images], texts)

    def _sample(self, number: int | str, row: dict[str, list[Any]]) -> Sample:
        texts = [text for cell in row["caption"] for text in self._texts(number, cell)]
        image = self._image(number, row[_IMAGE][0])
        ids = self._ids(number, row[_ID][0], len(texts)) if _ID in row else None
        split = self._split(number, row[_SPLIT][0]) if _SPLIT in row else ""
        for k, text in enumerate(texts or [""]):
            record = {_IMAGE: image, "caption": text}
            if ids:
                record[_ID] = ids[k]
            try:
                _VALIDATE(record)
            except ValidationError as error:
                sources = (
                    f"{name} from {', '.join(names)}" for name, names in self.columns.items()
                )
                hint = f"; columns: {'; '.join(sources)}"
                raise self._table.refusal(number, error, hint) from None
        self._see_quoted([number] * len(texts), texts)
        return Sample(number, image, texts, split, None if ids is None else [*map(str, ids)])

    def _see_quoted(self, numbers: Sequence[int | str], texts: Sequence[str]) -> None:
        if self._quoted is not None:
            self._quoted.see(numbers, texts)

    def _image(self, number: int | str, cell: Any) -> Any:
        """The name or the bytes of a cell's image; of a list of one, of that."""
        if isinstance(cell, list) and len(cell) == 1:
            cell = cell[0]
        if isinstance(cell, dict) and {"bytes", "path"} & cell.keys():
            if isinstance(cell.get("bytes"), str):
                raise self._table.error(
                    number,
                    "image: the table holds the images themselves, as text; write Parquet, where "
                    "they are bytes, and use the kind `huggingface`",
                )
            cell = cell.get("path") if cell.get("bytes") is None else cell["bytes"]
        if type(cell) is int:
            cell = str(cell)
        if not isinstance(cell, str):
            return "" if cell is None or cell != cell else cell
        if len(cell) > LONGEST_NAME:
            raise self._table.error(
                number,
                f"its image is text of {len(cell):,} characters, expected bytes or a path; of "
                "base64, write the bytes that it decodes to",
            )
        return self._names.setdefault(cell, cell)

    def _texts(self, number: int | str, cell: Any) -> list[Any]:
        """The captions of a cell; of an object, its only text. One that is missing is empty."""
        if self._table.text and isinstance(cell, str):
            self._cells += 1
            cell = self._list_in(number, cell)
        # NaN is pandas' missing text
        texts = texts_in(cell) if isinstance(cell, list) else texts_in([cell])
        return ["" if text is None or text != text else text for text in texts]

    def _list_in(self, number: int | str, cell: str) -> str | list[Any]:
        """The list that is written into a cell, as pandas and the hub do; else the cell."""
        bare = cell.strip()
        if not (bare.startswith("[") and bare.endswith("]")):
            return cell
        values = _literal(bare)
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            return cell
        strings = sum(token.type == STRING for token in generate_tokens(StringIO(bare).readline))
        if strings > len(values):  # NumPy prints no commas, and Python joins such strings
            raise self._table.error(
                number,
                f"caption: {short(bare)} is a NumPy array as it prints, whose texts cannot be "
                "told apart; write lists (`.tolist()`)",
            )
        self._lists += 1
        return values

    def _ids(self, number: int | str, cell: Any, count: int) -> list[Any] | None:
        """An id for each caption of a row: one, numbered if there are several captions, or a list.

        Raises:
            SightlineError: their number is another, or only some rows have ids.
        """
        if cell is None:
            self._without_ids = self._without_ids or number
        else:
            self._with_ids = self._with_ids or number
        if self._without_ids is not None and self._with_ids is not None:
            raise self._table.error(
                self._without_ids,
                f"{_ID}: is missing, but other {self._table.unit}s have it; give it in all of "
                "them, or in none",
            )
        if cell is None:
            return None
        if isinstance(cell, str) and self._table.text:
            cell = self._without_space(_ID, cell)
        if not isinstance(cell, list):
            return [cell] if count == 1 else [f"{cell}#{k}" for k in range(count)]
        ids = texts_in(cell)
        if len(ids) != count:
            raise self._table.error(number, f"{_ID}: {len(ids)} for {count} captions")
        return ids

    def _without_space(self, name: str, cell: str) -> str:
        bare = cell.strip()
        self._trimmed[name] += bare != cell
        return bare

    def _split(self, number: int | str, cell: Any) -> str | None:
        """Our name for a value of the column of splits; None: it was not chosen."""
        value = self._label(cell)
        if isinstance(value, str) and self._table.text:
            value = self._without_space(_SPLIT, value)
        if not isinstance(value, str):
            raise self._table.error(number, f"{_SPLIT}: found {short(value)}, expected text")
        if value not in self._ours:
            where = f"{self._table.path}, column {self.columns[_SPLIT][0]}"
            self._values.setdefault(value, where)
            if self._splits is not None:
                self._ours[value] = self._splits.get(value)
            else:
                choice = f"{where} (choose as splits.dev=[…])"
                self._ours[value] = split_name(value, choice) if value.strip() else ""
        return self._ours[value]

    def _label(self, cell: Any) -> Any:
        """The name of a class label; of any other value, itself, and of a missing one no text."""
        if self._labels and type(cell) is int:
            return self._labels[cell] if 0 <= cell < len(self._labels) else ""
        return "" if cell is None or cell != cell else cell

    def _labels_of(self, columns: Sequence[str]) -> tuple[str, ...]:
        """The names of a column's class labels, as `datasets` keeps them in a file's metadata."""
        schema = self._table.schema
        metadata = {} if schema is None else schema.metadata or {}
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            features = json.loads(metadata[b"huggingface"])["info"]["features"]
            (feature,) = (features[column] for column in columns)
            if feature["_type"] == "ClassLabel":
                return tuple(map(str, feature["names"]))
        return ()

    def _require_types(self, held: bool) -> None:
        schema = self._table.schema
        for ours, (types, expected) in _TYPES.items():
            for name in self.columns.get(ours, ()):
                if schema is None or name not in schema.names:
                    continue
                kind = schema.field(name).type
                if ours == _IMAGE and not held and pa.types.is_integer(kind):
                    continue  # a number may be a name
                if not (_fits(kind, types) or (ours == _SPLIT and self._labels)):
                    listed = ", ".join(f"{field.name}: {field.type}" for field in schema)[:500]
                    raise DatasetError(
                        f"{self._table.path}: column {name!r} is {kind}, expected {expected}; name "
                        f"another column with `{self._requested[ours].setting}` ({listed})"
                    )

    def _unused_column(self) -> tuple[str, ...]:
        """A column of splits that says nothing here: it is mentioned with its values."""
        table = self._table
        is_unread = _SPLIT not in self._requested and table.not_read.count(_SPLIT) == 1
        if not is_unread or table.schema is None:
            return ()
        self._labels = self._labels_of((_SPLIT,))
        if not self._labels and plain_type(table.schema.field(_SPLIT).type) != "string":
            return ()
        table.not_read.remove(_SPLIT)
        return (_SPLIT,)


def _fits(kind: pa.DataType, types: tuple[str, ...]) -> bool:
    """Whether a column's values are of one of these types, alone, in lists, or in objects of one.

    An image may be an object of ``bytes`` and ``path``, as `datasets` has them.
    """
    if pa.types.is_struct(kind):
        if "binary" in types and {field.name for field in kind} <= {"bytes", "path"}:
            parts = {"bytes": "binary", "path": "string"}
            return all(plain_type(field.type) in (parts[field.name], "null") for field in kind)
        return kind.num_fields == 1 and _fits(kind.field(0).type, types)
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and plain_type(kind) not in types:
        return _fits(kind.value_type, types)
    return plain_type(kind).removeprefix("list of ") in types


def _are_plain(images: Sequence[Any], texts: Sequence[Any]) -> bool:
    """Whether all are names and texts, with no URL, list or control character in them."""
    try:
        names, letters = "".join(images), "".join(texts)
    except TypeError:
        return False
    if "[" in letters or "http" in names.lower() or CONTROL.search(names + letters):
        return False
    return all(map(str.strip, images)) and len(max(images, key=len)) <= LONGEST_NAME


def _literal(text: str) -> Any:
    """The value that a text writes as JSON or as Python; None: it writes none."""
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return read(text)
    return None
