"""What was read of files, remembered until they change, by their names and states.

A state is what `sightline.storage.look` finds, with all that the value depends on besides.
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

FILE_NAME = "remembered.parquet"
"""In the run folder of an output."""
_SCHEMA = pa.schema([("name", pa.string()), ("state", pa.string()), ("value", pa.binary())])


class FileMemory:
    """Values that were read from files, by the files' names and states.

    Args:
        path: the file that holds them; None: nothing is remembered.
        again: read everything again.
    """

    def __init__(self, path: Path | None = None, *, again: bool = False) -> None:
        self._path = path
        self._known = _SCHEMA.empty_table()
        if path is not None and not again:
            with suppress(Exception):  # of a damaged file nothing; the library may raise anything
                known = pq.read_table(path.absolute(), schema=_SCHEMA)
                known.validate(full=True)
                self._known = known
        self._kept: list[pa.Table] = []

    def __len__(self) -> int:
        """How many files were remembered."""
        return len(self._known)

    def recall(self, names: Sequence[str], states: Sequence[str]) -> pa.ChunkedArray:
        """The value of each file, binary [n]; null where it was not read in this state."""
        files = pa.table({"name": names, "state": states}, pa.schema([*_SCHEMA][:2]))
        rows = pc.index_in(_identities(files), value_set=_identities(self._known))
        values = self._known["value"].take(rows)
        self.keep(names, states, values)
        return values

    def keep(
        self,
        names: Sequence[str],
        states: Sequence[str],
        values: Sequence[bytes | None] | pa.ChunkedArray,
    ) -> None:
        """Remember values, except None, of files whose state can be told; from any thread."""
        table = pa.table({"name": names, "state": states, "value": values}, _SCHEMA)
        told = pc.and_(pc.not_equal(table["state"], ""), table["value"].is_valid())
        self._kept.append(table.filter(told))

    def save(self) -> None:
        """Remember what was recalled or kept, and nothing else, where that can be written."""
        table = pa.concat_tables([_SCHEMA.empty_table(), *self._kept])
        if self._path is None or not len(table) or self._path.is_symlink():
            return
        data = io.BytesIO()
        pq.write_table(table, data, compression="zstd")
        with suppress(OSError):
            # neither atomic nor durable: of a torn file nothing is remembered
            self._path.write_bytes(data.getbuffer())


def _identities(files: pa.Table) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(files["name"], files["state"], "\0")
