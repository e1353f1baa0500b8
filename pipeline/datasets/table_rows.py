"""Rows of tables with images and captions become manifests: `rows_to_manifests`, for any reader.

Images that rows hold are written once into tar files, where each has a place of its own; images
that rows name by path stay where they are.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.datasets.image_tars import ImageTars
from pipeline.datasets.images import any_pixel_count
from pipeline.datasets.manifests import ManifestRows, write_files
from pipeline.datasets.source import MANIFESTS, DatasetError, PrepareReport, Progress, split_name
from sightline.cache.keys import key_of_bytes
from sightline.cache.manifest import Place
from sightline.tables.arrow_files import cut, plain_type
from sightline.tables.outside_columns import (
    OutsideTable,
    Wanted,
    as_columns,
    by_name,
    choose,
    is_address,
    texts_in,
    wanted_of_captions,
)
from sightline.tables.outside_tables import table_of
from sightline.user_files import short

WRITES = (*MANIFESTS, "images/00000.tar")
"""What a source whose rows hold images writes (`Source.writes`)."""
_SPLIT = "split"
_SHOWN = 20  # values of a column
_LONGEST_PATH = 1024
_TYPES = {
    "image": (("string", "binary"), "bytes, a path, or a struct of both"),
    "caption": (("string", "list of string"), "a string or a list of strings"),
    "split": (("string",), "a string"),
}
"""Our name of a column → the types that fit, and the same for messages."""


def rows_to_manifests(
    batches: Iterable[pa.RecordBatch],
    folder: Path,
    report: PrepareReport,
    *,
    where: str,
    image: str | None = None,
    caption: str | Sequence[str] | None = None,
    caption_id: str | None = None,
    split: str | None = None,
    splits: Mapping[str, str | Sequence[str]] | None = None,
    images: Path | None = None,
    strict: bool = False,
    total: int = 0,
    progress: Progress | None = None,
) -> None:
    """Write the manifests of rows with images and captions, as any reader of Arrow yields them.

    Images that rows hold (bytes, or structs of ``bytes`` and ``path``) are written to tar files in
    ``folder / "images"``. Rows of one split with the same image are one image with several
    captions. Other columns are counted, and not read.

    Args:
        batches: all of one schema; read once. Ids are numbers of rows in the order of these.
        folder, report: those of `Source.prepare`.
        where: what the rows are from, for messages.
        image, caption, caption_id, split: columns; without a name, usual names are looked for, but
            for the split. A caption is a text or a list of texts, and may have several columns.
        splits: for each of train, dev and test, the values of ``split`` that belong to it.
        images: folder that paths in the rows start from; without it, rows hold their images.
        strict: refuse problems such as images without caption.
        total: number of rows, for ``progress``.

    Raises:
        SightlineError: there are no rows, a column is missing or has another type, or no image has
            a caption.
    """
    waiting = iter(batches)
    first = next(waiting, None)
    if first is None:
        raise DatasetError(f"{where}: contains no rows; check where the data are")

    def read(names: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        done = 0
        for batch in chain([first], waiting):
            yield from cut([batch], names, rows)
            done += len(batch)
            if progress is not None:
                progress("reading", done, max(total, done), "rows")

    table = table_of(Path(where), first.schema, read)
    write_tables(
        folder,
        ["rows"],
        [(table,)],
        report,
        wanted_of_captions(image, caption, split, caption_id, "{}"),
        chosen_splits(splits),
        images=images,
        unit="tables",
        where=where,
        strict=strict,
    )


def write_tables(
    folder: Path,
    names: Sequence[str],
    tables: Iterable[tuple[Any, ...]],
    report: PrepareReport,
    wanted: Mapping[str, Wanted],
    splits: Mapping[str, str] | None,
    *,
    images: Path | None,
    unit: str,
    where: str,
    strict: bool,
    beside: Path | None = None,
    progress: Progress | None = None,
) -> None:
    """`rows_to_manifests` for several tables.

    Args:
        names: of the tables.
        tables: the arguments of `_RowReader.read` for each.
        wanted: columns, of which those of splits and ids are not looked for.
        splits: value of a split, of the column or of the tables → our name for it; None: all,
            under their usual names.
        unit: what the tables are, in the plural.
        beside: folder that paths in the rows start from where ``images`` is not given; their
            images may then lie in the rows as well.
    """
    with closing(ImageTars(folder / "images")) as tars, any_pixel_count():
        reader = _RowReader(wanted, splits, where, images or beside, tars, report, images is None)
        rows = reader.read_all(tables)
        write_files(
            folder, names, rows, report, unit=unit, where=where, strict=strict, progress=progress
        )
        reader.finish()


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


def _fits(kind: pa.DataType, types: tuple[str, ...]) -> bool:
    """Whether a column's type is one of these; images may be a struct, as `datasets` has them."""
    if pa.types.is_struct(kind) and "binary" in types:
        parts = {"bytes": "binary", "path": "string"}
        return all(plain_type(field.type) == parts.get(field.name) for field in kind)
    return plain_type(kind) in types


def _image_of(cell: bytes | str | dict[str, Any] | None) -> tuple[bytes | None, str]:
    """Bytes of an image, or None; and its path, which may be empty."""
    if isinstance(cell, dict):
        return cell.get("bytes"), cell.get("path") or ""
    return (cell, "") if isinstance(cell, bytes) else (None, cell or "")


class _RowReader:
    """Reads the rows of tables in turn, and puts the images that they hold into tars.

    Args:
        root: base folder of the paths in the rows; None: rows hold their images.
        may_hold: whether rows may hold their images.
    """

    def __init__(
        self,
        wanted: Mapping[str, Wanted],
        splits: Mapping[str, str] | None,
        where: str,
        root: Path | None,
        tars: ImageTars,
        report: PrepareReport,
        may_hold: bool,
    ) -> None:
        self._wanted = {
            ours: column for ours, column in wanted.items() if column.required or column.names
        }
        self._split_setting = wanted[_SPLIT].setting
        self._splits, self._where = splits, where
        self._root, self._may_hold = root, may_hold
        self._real = os.path.realpath(root or "")
        self._tars, self._report = tars, report
        self._values: set[str] = set()  # of the column of splits
        self._unused_splits: set[str] = set()
        self._left_out = 0  # rows of splits that were not chosen
        self._not_read: set[str] = set()
        self._numbers: Counter[str] = Counter()  # their split → rows so far
        self._ids: dict[tuple[bytes, str], str] = {}  # key and split of an image → its id
        self._captions: Counter[str] = Counter()  # id → captions so far
        self._in_place = False
        self._guessed: dict[str, tuple[str, ...]] | None = None

    def read_all(self, tables: Iterable[tuple[Any, ...]]) -> Iterator[ManifestRows]:
        """`read` for the arguments of each table."""
        for arguments in tables:
            yield self.read(*arguments)
        chosen = (self._splits or {}).keys() if _SPLIT in self._wanted else set()
        if unknown := sorted(chosen - self._values):
            (column,) = self._wanted[_SPLIT].names
            raise DatasetError(
                f"{self._where}: column {column}: no row has split {unknown[0]!r}; it has "
                f"{', '.join(sorted(filter(None, self._values))[:_SHOWN])}"
            )

    def read(self, table: OutsideTable, theirs: str = "", split: str = "") -> ManifestRows:
        """The images and captions of a table.

        Args:
            theirs: the split of the table, as it is called there; may be empty.
            split: our name for it, unless there is a column of splits.
        """
        rows = ManifestRows()
        columns = self._columns_of(table)
        self._not_read |= set(table.not_read)
        if columns != self._guessed:
            self._guessed = columns
            self._report.guess(*table.notes)
        for _, values in table.read([name for names in columns.values() for name in names]):
            row = by_name(columns, values)
            name = "/".join(filter(None, (theirs, str(self._numbers[theirs]))))
            self._numbers[theirs] += 1
            self._unused_splits.update(filter(None, row.get("unused", ())))
            of_row = self._split_of(table, row["split"][0]) if "split" in row else split
            if of_row is None:
                self._left_out += 1
            else:
                self._add(rows, name, row, of_row)
        return rows

    def _columns_of(self, table: OutsideTable) -> dict[str, tuple[str, ...]]:
        """Our name → its columns; ``unused`` is one of splits that says nothing here."""
        columns, schema = choose(table, self._wanted), table.schema
        assert schema is not None
        for ours, (types, expected) in _TYPES.items():
            for name in columns.get(ours, ()):
                if name in schema.names and not _fits(kind := schema.field(name).type, types):
                    listed = ", ".join(f"{field.name}: {field.type}" for field in schema)[:500]
                    raise DatasetError(
                        f"{table.path}: column {name!r} is {kind}, expected {expected}; name "
                        f"another column with `{self._wanted[ours].setting}` ({listed})"
                    )
        there = _SPLIT not in self._wanted and table.not_read.count(_SPLIT) == 1
        if there and plain_type(schema.field(_SPLIT).type) == "string":
            columns["unused"] = (_SPLIT,)
            table.not_read.remove(_SPLIT)
        return columns

    def finish(self) -> None:
        """Report what concerns all tables."""
        report = self._report
        if self._unused_splits:
            report.guess(
                f"column {_SPLIT!r} ({', '.join(sorted(self._unused_splits)[:_SHOWN])}) is not "
                f"used; `{self._split_setting}={_SPLIT}` takes the splits of the rows from it"
            )
        if self._left_out:
            report.counts["rows_of_other_splits"] = self._left_out
        report.leave_columns(self._not_read)
        report.notes.append(
            f"the images were written to `images` once ({self._tars.bytes / 1e6:,.1f} MB)"
            if self._tars.count
            else f"the images stay in {self._root}"
        )

    def _split_of(self, table: OutsideTable, value: str | None) -> str | None:
        """Our name for a value of the column of splits; None: it was not chosen."""
        self._values.add(value or "")
        if self._splits is not None:
            return self._splits.get(value or "")
        where = f"{table.path}, column {self._wanted[_SPLIT].names[0]} (choose with `splits`)"
        return split_name(value, where) if value else ""

    def _add(self, rows: ManifestRows, name: str, row: dict[str, list[Any]], split: str) -> None:
        (data, location), path = _image_of(row["image"][0]), None
        if data is not None and not self._may_hold:
            raise DatasetError(
                f"row {name}: its column of images contains the images themselves, so `images` "
                "does not apply; remove it"
            )
        if data is None and (path := self._file_of(rows, name, location)) is not None:
            data = Path(path).read_bytes()
        if data is None:
            return
        key = key_of_bytes(data)
        image_id = self._ids.get((key, split))
        if image_id is None:
            image_id = self._ids[key, split] = name
            rows.add_image(image_id, self._place(name, data, path), data, split, key)
        self._add_captions(rows, name, row, image_id, split)

    def _add_captions(
        self, rows: ManifestRows, name: str, row: dict[str, list[Any]], image_id: str, split: str
    ) -> None:
        cells = [cell for cell in row["caption"] if cell is not None]
        texts = [(text, cell) for cell in cells for text in texts_in(cell)]
        own_ids = [item for cell in row.get("caption_id", ()) for item in texts_in(cell)]
        ids = own_ids or [None] * len(texts)
        if len(ids) != len(texts):
            raise DatasetError(f"row {name}: {len(ids)} ids for {len(texts)} captions")
        for (text, cell), caption_id in zip(texts, ids, strict=True):
            if not text and cell != text:
                rows.problem("empty_captions", f"{name}: one of its list")
                continue
            if not isinstance(text, str):
                raise DatasetError(f"row {name}: caption: found {short(text)}, expected text")
            number = self._captions[image_id]
            rows.add_caption(image_id, number, text, split, caption_id)
            self._captions[image_id] += 1

    def _file_of(self, rows: ManifestRows, name: str, location: str) -> str | None:
        """The file of a row that has only a path; None, with the reason noted, if there is none."""
        if len(location) > _LONGEST_PATH:
            raise DatasetError(
                f"{self._where}: row {name}: its image is text of {len(location):,} characters, "
                "expected bytes or a path; of base64, write the bytes that it decodes to"
            )
        path = os.path.normpath(os.path.join(self._real, location))  # noqa: PTH118
        if not location:
            rows.problem("rows_without_image", name)
        elif self._root is None and not is_address(location):
            raise DatasetError(
                f"{self._where}: row {name} names its image by path, {location!a}; give `images`, "
                "the folder that paths start from"
            )
        elif is_address(location):
            rows.problem("urls_in_place_of_images", f"{name}: {location!a}")
        elif "://" in location or not Path(path).is_relative_to(self._real):
            rows.problem("images_outside_their_folder", f"{name}: {location!a}")
        elif "\0" in path or not os.path.isfile(path):  # noqa: PTH113
            rows.problem("images_without_file", f"{name}: {location!a}")
        else:
            return path
        return None

    def _place(self, name: str, data: bytes, path: str | None) -> Place:
        """Where an image is: one file of its own in a data set of paths, else a tar."""
        if path is not None and not self._tars.count:
            self._in_place = True
            return Place(Path(path).relative_to(self._real).as_posix())
        if self._in_place:
            raise DatasetError(
                f"{self._where}: row {name} holds its image, but earlier ones name theirs by path; "
                "save the data set again with `save_to_disk`, which puts all of them into it"
            )
        tar, offset = self._tars.add(data)
        return Place(tar, offset, len(data))
