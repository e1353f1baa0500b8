"""Indexes whose Parquet lies, or would expand far beyond its size."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from forger import Attacks, Forger, harmful_pickle


def _tail(length: int) -> Callable[[Forger], None]:
    """Lie about the length of the Parquet footer."""

    def forge(f: Forger) -> None:
        data = f.index.read_bytes()
        f.index.write_bytes(data[:-8] + struct.pack("<I", length) + b"PAR1")
        f.refit()

    return forge


def _status(values: list[str]) -> Callable[[Any], Any]:
    def change(column: Any) -> Any:
        codes = pa.array(values[:1] + ["ok"] * (len(column) - 1))
        return codes.dictionary_encode().cast(column.type)

    return change


def _bomb(f: Forger) -> None:
    """A few thousand bytes that encode a million rows as run lengths."""
    count = 1_000_000
    schema = pq.read_schema(f.index)
    table = pa.table(
        {
            "key": pa.array([b"\0" * 32] * count, pa.binary(32)),
            "shard": np.zeros(count, np.int32),
            "row": np.zeros(count, np.int32),
            "status": pa.array(["ok"] * count).dictionary_encode(),
        }
    ).cast(schema)
    pq.write_table(table, f.index, compression="none", use_dictionary=True)
    assert f.index.stat().st_size < 20_000
    f.refit()
    f.commit({**f.body(), "rows": count})


def _swap(column: Any) -> Any:
    values = column.to_pylist()
    return pa.array([values[1], values[0], *values[2:]], column.type)


PARQUET: Attacks = {
    "a footer longer than the file": (_tail(0xFFFFFFFF), "not a readable Parquet"),
    "a footer of no length": (_tail(0), "not a readable Parquet"),
    "a footer that begins too early": (_tail(2000), "not a readable Parquet"),
    "a pickle for an index": (
        lambda f: (f.index.write_bytes(harmful_pickle(f.outside) + b"\0" * 4000), f.refit())[1],
        "not a readable Parquet",
    ),
    "zeros for an index": (
        lambda f: (f.index.write_bytes(b"PAR1" + b"\0" * 4000 + b"PAR1"), f.refit())[1],
        "not a readable Parquet",
    ),
    "a million rows in a small index": (_bomb, "cannot hold"),
    "a compressed index": (lambda f: f.table(options={"compression": "zstd"}), "not an index"),
    "an error code of megabytes": (
        lambda f: f.table(status=_status(["x" * 5_000_000])),
        "error codes",
    ),
    "an error code for the terminal": (
        lambda f: f.table(status=_status(["\x1b[2J"])),
        "error codes",
    ),
    "keys in another order": (lambda f: f.table(key=_swap), "not sorted"),
    "rows that no shard has": (
        lambda f: f.table(row=lambda c: pa.array([1000] * len(c), c.type)),
        "rows that do not exist",
    ),
    "a shard that is not there": (
        lambda f: f.table(shard=lambda c: pa.array([7] * len(c), c.type)),
        "rows that do not exist|rows",
    ),
    "negative rows": (
        lambda f: f.table(row=lambda c: pa.array([-3] * len(c), c.type)),
        "rows that do not exist",
    ),
    "one row less in the index": (
        lambda f: (pq.write_table(pq.read_table(f.index)[1:], f.index), f.refit())[1],
        "rows, expected",
    ),
    "other columns": (
        lambda f: (
            pq.write_table(pq.read_table(f.index).rename_columns(list("abcd")), f.index),
            f.refit(),
        )[1],
        "not an index",
    ),
}
