"""Manifests as an attacker would make them: a few thousand bytes that ask for gigabytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.cache import IMAGES, PHRASES, SENTENCES, TOKENS

MILLION = 1_000_000
LONG = "x" * MILLION


def _pointing(count: int, value: pa.Array) -> pa.DictionaryArray:
    """``count`` rows that all are the one entry of a dictionary."""
    return pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), value)


def _write(path: Path, table: pa.Table, times: int = 1) -> None:
    """The same rows ``times`` over; columns say nothing of having been dictionaries."""
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


def _zeros(path: Path) -> None:
    """A text of 100 MB that compresses to nearly nothing."""
    table = pa.table({"text": ["\0" * 100 * MILLION]})
    pq.write_table(table, path, compression="zstd", use_dictionary=False)


def _runs(path: Path) -> None:
    """Ten million equal rows, as run lengths."""
    key = _pointing(MILLION, pa.array([b"k" * 32], pa.binary(32)))
    text, number = _pointing(MILLION, pa.array(["a"])), pa.array(np.zeros(MILLION, np.int32))
    place = pa.nulls(MILLION, pa.int64())
    columns = [text, text, place, place, key, number, number, text]
    _write(path, pa.table(dict(zip(IMAGES.names, columns, strict=True))), times=10)


def _nothing(path: Path) -> None:
    """A hundred million empty cells."""
    _write(path, pa.table({"text": pa.nulls(MILLION, pa.string())}), times=100)


def _long_list(path: Path) -> None:
    """One text of 60 million tokens."""
    ids = pa.array(np.zeros(60 * MILLION, np.int32))
    lists = pa.ListArray.from_arrays(pa.array([0, 60 * MILLION], pa.int32()), ids)
    table = pa.table({"key": pa.array([b"k" * 32], pa.binary(32)), "input_ids": lists})
    pq.write_table(table.cast(TOKENS.remove_metadata()), path, compression="zstd")


BOMBS: dict[str, tuple[Callable[[Path], None], pa.Schema]] = {
    "a long text that a million rows point to": (_long_text, SENTENCES),
    "a long mask that every row points to": (_long_mask, PHRASES),
    "zeros": (_zeros, SENTENCES),
    "equal keys": (_runs, IMAGES),
    "empty cells": (_nothing, SENTENCES),
    "a long list": (_long_list, TOKENS),
}
"""Name → what writes the file, and the manifest that it is given out to be."""
