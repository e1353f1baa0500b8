"""Hugging Face data sets: Parquet or Arrow with a column of images and one of captions.

The library `datasets` tells which files belong to which split. Images that rows hold are written
once into tar files, where each has a place of its own; images that rows name by path stay where
they are.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import pyarrow as pa
from pydantic import Field, model_validator

from pipeline.datasets.hub_files import (
    Listing,
    fetch,
    files_by_split,
    missing_numbers,
    on_disk,
    on_hub,
)
from pipeline.datasets.image_tars import ImageTars
from pipeline.datasets.images import any_pixel_count
from pipeline.datasets.manifests import ManifestRows, write_files
from pipeline.datasets.source import (
    MANIFESTS,
    DatasetError,
    PrepareReport,
    Progress,
    Source,
    split_name,
)
from sightline.arrow_files import plain_type, readable, schema_of
from sightline.cache.keys import key_of_bytes
from sightline.cache.manifest import Place
from sightline.cache.prepared import HUB_DATASET
from sightline.outside_columns import (
    OF_CAPTIONS,
    OutsideTable,
    Wanted,
    as_columns,
    by_name,
    choose,
    is_address,
    texts_in,
)
from sightline.outside_tables import open_table
from sightline.user_files import short

_COMMIT = "commit"
_SPLIT = "split"
_SHOWN = 20  # values of a column


class HuggingFaceSource(Source):
    """A Hugging Face data set with a column of images and one of captions.

    Attributes:
        path: folder of `save_to_disk`, folder of Parquet or Arrow files, or one such file; by
            default `source` itself.
        name: instead of ``path``: a data set on the hub, which is fetched unless it is cached.
        revision: branch, tag or commit of the named data set.
        config: one of several configurations of a data set.
        image_column: column of images (bytes, paths, or `datasets.Image`), if it has no usual name.
        caption_column: column of captions or of lists of captions, or a list of several;
            ``sentences.raw`` is the field ``raw`` of the objects in ``sentences``.
        caption_id_column: column of the captions' ids; by default they are numbered.
        splits: for each of train, dev and test, the data set's own split or several,
            ``[train, restval]``; others are left out.
        split_column: column with the split of each row, instead of the data set's splits.
        images: folder that a column of paths starts from; default: that of the data set.
        strict: treat problems such as images without caption as errors.
    """

    example: ClassVar[str] = (
        "sightline prepare huggingface --path flickr30k --caption-column captions "
        "--out data/flickr30k"
    )
    writes: ClassVar[tuple[str, ...]] = (*MANIFESTS, "images/00000.tar")

    kind: Literal["huggingface"] = "huggingface"
    path: Path = Path()
    name: str | None = Field(default=None, min_length=1)
    revision: str | None = Field(default=None, min_length=1)
    config: str | None = Field(default=None, min_length=1)
    image_column: str | None = None
    caption_column: str | list[str] | None = None
    caption_id_column: str | None = None
    splits: dict[str, str | list[str]] | None = None
    split_column: str | None = None
    images: Path | None = None
    strict: bool = False

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if self.name is not None and "path" in self.model_fields_set:
            raise ValueError("give `path` (on disk) or `name` (on the hub), but not both")
        if self.name is None and self.revision is not None:
            raise ValueError("`revision` belongs to a data set on the hub: give its `name`")
        for theirs, count in Counter(theirs for theirs, _ in self._pairs()).items():
            if count > 1:
                raise ValueError(
                    f"`splits` takes {theirs!r} for {count} splits; an image belongs to only one"
                )
        return self

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """Each chosen split or value of the column, with our name for it."""
        for name, theirs in (self.splits or {}).items():
            yield from ((one, name) for one in ([theirs] if isinstance(theirs, str) else theirs))

    @property
    def our_splits(self) -> dict[str, str]:
        """Chosen split of the data set, or value of the column → our name for it."""
        return {theirs: split_name(name, "splits") for theirs, name in self._pairs()}

    def inputs(self) -> list[Path]:
        """The input files and folders; a data set on the hub has none here."""
        inputs = [self.path] if self.name is None else []
        return inputs if self.images is None else [*inputs, self.images]

    def image_root(self, prepared: Path) -> Path:
        """Where the rows name them; asked only if `prepare` wrote no images."""
        if self.images is not None:
            return self.images
        return self.path.parent if self.path.is_file() else self.path

    def _files(self, ignored: Counter[str]) -> tuple[Listing, dict[str, list[str]]]:
        """The data set's files: all, and those of each of its splits; see `on_disk`."""
        if self.name is None and self.path.is_file():
            name = self.path.name
            return Listing(str(self.path), self.path.parent, frozenset({name})), {"": [name]}
        if self.name is None:
            listing = on_disk(self.path, ignored)
        else:
            listing = on_hub(self.name, self.revision)
        return listing, files_by_split(listing, self.config)

    def prepare(
        self, folder: Path, report: PrepareReport, progress: Progress | None = None
    ) -> None:
        """Write the manifests of the data set into ``folder`` and fill ``report``.

        Images that rows hold are written to tar files below ``images``. Rows of one split with the
        same image are one image with several captions.

        Raises:
            SightlineError: the data set is missing, damaged or cannot be fetched, a column or split
                is missing or has another type, or there are no images with captions.
        """
        listing, by_split = self._files(report.ignored)
        if self.name is not None:
            report.facts |= {_COMMIT: listing.folder.name, HUB_DATASET: self.name}
        files = _chosen(self, listing.where, by_split)
        names = [name for name, _, _ in files]
        if self.name is not None:
            fetch(self.name, listing.folder.name, list(map(glob.escape, names)))
        report.warn("missing_files", missing_numbers(listing.folder / name for name in names))
        if self.config is None and not listing.is_saved:
            known = {name for names in by_split.values() for name in names}
            report.note("tables_not_read", sorted(set(listing.tables) - known))
        with closing(ImageTars(folder / "images")) as tars, any_pixel_count():
            reader = _Reader(self, self.images or listing.folder, tars, report)
            write_files(
                folder,
                names,
                reader.read_all(listing.folder, files),
                report,
                unit="files",
                where=listing.where,
                strict=self.strict,
                progress=progress,
            )
        if reader.unused_splits:
            report.guess(
                f"column {_SPLIT!r} ({', '.join(sorted(reader.unused_splits)[:_SHOWN])}) is not "
                f"used; `split_column={_SPLIT}` takes the splits of the rows from it"
            )
        if reader.left_out:
            report.counts["rows_of_other_splits"] = reader.left_out
        report.leave_columns(reader.not_read)
        report.notes.append(
            f"the images were written to `images` once ({tars.bytes / 1e6:,.1f} MB)"
            if tars.count
            else f"the images stay in {reader.root}"
        )


def _chosen(
    source: HuggingFaceSource, where: str, theirs_to_files: dict[str, list[str]]
) -> list[tuple[str, str, str]]:
    """The name of each file to read, its split in the data set, and our name for that."""
    if source.split_column:
        ours = dict.fromkeys(theirs_to_files, "")
    elif source.splits is None:
        hint = f"{where} (choose with `splits` or `split_column`)"
        ours = {name: split_name(name, hint) if name else "" for name in theirs_to_files}
    else:
        ours = source.our_splits
        if unknown := sorted(ours.keys() - theirs_to_files.keys()):
            raise DatasetError(
                f"{where}: has no split {unknown[0]!r}; it has "
                f"{', '.join(name or 'no splits' for name in theirs_to_files)}"
            )
    return [(file, theirs, ours[theirs]) for theirs in ours for file in theirs_to_files[theirs]]


_TYPES = {
    "image": (("string", "binary"), "bytes, a path, or a struct of both"),
    "caption": (("string", "list of string"), "a string or a list of strings"),
    "split": (("string",), "a string"),
}
"""Our name of a column → the types that fit, and the same for messages."""


def _opened(
    source: HuggingFaceSource, path: Path
) -> tuple[OutsideTable, dict[str, tuple[str, ...]]]:
    """A file and what its columns mean, which must be there and of the right types.

    Returns:
        The table, and our name → its columns; ``unused`` is one of splits that says nothing here.
    """
    if not path.is_file():
        raise DatasetError(f"{path}: no such file; get the complete data set")
    schema = schema_of(path)
    table = open_table(path, "a Parquet or Arrow file")
    names = {ours: getattr(source, f"{ours}_column") for ours in OF_CAPTIONS}
    wanted = {
        ours: Wanted(as_columns(theirs))
        for ours, theirs in names.items()
        if theirs or ours in ("image", "caption")
    }
    columns = choose(table, wanted)
    for ours, (types, expected) in _TYPES.items():
        for name in columns.get(ours, ()):
            if name in schema.names and not _fits(kind := schema.field(name).type, types):
                listed = ", ".join(f"{field.name}: {field.type}" for field in schema)[:500]
                raise DatasetError(
                    f"{path}: column {name!r} is {kind}, expected {expected}; name another column "
                    f"with `{ours}_column` ({listed})"
                )
    there = schema.names.count(_SPLIT) == 1 and plain_type(schema.field(_SPLIT).type) == "string"
    if there and source.split_column is None:
        columns["unused"] = (_SPLIT,)
        table.not_read.remove(_SPLIT)
    return table, columns


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


class _Reader:
    """Reads rows, and puts the images that they hold into tars.

    Attributes:
        root: base folder of the paths in the rows.
        left_out: number of rows of splits that were not chosen.
        unused_splits: values of a column of splits that is not used.
        not_read: names of other columns.
    """

    def __init__(
        self, source: HuggingFaceSource, root: Path, tars: ImageTars, report: PrepareReport
    ) -> None:
        self.root = root
        self._real = os.path.realpath(root)
        self._source = source
        self._ours = source.our_splits
        self._values: set[str] = set()  # of the column of splits
        self._tars, self._report = tars, report
        self._numbers: Counter[str] = Counter()  # split of the data set → rows so far
        self._ids: dict[tuple[bytes, str], str] = {}  # key and split of an image → its id
        self._captions: Counter[str] = Counter()  # id → captions so far
        self._in_place = False
        self.left_out = 0
        self.unused_splits: set[str] = set()
        self.not_read: set[str] = set()
        self._guessed: dict[str, tuple[str, ...]] | None = None

    def read_all(
        self, folder: Path, files: Iterable[tuple[str, str, str]]
    ) -> Iterator[ManifestRows]:
        """`read` for each of ``files``, whose names are below ``folder``.

        Raises:
            DatasetError: no row has a split that was chosen of the column.
        """
        for name, theirs, ours in files:
            yield self.read(folder / name, theirs, ours)
        if self._source.split_column and (unknown := sorted(self._ours.keys() - self._values)):
            raise DatasetError(
                f"{self.root}: column {self._source.split_column}: no row has split {unknown[0]!r};"
                f" it has {', '.join(sorted(filter(None, self._values))[:_SHOWN])}"
            )

    def read(self, file: Path, theirs: str, split: str) -> ManifestRows:
        """The images and captions of a file.

        Args:
            theirs: the data set's split of the file; may be empty.
            split: our name for it, unless there is a column of splits.
        """
        rows = ManifestRows()
        with readable(file):
            table, columns = _opened(self._source, file)
        self.not_read |= set(table.not_read)
        if columns != self._guessed:
            self._guessed = columns
            self._report.guess(*table.notes)
        for _, values in table.read([name for names in columns.values() for name in names]):
            row = by_name(columns, values)
            name = "/".join(filter(None, (theirs, str(self._numbers[theirs]))))
            self._numbers[theirs] += 1
            self.unused_splits.update(filter(None, row.get("unused", ())))
            of_row = self._split_of(file, row["split"][0]) if "split" in row else split
            if of_row is None:
                self.left_out += 1
            else:
                self._add(rows, name, row, of_row)
        return rows

    def _split_of(self, file: Path, value: str | None) -> str | None:
        """Our name for a value of the column of splits; None: it was not chosen."""
        self._values.add(value or "")
        if self._source.splits is not None:
            return self._ours.get(value or "")
        where = f"{file}, column {self._source.split_column} (choose with `splits`)"
        return split_name(value, where) if value else ""

    def _add(self, rows: ManifestRows, name: str, row: dict[str, list[Any]], split: str) -> None:
        (data, location), path = _image_of(row["image"][0]), None
        if data is not None and self._source.images is not None:
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
        path = os.path.normpath(os.path.join(self._real, location))  # noqa: PTH118
        if not location:
            rows.problem("rows_without_image", name)
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
            return Place(Path(path).relative_to(self._real))
        if self._in_place:
            raise DatasetError(
                f"{self.root}: row {name} holds its image, but earlier ones name theirs by path; "
                "save the data set again with `save_to_disk`, which puts all of them into it"
            )
        tar, offset = self._tars.add(data)
        return Place(Path(tar), offset, len(data))
