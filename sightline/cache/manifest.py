"""Manifests: Parquet tables of images, captions, sentences and phrases, and images' places.

In memory, texts and lists have offsets of 64 bits: a column takes any size in one piece, and Arrow
can take its rows. Files have Arrow's plain `string` and `list` (`in_file`).
"""

# pyarrow.compute makes its functions when it is imported:
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sightline.cache.keys import KEY_BYTES, Keys
from sightline.errors import CacheError, first_lines
from sightline.files.atomic_files import replacing
from sightline.files.places import path_below, shown
from sightline.files.storage import require_of_file
from sightline.tables.arrow_arrays import number_array, os_file

KEY = pa.binary(KEY_BYTES)
"""Type of a column of keys."""

IMAGES = pa.schema(
    [
        ("image_id", pa.large_string()),
        ("path", pa.large_string()),  # POSIX, relative to the data set's image root
        ("offset", pa.int64()),  # start of the image in that file, in bytes
        ("length", pa.int64()),  # in bytes; both null if the file is the image
        ("key", KEY),  # SHA-256 of the image's bytes
        ("width", pa.int32()),  # pixels; 0 where the header could not be read
        ("height", pa.int32()),
        ("split", pa.large_string()),  # train, dev, test, or empty
    ],
    metadata={"sightline": "images/2"},
)
"""One row per image; `places_of` locates its bytes."""

CAPTIONS = pa.schema(
    [
        ("caption_id", pa.large_string()),  # <image_id>#<number>
        ("image_id", pa.large_string()),
        ("text", pa.large_string()),
        ("split", pa.large_string()),
    ],
    metadata={"sightline": "captions/1"},
)
"""One row per caption; all captions are kept, whatever an objective later selects."""

TRAINED_SPLITS = ("train", "")
"""Splits used for training: a data set without splits is all training data."""

SENTENCES = pa.schema([("text", pa.large_string())], metadata={"sightline": "sentences/1"})
"""One row per sentence, in source order; duplicates are kept."""

PHRASES = pa.schema(
    [
        ("image_key", KEY),
        ("caption_key", KEY),
        ("phrase", pa.large_string()),
        ("char_start", pa.int32()),  # span of the phrase in the caption, in characters
        ("char_end", pa.int32()),
        ("box", pa.list_(pa.float32(), 4)),  # x0, y0, x1, y1 in pixels
        ("score", pa.float32()),
        # COCO run-length code: size is (height, width), counts the compressed string
        ("mask", pa.struct([("size", pa.list_(pa.int32(), 2)), ("counts", pa.large_string())])),
        ("cutout_key", KEY),  # SHA-256 of image key + canonical mask + crop rule
    ],
    metadata={"sightline": "phrases/1"},
)
"""One row per object that a phrase of a caption names."""

_NULLABLE = frozenset({"offset", "length"})
_NOT_NEGATIVE = frozenset({"offset", "length", "width", "height", "char_start", "char_end"})
_BATCH_ROWS = 1 << 15
"""Rows that are read at once, and written of a table of more than `_PLAIN_BYTES`."""
_PLAIN_BYTES = 1 << 31
"""What a column has room for whose offsets have 32 bits."""


def in_file(schema: pa.Schema) -> pa.Schema:
    """``schema`` as files have it: texts and lists with offsets of 32 bits."""
    fields = [field.with_type(_plain(field.type)) for field in schema]
    return pa.schema(fields, schema.metadata)


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(field) for field in kind])
    return kind


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(_plain(field.type))


def as_in_file(table: pa.Table) -> pa.Table:
    """``table`` with the types of `in_file`."""
    schema = in_file(table.schema)
    if table.get_total_buffer_size() < _PLAIN_BYTES:
        return table.cast(schema)
    rows = np.arange(len(table))  # taken, since a slice keeps its offsets, which are not plain ones
    parts = (rows[at : at + _BATCH_ROWS] for at in range(0, len(rows), _BATCH_ROWS))
    return pa.concat_tables([table.take(number_array(part)).cast(schema) for part in parts])


_REMEDY = "Run `sightline prepare` to rewrite it."


def write_manifest(path: Path | str, table: pa.Table, schema: pa.Schema) -> None:
    """Write ``table`` as Parquet, atomically; the same rows give the same bytes."""
    path = Path(path)
    table = as_in_file(table)
    _check(path, table.schema, in_file(schema))
    metadata = {**(table.schema.metadata or {}), **(schema.metadata or {})}
    with replacing(path) as part:
        table = table.replace_schema_metadata(metadata)
        with os_file(part, "w") as file:
            pq.write_table(table, file, compression="zstd")


def read_manifest(path: Path | str, schema: pa.Schema, remedy: str = _REMEDY) -> pa.Table:
    """Read a manifest and check it against ``schema``.

    Args:
        remedy: what to do about a file of other columns.

    Raises:
        CacheError: the file is missing, not Parquet, has different columns, types or values
            (`check_values`), or several images with one id.
    """
    path = Path(path)
    if not path.is_file():
        if schema.equals(PHRASES):
            raise CacheError(f"{path}: no such grounding; `sightline ground` writes it")
        raise CacheError(f"{path}: no such manifest; `sightline prepare` writes it")
    _check(path, read_schema(path), in_file(schema), remedy)
    table = read_table(path, schema)
    check_values(path, table)
    if schema.equals(IMAGES):
        _check_ids(path, table["image_id"])
        pa.default_memory_pool().release_unused()  # what counting a million ids took
    return table


def read_split(path: Path | str, schema: pa.Schema, split: str | None) -> pa.Table:
    """The rows of a manifest of images or captions that are of a split; all of them for None.

    Raises:
        CacheError: there is no such row, or as `read_manifest`.
    """
    table = read_manifest(path, schema)
    rows = table if split is None else table.filter(pc.equal(table["split"], split))
    if not len(rows):
        counts = Counter(table["split"].to_pylist())
        splits = ", ".join(f"{name!r} ({n:,})" for name, n in counts.items()) or "no rows"
        in_split = "" if split is None else f" in the split {split!r}"
        kind = "image" if schema.equals(IMAGES) else "caption"
        remedy = "choose another `split`, or prepare the data set with one"
        if not len(table):
            remedy = "`sightline prepare` writes it again"
        raise CacheError(f"{path}: no {kind}{in_split}; found {splits}: {remedy}")
    return rows


def _check_ids(path: Path, ids: pa.ChunkedArray) -> None:
    """Refuse images with the same id: a caption could belong to either."""
    counts = ids.value_counts()
    twice = pc.greater(counts.field("counts"), 1)
    if pc.any(twice).as_py():
        name = counts.field("values").filter(twice)[0].as_py()
        rows = [row for row, image_id in enumerate(ids.to_pylist()) if image_id == name]
        raise CacheError(
            f"{path}: row {rows[1]}: image_id: found {name!r}, as in row {rows[0]}, expected an id "
            "of its own; recreate the file"
        )


def check_values(path: Path, table: pa.Table) -> None:
    """Refuse nulls, also inside values, and negative counts and positions.

    Only `offset` and `length` of an image may be null.
    """
    for field, column in zip(table.schema, table.columns, strict=True):
        least = 0 if field.name in _NOT_NEGATIVE else None
        if any(
            (field.name not in _NULLABLE and _has_nulls(chunk))
            or (least is not None and (pc.min(chunk).as_py() or least) < least)
            for chunk in column.chunks
        ):
            row, name, fault = next(
                (row, *fault)
                for row, value in enumerate(column.to_pylist())
                for fault in _faults(field.name, value, least)
            )
            raise CacheError(
                f"{path}: row {row}: {name}: found {'null' if fault is None else fault}, expected "
                f"{field.type if least is None else 'a non-negative number'}; recreate the file"
            )


def _has_nulls(array: pa.Array) -> bool:
    """Whether a value, or part of one, is null."""
    if array.null_count:
        return True
    if pa.types.is_struct(array.type):
        return any(_has_nulls(array.field(number)) for number in range(array.type.num_fields))
    if pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        return _has_nulls(array.flatten())
    return False


def _faults(name: str, value: Any, least: int | None) -> Iterator[tuple[str, Any]]:
    """The parts of a value that are null or too small: their names and what was found."""
    if isinstance(value, dict):
        for part, inside in value.items():
            yield from _faults(f"{name}.{part}", inside, least)
    elif isinstance(value, list):
        for place, inside in enumerate(value):
            yield from _faults(f"{name}[{place}]", inside, least)
    elif (value is None and name not in _NULLABLE) or (
        least is not None and value is not None and value < least
    ):
        yield name, value


def key_array(keys: Keys) -> pa.Array:
    """Keys uint8 [n, w] as an Arrow binary(w) array, without intermediate Python objects."""
    flat = np.ascontiguousarray(keys)
    kind = pa.binary(keys.shape[1])
    return pa.FixedSizeBinaryArray.from_buffers(kind, len(flat), [None, pa.py_buffer(flat)])


def key_column(column: pa.ChunkedArray | pa.Array, width: int = KEY_BYTES) -> Keys:
    """The keys of a column of ``width`` bytes each, which has no nulls: uint8 [n, width]."""
    chunks = [
        np.frombuffer(chunk.buffers()[1], dtype=np.uint8)[
            chunk.offset * width : (chunk.offset + len(chunk)) * width
        ].reshape(-1, width)
        for chunk in (column.chunks if isinstance(column, pa.ChunkedArray) else [column])
        if len(chunk)
    ]
    if len(chunks) == 1:
        return chunks[0]
    return np.concatenate(chunks) if chunks else np.empty((0, width), dtype=np.uint8)


def _check(path: Path, actual: pa.Schema, expected: pa.Schema, remedy: str = _REMEDY) -> None:
    if actual.remove_metadata().equals(expected.remove_metadata()):
        return
    kind = (expected.metadata or {}).get(b"sightline", b"table").decode()

    def describe(schema: pa.Schema) -> str:
        return ", ".join(f"{field.name}: {field.type}" for field in schema)

    raise CacheError(
        f"{path}: not a manifest of kind {kind}\n  found:    {describe(actual)}\n"
        f"  expected: {describe(expected)}\n  {remedy}"
    )


def read_schema(path: Path) -> pa.Schema:
    """Columns and types of a Parquet file, and its own metadata.

    Raises:
        CacheError: it is not a readable Parquet file.
    """
    with _readable(path), os_file(path) as file:
        return pq.read_schema(file)


def count_rows(path: Path) -> int:
    """How many rows a Parquet file has; raises as `read_schema`."""
    with _readable(path), os_file(path) as file:
        return pq.read_metadata(file).num_rows


def read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """The columns of ``schema`` of a Parquet file, as it has them; raises as `read_schema`."""
    with _readable(path):
        # one file, not a folder of partitions
        with os_file(path) as source, pq.ParquetFile(source, pre_buffer=False) as file:
            schema = schema.with_metadata(file.schema_arrow.metadata)
            # a row group at once would be one piece of plain text inside lists and structs
            batches = file.iter_batches(_BATCH_ROWS, columns=schema.names)
            parts = [batch.select(schema.names).cast(schema) for batch in batches]
        table = pa.Table.from_batches(parts, schema).combine_chunks()
        table.validate(full=True)  # invalid Unicode would fail every reader
        return table


def read_batches(path: Path, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
    """Some columns of a Parquet file, at most ``rows`` rows at a time; raises as `read_schema`."""
    with (
        _readable(path),
        os_file(path) as source,
        pq.ParquetFile(source, pre_buffer=False) as file,
    ):
        yield from file.iter_batches(rows, columns=columns)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # on damaged files the library may raise anything
        require_of_file(error, path)
        raise CacheError(f"{path}: not a readable Parquet file ({first_lines(error)})") from error


class Place(NamedTuple):
    """Where an image's bytes are; shown in messages as `shard.tar[1024:+500]`.

    Attributes:
        path: the file, as `sightline.files.storage` opens it.
        offset: start of the image in it, in bytes; None: the file is the image.
        length: its length in bytes; None if ``offset`` is None.
    """

    path: str
    offset: int | None = None
    length: int | None = None

    @property
    def span(self) -> tuple[str, int, int | None]:
        """The file, and where its bytes start and stop; None: at its end."""
        start = self.offset or 0
        return self.path, start, None if self.length is None else start + self.length

    def below(self, root: Path | str) -> Place:
        """This place, with its path resolved against ``root``, a folder or its URL."""
        return self._replace(path=path_below(root, self.path))

    def __str__(self) -> str:
        if self.offset is None:
            return shown(self.path)
        return f"{shown(self.path)}[{self.offset}:+{self.length}]"


def places_of(manifest: Path, images: pa.Table) -> list[Place]:
    """The place of each image, relative to the image folder, as in the manifest.

    Does not check that the bytes exist; reading them does.

    Args:
        manifest: the file that ``images`` was read from, for messages.
        images: table of the schema `IMAGES`.
    """
    columns = (images[name].to_pylist() for name in ("image_id", *Place._fields))
    places: list[Place] = []
    for row, (image_id, path, offset, length) in enumerate(zip(*columns, strict=True)):
        if (offset is None) != (length is None):
            offset, length = ("null" if number is None else number for number in (offset, length))
            raise CacheError(
                f"{manifest}: row {row}: image {image_id!r} has offset {offset} and "
                f"length {length}, expected two numbers, or both null if the file is the "
                "image; recreate the file"
            )
        places.append(Place(path, offset, length))
    return places


def whole_files(count: int) -> dict[str, pa.Array]:
    """The columns ``offset`` and ``length`` for ``count`` images in separate files."""
    return {name: pa.nulls(count, pa.int64()) for name in ("offset", "length")}


def image_names(manifest: Path, images: pa.Table) -> list[str]:
    """What others call each image: the path of its file, or its id if it is a part of a file.

    Args:
        manifest, images: as of `places_of`.
    """
    places = places_of(manifest, images)
    return [
        image if place.offset is not None else place.path
        for image, place in zip(images["image_id"].to_pylist(), places, strict=True)
    ]
