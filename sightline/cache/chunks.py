"""Tables of any size: a column of text or lists holds 2 GiB in one chunk, so it has several.

Arrow's own `take` and `combine_chunks` fail where the chunks of a column exceed that together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

CHUNK_BYTES = 1 << 30
"""About the most of a chunk."""


def chunk_rows(rows: int, size: int) -> int:
    """How many of ``rows`` rows of ``size`` bytes together make a chunk, or fewer."""
    return max(1, rows if size <= CHUNK_BYTES else rows * CHUNK_BYTES // size)


def joined(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """The rows of all tables, one after the other; in one chunk if there is room."""
    table = pa.concat_tables([schema.empty_table(), *tables])
    return table.combine_chunks() if table.nbytes <= CHUNK_BYTES else table


def taken(table: pa.Table, rows: NDArray[np.int64]) -> pa.Table:
    """Some rows, in this order; in one chunk if there is room."""
    if len(rows) == table.num_rows and (rows == np.arange(len(rows))).all():
        return table  # a copy may be gigabytes
    batches = table.to_batches()
    if len(batches) == 1 and table.nbytes <= CHUNK_BYTES:
        return table.take(pa.array(rows))
    ends = np.cumsum([len(batch) for batch in batches])
    step = chunk_rows(table.num_rows, table.nbytes)
    pieces = [_piece(batches, ends, rows[at : at + step]) for at in range(0, len(rows), step)]
    return pa.concat_tables(pieces) if pieces else table.schema.empty_table()


def _piece(
    batches: Sequence[pa.RecordBatch], ends: NDArray[np.int64], rows: NDArray[np.int64]
) -> pa.Table:
    """Rows of batches, of which each ends before row ``ends[i]``, in one chunk."""
    of = np.searchsorted(ends, rows, side="right")
    order = np.argsort(of, kind="stable")
    bounds = np.flatnonzero(np.diff(of[order], prepend=-1, append=len(batches)))
    parts = []
    for start, stop in pairwise(bounds.tolist()):
        number = int(of[order[start]])
        first = ends[number] - len(batches[number])
        parts.append(batches[number].take(pa.array(rows[order[start:stop]] - first)))
    back = np.argsort(order, kind="stable")
    return pa.Table.from_batches(parts).combine_chunks().take(pa.array(back))
