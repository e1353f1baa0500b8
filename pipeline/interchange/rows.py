"""The rows of a feature set as tables and files that other tools read: Parquet and npy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sightline.cache import FeatureSet
from sightline.cache.feature_kind import is_of_texts
from sightline.tables.arrow_arrays import os_file

FEATURES, KEY = "features", "key"
"""Names of the column of rows, and of the column of keys (SHA-256, hexadecimal)."""
FILE_BYTES = 400_000_000
"""Of the rows in a file: hubs ask for less than 500 MB a file."""
_CHUNK_BYTES = 16 << 20
_TOLERANCE = 0.01  # of a length; float16 rounds lengths by less than 0.002


@dataclass(frozen=True)
class ExportedRows:
    """What is written.

    Attributes:
        names: further columns, strings or lists of strings [rows], by name.
        normalise: divide each row by its length.
    """

    features: FeatureSet
    names: Mapping[str, pa.Array] = field(default_factory=dict)
    normalise: bool = False

    @property
    def schema(self) -> pa.Schema:
        """Columns of a table of rows: key, names, and the features as a fixed-size list."""
        kind = pa.float16() if self.features.dtype.itemsize == 2 else pa.float32()
        item = pa.field("item", kind, nullable=False)
        names = [pa.field(name, column.type) for name, column in self.names.items()]
        rows = pa.field(FEATURES, pa.list_(item, self.features.dim))
        return pa.schema([pa.field(KEY, pa.string(), nullable=False), *names, rows])

    def tables(self, rows: range) -> Iterator[pa.Table]:
        """``rows`` as tables of `schema`, a few megabytes at a time."""
        step = max(1, _CHUNK_BYTES // (self.features.dim * self.features.dtype.itemsize))
        for start in range(rows.start, rows.stop, step):
            stop = min(start + step, rows.stop)
            values = self.features.gather(np.arange(start, stop))
            if self.normalise:
                values = unit_rows(values).astype(self.features.dtype)
            keys = pa.array([key.tobytes().hex() for key in self.features.keys[start:stop]])
            names = [every.slice(start, stop - start) for every in self.names.values()]
            kind = self.schema.field(FEATURES).type
            flat = pa.array(values.reshape(-1), kind.value_type)
            lists = pa.FixedSizeListArray.from_arrays(flat, type=kind)
            yield pa.table([keys, *names, lists], schema=self.schema)


def write_parquet(folder: Path, source: ExportedRows) -> None:
    """Write ``data/rows-N.parquet`` below ``folder``: key, names and features."""
    (folder / "data").mkdir()
    for number, rows in _files(source):
        path = folder / "data" / f"rows-{number:04}.parquet"
        with (
            os_file(path, "w") as file,
            pq.ParquetWriter(
                file, source.schema, compression="none", use_dictionary=False
            ) as writer,
        ):
            for table in source.tables(rows):
                writer.write_table(table)


def write_npy(folder: Path, source: ExportedRows) -> None:
    """Write clip-retrieval's layout below ``folder``: row i of the n-th .npy is row i of metadata.

    ``{img,text}_emb/{img,text}_emb_N.npy`` and ``metadata/metadata_N.parquet``, with the key as
    one of its columns (https://github.com/rom1504/clip-retrieval, clip_inference/writer.py).
    """
    prefix = "text" if is_of_texts(source.features.record.spec.kind) else "img"
    for name in (f"{prefix}_emb", "metadata"):
        (folder / name).mkdir()
    shape = {"descr": source.features.dtype.str, "fortran_order": False}
    for number, rows in _files(source):
        with ExitStack() as stack:
            path = folder / f"{prefix}_emb" / f"{prefix}_emb_{number:04}.npy"
            file = stack.enter_context(path.open("xb"))
            path = folder / "metadata" / f"metadata_{number:04}.parquet"
            table = stack.enter_context(os_file(path, "w"))
            schema = source.schema.remove(source.schema.get_field_index(FEATURES))
            writer = stack.enter_context(pq.ParquetWriter(table, schema))
            header = {**shape, "shape": (len(rows), source.features.dim)}
            np.lib.format.write_array_header_1_0(file, header)
            for part in source.tables(rows):
                file.write(part[FEATURES].chunk(0).values.to_numpy().data)
                writer.write_table(part.drop_columns([FEATURES]))


def _files(source: ExportedRows) -> Iterator[tuple[int, range]]:
    """The number and the rows of each file; at least one, which may have no rows."""
    count = len(source.features)
    step = max(1, FILE_BYTES // (source.features.dim * source.features.dtype.itemsize))
    for number, start in enumerate(range(0, max(count, 1), step)):
        yield number, range(start, min(start + step, count))


def unit_rows(rows: NDArray) -> NDArray[np.float32]:
    """Each row of [n, dim] divided by its length, in float32; rows of zeros stay."""
    values = rows.astype(np.float64)  # squares of large numbers overflow float32
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return (values / np.where(lengths > 0, lengths, 1)).astype(np.float32, copy=False)


def are_unit(rows: NDArray) -> bool:
    """Whether every row of [n, dim] has length 1, except for zeros and rows that are not finite."""
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    lengths = lengths[np.isfinite(lengths) & (lengths > 0)]
    return bool((np.abs(lengths - 1) <= _TOLERANCE).all())
