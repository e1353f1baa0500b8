"""Manifests: Parquet tables that list images, captions, sentences and phrases."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.cache.errors import CacheError
from pipeline.cache.keys import KEY_BYTES, Keys
from pipeline.cache.parquet import read_schema, read_table
from sightline.files import replacing

_KEY = pa.binary(32)

IMAGES = pa.schema(
    [
        ("image_id", pa.string()),
        ("path", pa.string()),  # POSIX, relative to the data set's image root
        ("offset", pa.int64()),  # start of the image in that file, in bytes
        ("length", pa.int64()),  # in bytes; both null if the file is the image
        ("key", _KEY),  # SHA-256 of the image's bytes
        ("width", pa.int32()),  # pixels; 0 where the header could not be read
        ("height", pa.int32()),
        ("split", pa.string()),  # train, dev, test, or empty
    ],
    metadata={"sightline": "images/2"},
)
"""One row per image; `pipeline.cache.place` locates its bytes."""

CAPTIONS = pa.schema(
    [
        ("caption_id", pa.string()),  # <image_id>#<number>
        ("image_id", pa.string()),
        ("text", pa.string()),
        ("split", pa.string()),
    ],
    metadata={"sightline": "captions/1"},
)
"""One row per caption; all captions are kept, whatever an objective later selects."""

TRAINED_SPLITS = ("train", "")
"""Splits used for training: a data set without splits is all training data."""

SENTENCES = pa.schema([("text", pa.string())], metadata={"sightline": "sentences/1"})
"""One row per sentence, in source order; duplicates are kept."""

PHRASES = pa.schema(
    [
        ("image_key", _KEY),
        ("caption_key", _KEY),
        ("phrase", pa.string()),
        ("char_start", pa.int32()),  # span of the phrase in the caption, in characters
        ("char_end", pa.int32()),
        ("box", pa.list_(pa.float32(), 4)),  # x0, y0, x1, y1 in pixels
        ("score", pa.float32()),
        # COCO run-length code: size is (height, width), counts the compressed string
        ("mask", pa.struct([("size", pa.list_(pa.int32(), 2)), ("counts", pa.string())])),
        ("cutout_key", _KEY),  # SHA-256 of image key + canonical mask + crop rule
    ],
    metadata={"sightline": "phrases/1"},
)
"""One row per object that a phrase of a caption names."""

TOKENS = pa.schema(
    [("key", _KEY), ("input_ids", pa.list_(pa.int32()))], metadata={"sightline": "tokens/1"}
)
"""One row per distinct text, sorted by key; ids include special tokens and are truncated."""

PHRASE_TOKENS = pa.schema(
    [
        ("pair_key", _KEY),  # SHA-256 of image key + caption key
        ("token_start", pa.int32()),  # span of the phrase in the caption's row of the token set
        ("token_end", pa.int32()),
        ("cutout_key", _KEY),
    ],
    metadata={"sightline": "phrase-tokens/1"},
)
"""One row per phrase that the student sees whole, sorted by pair; for one tokenizer."""


def write_manifest(path: Path | str, table: pa.Table, schema: pa.Schema) -> None:
    """Write ``table`` as Parquet, atomically; the same rows give the same bytes.

    Raises:
        CacheError: the table's columns or types differ from ``schema``.
    """
    path = Path(path)
    _check(path, table.schema, schema)
    metadata = {**(table.schema.metadata or {}), **(schema.metadata or {})}
    with replacing(path) as part:
        pq.write_table(table.replace_schema_metadata(metadata), part, compression="zstd")


def read_manifest(path: Path | str, schema: pa.Schema) -> pa.Table:
    """Read a manifest and check it against ``schema``.

    Raises:
        CacheError: the file is missing, not Parquet, has different columns or types, or would
            expand far beyond its size.
    """
    path = Path(path)
    if not path.is_file():
        raise CacheError(f"{path}: no such manifest; `sightline prepare` writes it")
    _check(path, read_schema(path), schema)
    return read_table(path)


def key_array(keys: Keys) -> pa.Array:
    """Keys uint8 [n, 32] as an Arrow binary(32) array, without intermediate Python objects."""
    flat = np.ascontiguousarray(keys)
    return pa.FixedSizeBinaryArray.from_buffers(_KEY, len(flat), [None, pa.py_buffer(flat)])


def key_column(column: pa.ChunkedArray | pa.Array) -> Keys:
    """The keys of a manifest column: uint8 [n, 32].

    Raises:
        CacheError: the column contains null keys.
    """
    if column.null_count:
        raise CacheError(f"a key column contains {column.null_count} null keys")
    chunks = [
        np.frombuffer(chunk.buffers()[1], dtype=np.uint8)[
            chunk.offset * KEY_BYTES : (chunk.offset + len(chunk)) * KEY_BYTES
        ].reshape(-1, KEY_BYTES)
        for chunk in (column.chunks if isinstance(column, pa.ChunkedArray) else [column])
        if len(chunk)
    ]
    if len(chunks) == 1:
        return chunks[0]
    return np.concatenate(chunks) if chunks else np.empty((0, KEY_BYTES), dtype=np.uint8)


def _check(path: Path, found: pa.Schema, expected: pa.Schema) -> None:
    if found.remove_metadata().equals(expected.remove_metadata()):
        return
    kind = (expected.metadata or {}).get(b"sightline", b"table").decode()

    def describe(schema: pa.Schema) -> str:
        return ", ".join(f"{field.name}: {field.type}" for field in schema)

    raise CacheError(
        f"{path}: not a manifest of kind {kind}\n  found:    {describe(found)}\n"
        f"  expected: {describe(expected)}\n  Run `sightline prepare` to rewrite it."
    )
