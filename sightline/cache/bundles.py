"""Tables grouped by unit (image or object), as a source for new shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sightline.cache.keys import Keys, KeyTable, unique_sorted
from sightline.cache.manifest import key_column
from sightline.cache.ranges import ranges
from sightline.cache.record import TABLES_OF, TableKind

KEY_OF: dict[TableKind, str] = {"grounding": "unit_key", "cutouts": "key"}
"""Column of the first table that identifies a unit."""
_LINK_OF: dict[TableKind, str] = {"grounding": "image_key", "cutouts": "key"}
"""Column of each table that gives the unit of a row."""


class Bundle:
    """The tables of some units: each unit has one row in the first table, any number in others.

    Args:
        kind: kind of the set.
        tables: tables by name; rows without a unit in the first table are dropped.
        computed: how the units were computed.

    Attributes:
        keys: uint8 [n, 32] of the units.
        failed: bool [n], True for failed units.
    """

    def __init__(
        self, kind: TableKind, tables: Mapping[str, pa.Table], computed: Mapping[str, Any]
    ) -> None:
        first, *others = TABLES_OF[kind]
        self.keys = key_column(tables[first][KEY_OF[kind]])
        self.failed = np.zeros(len(self.keys), dtype=bool)
        if "error" in tables[first].column_names:
            self.failed = np.array(
                [code != "" for code in tables[first]["error"].to_pylist()], bool
            )
        self.computed = dict(computed)
        self._tables = {first: tables[first]}
        units = np.arange(len(self.keys) + 1)
        self._starts = {first: units}
        links = key_column(tables[first][_LINK_OF[kind]])
        order = unique_sorted(links)
        table = KeyTable(links[order])
        for name in others:
            found = table.find(key_column(tables[name][_LINK_OF[kind]]))
            owners = np.where(found >= 0, order[found], len(self.keys))
            by_unit = np.argsort(owners, kind="stable")
            in_order = (by_unit == np.arange(len(by_unit))).all()
            self._tables[name] = tables[name] if in_order else tables[name].take(by_unit)
            self._starts[name] = np.searchsorted(owners[by_unit], units)

    def take(self, name: str, units: NDArray[np.int64]) -> tuple[pa.Table, NDArray[np.int64]]:
        """The rows of ``units`` in one table, and the number of rows per unit: int64 [n]."""
        starts = self._starts[name]
        counts = starts[units + 1] - starts[units]
        return self._tables[name].take(pa.array(ranges(starts[units], counts))), counts


class BundleRows:
    """The units of several bundles; for equal keys the first wins, failed units last.

    Attributes:
        keys: uint8 [n, 32], sorted.
        failed: bool [n], True for failed units.
    """

    def __init__(self, kind: TableKind, bundles: Sequence[Bundle]) -> None:
        self._bundles, self._names = bundles, TABLES_OF[kind]
        none = np.empty(0, dtype=np.int64)
        numbers = [np.full(len(each.keys), i) for i, each in enumerate(bundles)]
        rows = [np.arange(len(each.keys)) for each in bundles]
        failed = np.concatenate([none.astype(bool), *(each.failed for each in bundles)])
        last = np.argsort(failed, kind="stable")
        keys = np.concatenate([np.empty((0, 32), np.uint8), *(each.keys for each in bundles)])[last]
        order = unique_sorted(keys)
        self.keys = keys[order]
        self._table = KeyTable(self.keys)
        self.failed = failed[last][order]
        self._numbers = np.concatenate([none, *numbers])[last][order]
        self._rows = np.concatenate([none, *rows])[last][order]

    def find(self, keys: Keys) -> NDArray[np.int64]:
        """Row of each key, or -1: int64 [n]."""
        return self._table.find(keys)

    def gather(self, rows: NDArray[np.int64]) -> dict[str, pa.Table]:
        """Every table of these units, in this order."""
        numbers = self._numbers[rows]
        order = np.argsort(numbers, kind="stable")
        edges = np.flatnonzero(np.diff(numbers[order])) + 1
        parts = np.split(order, edges)
        tables: dict[str, pa.Table] = {}
        for name in self._names:
            taken = [
                self._bundles[int(numbers[at[0]])].take(name, self._rows[rows[at]]) for at in parts
            ]
            units = np.repeat(order, np.concatenate([counts for _, counts in taken]))
            table = pa.concat_tables([table for table, _ in taken]).combine_chunks()
            tables[name] = table.take(pa.array(np.argsort(units, kind="stable"))).combine_chunks()
        return tables

    def computed(self, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
        """The distinct ways in which these units were computed."""
        return [self._bundles[int(i)].computed for i in np.unique(self._numbers[rows])]


def mapped(table: pa.Table, path: Path) -> pa.Table:
    """``table``, written to a new file and memory-mapped from it."""
    with pa.OSFile(path.as_posix(), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_file(pa.memory_map(path.as_posix())).read_all()


def as_tensors(tables: Mapping[str, pa.Table]) -> dict[str, NDArray[np.uint8]]:
    """Tables as byte arrays in Arrow's stream format."""
    found: dict[str, NDArray[np.uint8]] = {}
    for name, table in tables.items():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        data = sink.getvalue()
        found[name] = np.zeros(-(-data.size // 64) * 64, dtype=np.uint8)  # keeps each aligned
        found[name][: data.size] = np.frombuffer(data, np.uint8)
    return found


def from_tensor(data: NDArray[np.uint8]) -> pa.Table:
    """The table in the bytes from `as_tensors`, without a copy."""
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()
