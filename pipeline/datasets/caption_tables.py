"""Captions in a table of any format, or beside their images: their columns, and their cells."""

from __future__ import annotations

import ast
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from io import StringIO
from itertools import islice
from pathlib import Path, PurePosixPath
from token import STRING
from tokenize import generate_tokens
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from pipeline.datasets.captions import (
    OPTIONAL,
    CaptionRow,
    Captions,
    captions_in,
    note_quoted,
    read_token,
)
from pipeline.datasets.images import files_below, found_images, suffix_of
from pipeline.datasets.source import DatasetError, split_name
from sightline.files.file_kinds import file_kind
from sightline.tables.outside_columns import (
    FETCH,
    OutsideTable,
    Row,
    Wanted,
    by_name,
    choose,
    is_address,
    texts_in,
    wanted_of_captions,
)
from sightline.tables.outside_tables import (
    BATCH,
    SUFFIXES,
    TABS,
    field_of,
    has_known_header,
    open_table,
    text_suffix,
)
from sightline.user_files import CONTROL, OBJECT, read_json, read_lines, short

EXPECTED = "a table of captions: CSV, TSV, JSON lines, JSON, Parquet or Arrow"
_TALKS = (
    "conversations, as LLaVA has them, not captions; write the answer that describes each image "
    "into an object of its own, with its image and caption"
)
_HINTS = {
    ("images", "annotations"): "COCO's captions; use the kind `coco`, with this file as "
    "`captions.train` or `captions.val`",
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
Beside = Literal["txt", "json"]
"""Captions that lie beside their images: ``0001.jpg`` with ``0001.txt`` or ``0001.json``."""
_IMAGE = "image"
_VALIDATE = TypeAdapter(CaptionRow).validator.validate_python


def read_captions(path: Path, wanted: Mapping[str, Wanted] | None = None) -> Captions:
    """The captions of a file: a table of any format, or Flickr's ``name.jpg#k<TAB>caption``.

    Text is a table by its suffix, or if its first line consists of names that are known here. A
    cell holds one caption or a list of them.

    Args:
        wanted: its columns; None: those with usual names.

    Raises:
        SightlineError: no such file, a column that is not there, a wrong value, or a line that is
            no caption.
    """
    if path.is_dir():
        raise DatasetError(
            f"{path}: a folder, expected a file of captions; those that lie beside the images are "
            "read without `captions`, by `beside: txt` or `beside: json`, and folders of tables by "
            "the kind `huggingface`"
        )
    is_text = not path.is_file() or file_kind(path) in (None, "gzip")
    if is_text and text_suffix(path) not in SUFFIXES and not has_known_header(path):
        return read_token(path)
    table = open_table(path, EXPECTED)
    wanted = wanted or wanted_of_captions()
    named = wanted["image"].names and wanted["caption"].names
    if not named and (what := table.known_as(_HINTS)):
        raise DatasetError(f"{path}: {what}")
    captions = _captions_of(table, wanted)
    if text_suffix(path) in TABS:
        note_quoted(captions)
    return captions


def _captions_of(table: OutsideTable, wanted: Mapping[str, Wanted]) -> Captions:
    """The captions of a table, which may be made of many files."""
    chosen = choose(table, wanted)
    captions = Captions(str(table.path), not_read=table.not_read)
    _Filler(table, chosen, captions).fill()
    captions.remarks = [*table.notes, *captions.remarks]
    return captions


def captions_beside(root: Path, beside: Beside, wanted: Mapping[str, Wanted]) -> Captions:
    """The captions of the images below ``root``: the lines of a text, or fields of an object.

    A text without an image, or with several (``1.jpg`` and ``1.png``), is a problem of its own.
    """
    kind = f".{beside}"
    images, _ = found_images(root, root)
    images_of: dict[str, list[str]] = defaultdict(list)
    for path in sorted(images):
        images_of[_stem(path)].append(path)
    files = sorted(name for name in files_below(root, root, Counter()) if suffix_of(name) == kind)
    if not files:
        raise DatasetError(f"{root}: no {kind} lies beside its images; check `beside`")
    alone = [name for name in files if len(images_of.get(_stem(name), ())) == 1]
    pairs = [(images_of[_stem(name)][0], root / name) for name in alone]
    captions = _captions_of(_table_beside(root, pairs), wanted)
    for name in files:
        images = images_of.get(_stem(name), [])
        if len(images) != 1:
            problem = "captions_of_ambiguous_image" if images else "captions_without_image"
            captions.problems[problem].append(" or ".join((name, *images)))
    return captions


def _stem(path: str) -> str:
    return str(PurePosixPath(path).with_suffix(""))


def _table_beside(root: Path, pairs: Sequence[tuple[str, Path]]) -> OutsideTable:
    """The captions of images, each in a file of its own."""

    def record(image: str, path: Path) -> dict[str, Any]:
        if suffix_of(path.name) == ".json":
            return {**read_json(path, OBJECT, "an object with a caption"), _IMAGE: image}
        text = "\n".join(read_lines(path, "one caption per line"))
        return {_IMAGE: image, "caption": captions_in(text)}

    def read(columns: Sequence[str]) -> Iterator[Row]:
        for image, path in pairs:
            values = record(image, path)
            yield path.relative_to(root).as_posix(), [field_of(values, name) for name in columns]

    names = tuple(record(*pairs[0])) if pairs else (_IMAGE, "caption")
    return OutsideTable(root, names, read, "file")


def choose_splits(captions: Captions, theirs: Mapping[str, Sequence[str]]) -> None:
    """Keep the captions whose split is chosen, under our names; images of others are left out.

    Args:
        theirs: our name of a split → the values of the column that belong to it.
    """
    if not captions.splits:
        raise DatasetError(
            f"{captions.where}: has no column of splits for `splits` to choose from; name it with "
            "`split_column`, or remove `splits`"
        )
    values_there = set(captions.splits)
    for name, values in theirs.items():
        if missing := [value for value in values if value not in values_there]:
            raise DatasetError(
                f"{captions.where}, column split: no row has {missing[0]!r}, which "
                f"`splits.{name}` names; it has {', '.join(map(short, sorted(values_there)))}"
            )
    ours = {
        value: split_name(name, "splits") for name, values in theirs.items() for value in values
    }
    kept = [i for i, value in enumerate(captions.splits) if value in ours]
    captions.left_out |= {*captions.images}.difference(captions.images[i] for i in kept)
    captions.splits = [ours[captions.splits[i]] for i in kept]
    captions.other_splits = len(captions.images) - len(kept)
    for name in ("images", "texts", "ids", "numbers", "lines"):
        if column := getattr(captions, name):
            setattr(captions, name, [column[i] for i in kept])


class _Filler:
    """Fills captions with the rows of a table."""

    def __init__(
        self, table: OutsideTable, columns: dict[str, tuple[str, ...]], captions: Captions
    ) -> None:
        self._table, self._columns, self._captions = table, columns, captions
        self._optional: dict[str, dict[int, str]] = {name: {} for name in OPTIONAL}
        self._trimmed = dict.fromkeys(OPTIONAL, 0)
        self._lists = self._cells = 0
        self._names: dict[str, str] = {}  # one object for each name of an image

    def fill(self) -> None:
        """Read every row."""
        names = [column for columns in self._columns.values() for column in columns]
        rows = self._table.read(names)
        if list(self._columns) == ["image", "caption"] and len(names) == 2:
            rows = self._plain_left_out(rows)
        for number, values in rows:
            for record in self._records(number, values):
                self._add(number, record)
        self._check()

    def _plain_left_out(self, rows: Iterator[Row]) -> Iterator[Row]:
        """The rows of batches with anything but names and texts; others, as most, are added."""
        captions, same = self._captions, self._names.setdefault
        while batch := list(islice(rows, BATCH)):
            numbers, values = zip(*batch, strict=True)
            images, texts = zip(*values, strict=True)
            if not _are_plain(images, texts):
                yield from batch
                continue
            self._cells += len(batch)
            captions.lines += numbers
            captions.images += [same(image, image) for image in images]
            captions.texts += texts

    def _records(self, number: int | str, values: Sequence[Any]) -> Iterator[dict[str, Any]]:
        """One for each caption of a row, without what is missing."""
        row = by_name(self._columns, values)
        texts_of_row = row.pop("caption")
        record = {name: cells[0] for name, cells in row.items() if cells[0] is not None}
        for name in {"image", "split"} & row.keys():
            record.setdefault(name, "")
        if self._table.text:
            self._trim(record)
        texts = [text for cell in texts_of_row for text in self._texts(number, cell)]
        ids = record.pop("caption_id", None)
        if ids is not None and len(texts) > 1 and not isinstance(ids, list):
            ids = [f"{ids}#{k}" for k in range(len(texts))]
        ids = ids if isinstance(ids, list) else [ids] * len(texts)
        if len(ids) != len(texts):
            raise self._table.error(number, f"caption_id: {len(ids)} for {len(texts)} captions")
        for text, of_text in zip(texts, ids, strict=True):
            own_values = {"caption": text, "caption_id": of_text}
            yield record | {name: v for name, v in own_values.items() if v is not None}

    def _trim(self, record: dict[str, Any]) -> None:
        for name in OPTIONAL:
            if name in record and (value := record[name].strip()) != record[name]:
                record[name] = value
                self._trimmed[name] += 1

    def _texts(self, number: int | str, cell: Any) -> list[Any]:
        """The captions of a cell; of an object, its only text. One that is missing is empty."""
        if self._table.text and isinstance(cell, str):
            self._cells += 1
            cell = self._list_in(number, cell)
        # NaN is pandas' missing text
        texts = texts_in(cell) if isinstance(cell, list) else [cell]
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

    def _add(self, number: int | str, record: dict[str, Any]) -> None:
        self._refuse_pictures(number, record.get("image"))
        if type(record.get("image")) is int:
            record["image"] = str(record["image"])
        try:
            row = _VALIDATE(record)
        except ValidationError as error:
            sources = (f"{name} from {', '.join(names)}" for name, names in self._columns.items())
            raise self._table.refusal(number, error, f"; columns: {'; '.join(sources)}") from None
        captions = self._captions
        captions.lines.append(number)
        captions.images.append(self._names.setdefault(row["image"], row["image"]))
        captions.texts.append(row["caption"])
        for name, values in self._optional.items():
            if (value := row.get(name)) is not None:
                values[len(captions.lines) - 1] = str(value)

    def _refuse_pictures(self, number: int | str, image: Any) -> None:
        """Refuse URLs and the images themselves, in place of names."""
        if is_address(image):
            raise self._table.error(
                number, f"image: {short(image)} is a URL, expected a name; {FETCH}"
            )
        if isinstance(image, (bytes, dict)):
            raise self._table.error(
                number,
                "image: the table holds the images themselves, expected names of files; use the "
                "kind `huggingface`",
            )

    def _check(self) -> None:
        """Check what concerns all rows, and set the columns that not every table has."""
        captions, path = self._captions, self._table.path
        if 0 < self._lists < self._cells:
            raise DatasetError(
                f"{path}: caption: {self._lists:,} of {self._cells:,} cells hold lists, the others "
                "text; write all of them in one way"
            )
        if self._lists:
            captions.remarks.append(f"{path.name}: lists of captions read from its cells")
        captions.remarks += [
            f"{path.name}: white space around {count:,} values of {name} left out"
            for name, count in self._trimmed.items()
            if count
        ]
        total = len(captions.texts)
        for name, values in self._optional.items():
            if 0 < len(values) < total:
                first = next(captions.lines[i] for i in range(total) if i not in values)
                raise self._table.error(
                    first,
                    f"{name}: is missing, but other {self._table.unit}s have it; give it in all of "
                    "them, or in none",
                )
        captions.splits, captions.ids = (list(self._optional[name].values()) for name in OPTIONAL)


def _are_plain(images: Sequence[Any], texts: Sequence[Any]) -> bool:
    """Whether all are texts that the schema takes, with no URL and nothing like a list in them."""
    try:
        names, letters = "".join(images), "".join(texts)
    except TypeError:
        return False
    return not ("[" in letters or "http" in names.lower() or CONTROL.search(names + letters))


def _literal(text: str) -> Any:
    """The value that a text writes as JSON or as Python; None: it writes none."""
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return read(text)
    return None
