"""Manifests by an attacker: at most a megabyte that expands to gigabytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.cache import IMAGES, PHRASES, SENTENCES, TOKENS

MILLION = 1_000_000
LONG = "x" * MILLION


def _pointing(count: int, value: pa.Array) -> pa.DictionaryArray:
    """``count`` rows that all reference one dictionary entry."""
    return pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), value)


def _write(path: Path, table: pa.Table, times: int = 1) -> None:
    """The same rows ``times`` over; columns do not reveal that they were dictionaries."""
    with pq.ParquetWriter(path, table.schema, compression="zstd", store_schema=False) as file:
        for _ in range(times):
            file.write_table(table)


def _long_text(path: Path) -> None:
    _write(path, pa.table({"text": _pointing(MILLION, pa.array([LONG]))}))


def _long_mask(path: Path) -> None:
    """Five hundred phrases with one mask of a megabyte, inside a struct."""
    mask = {"size": [1, 1], "counts": LONG}
    row = {field.name: None for field in PHRASES} | {"mask": mask}
    table = pa.Table.from_pylist([row] * 50, schema=PHRASES)
    with pq.ParquetWriter(path, PHRASES, compression="zstd") as file:
        for _ in range(10):
            file.write_table(table)


def _zeros(path: Path, size: int = 100 * MILLION) -> None:
    """A long text that compresses to nearly nothing."""
    ends, text = pa.py_buffer(np.array([0, size], np.int32)), pa.py_buffer(bytes(size))
    table = pa.table({"text": pa.StringArray.from_buffers(1, ends, text)})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)


def _runs(path: Path) -> None:
    """Ten million equal rows, as run lengths."""
    key = _pointing(MILLION, pa.array([b"k" * 32], pa.binary(32)))
    text, number = _pointing(MILLION, pa.array(["a"])), pa.array(np.zeros(MILLION, np.int32))
    place = pa.nulls(MILLION, pa.int64())
    columns = [text, text, place, place, key, number, number, text]
    _write(path, pa.table(dict(zip(IMAGES.names, columns, strict=True))), times=10)


def _nothing(path: Path) -> None:
    """A hundred million null values."""
    _write(path, pa.table({"text": pa.nulls(MILLION, pa.string())}), times=100)


def _long_list(path: Path) -> None:
    """One text of 60 million tokens."""
    ids = pa.array(np.zeros(60 * MILLION, np.int32))
    lists = pa.ListArray.from_arrays(pa.array([0, 60 * MILLION], pa.int32()), ids)
    table = pa.table({"key": pa.array([b"k" * 32], pa.binary(32)), "input_ids": lists})
    pq.write_table(table.cast(TOKENS.remove_metadata()), path, compression="zstd")


def _one_beginning(path: Path) -> None:
    """400 phrases, each with the previous mask, without a dictionary."""
    row = {field.name: None for field in PHRASES} | {"mask": {"size": [1, 1], "counts": LONG}}
    pq.write_table(
        pa.Table.from_pylist([row] * 400, schema=PHRASES),
        path,
        compression="none",
        use_dictionary=False,
        column_encoding={"mask.counts": "DELTA_BYTE_ARRAY"},
        data_page_size=1 << 30,
    )


def _hidden_dictionary(path: Path) -> None:
    """200,000 texts that total a gigabyte, in a file of a megabyte.

    Its footer is that of 200,000 texts of one letter, uncompressed and without a dictionary. Its
    pages are one long text and another that fills the megabyte, and 200,000 times the first.
    """
    rows = 200_000
    _plain(path, pa.array(["x"] * rows), use_dictionary=False)
    claims = _footer(path)
    size, filler = path.stat().st_size - len(claims), MILLION
    while path.stat().st_size - len(_footer(path)) != size or claims == _footer(path):
        texts = _pointing(rows, pa.array(["x" * 5000, "y" * filler]))
        _plain(path, texts, dictionary_pagesize_limit=2 * MILLION)
        filler += size - (path.stat().st_size - len(_footer(path)))
    path.write_bytes(path.read_bytes()[:size] + claims)


def _hidden_size(path: Path) -> None:
    """A text of 200 MB, which compresses to nearly nothing; 50,000 bytes by the footer."""
    _zeros(path, 200 * MILLION)
    group, data = pq.read_metadata(path).row_group(0), path.read_bytes()
    pages, footer = data[: -len(_footer(path))], _footer(path)
    for size in {group.total_byte_size, group.column(0).total_uncompressed_size}:
        true = zigzag(size)
        assert true in footer
        footer = footer.replace(true, zigzag(50_000, len(true)))
    path.write_bytes(pages + footer)


def _plain(path: Path, texts: pa.Array, **options: Any) -> None:
    options = {"compression": "none", "store_schema": False, "write_statistics": False, **options}
    pq.write_table(pa.table({"text": texts}), path, **options)


def _footer(path: Path) -> bytes:
    """The end of the file: metadata, its length and the four-byte magic."""
    data = path.read_bytes()
    return data[-8 - int.from_bytes(data[-8:-4], "little") :]


def zigzag(number: int, length: int = 1) -> bytes:
    """A positive number in Thrift's compact protocol, in at least ``length`` bytes."""
    number *= 2
    data = bytearray()
    while number > 127 or len(data) < length - 1:
        data.append(number & 127 | 128)
        number >>= 7
    return bytes([*data, number])


BOMBS: dict[str, tuple[Callable[[Path], None], pa.Schema]] = {
    "a long text that a million rows point to": (_long_text, SENTENCES),
    "a long mask that every row points to": (_long_mask, PHRASES),
    "zeros": (_zeros, SENTENCES),
    "equal keys": (_runs, IMAGES),
    "null values": (_nothing, SENTENCES),
    "a long list": (_long_list, TOKENS),
    "masks with one beginning": (_one_beginning, PHRASES),
    "a footer that hides a dictionary": (_hidden_dictionary, SENTENCES),
    "a footer that hides a size": (_hidden_size, SENTENCES),
}
"""Name → function that writes the file, and the kind of manifest it claims to be."""
