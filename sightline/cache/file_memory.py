"""What was read of files, remembered until they change, by their names and states.

A state is what `sightline.files.storage.look` finds, with all that the value depends on besides.
"""

# pyarrow.compute makes its functions when it is imported:
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sightline.tables.arrow_arrays import os_file, text_array

_SCHEMA = pa.schema([("file", pa.string()), ("value", pa.binary())])


class FileMemory:
    """Values that were read from files, by the files' names and states.

    Args:
        path: the file that holds them; None: nothing is remembered.
        again: read everything again.
    """

    def __init__(self, path: Path | None = None, *, again: bool = False) -> None:
        self._path = path
        self._remembered = pa.Table.from_batches([], _SCHEMA)
        if path is not None and not again:
            with suppress(Exception):  # of a damaged file nothing; the library may raise anything
                # read_table would take half a second to import pandas, as other conversions
                with os_file(path) as file:
                    table = pq.ParquetFile(file).read().cast(_SCHEMA)
                table.validate(full=True)
                self._remembered = table
        self._kept: list[pa.Table] = []

    def __len__(self) -> int:
        """How many files were remembered."""
        return len(self._remembered)

    def recall(self, names: Sequence[str], states: Sequence[str]) -> pa.ChunkedArray:
        """The value of each file, binary [n]; null where it was not read in this state."""
        files = _files(names, states)
        values = self._remembered["value"].take(
            pc.index_in(files, value_set=self._remembered["file"])
        )
        self._keep(files, values)
        return values

    def keep(
        self, names: Sequence[str], states: Sequence[str], values: Sequence[bytes | None]
    ) -> None:
        """Remember values, except None, of files whose state can be told; from any thread."""
        self._keep(_files(names, states), text_array(values, pa.binary()))

    def _keep(self, files: pa.Array, values: pa.Array | pa.ChunkedArray) -> None:
        self._kept.append(pa.table([files, values], schema=_SCHEMA).drop_null())

    def save(self) -> None:
        """Remember what was recalled or kept, and nothing else, where that can be written."""
        table = pa.concat_tables([pa.Table.from_batches([], _SCHEMA), *self._kept])
        if self._path is None or not len(table) or self._path.is_symlink():
            return
        data = io.BytesIO()
        pq.write_table(table, data, compression="zstd")
        with suppress(OSError):
            # neither atomic nor durable: of a torn file nothing is remembered
            self._path.write_bytes(data.getbuffer())


def _files(names: Sequence[str], states: Sequence[str]) -> pa.Array:
    """Which file each is, in its state; null where that cannot be told."""
    both = zip(names, states, strict=True)
    return text_array([f"{name}\0{state}" if state else None for name, state in both], pa.string())
