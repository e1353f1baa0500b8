"""Feature rows as files that other projects read: Parquet, clip-retrieval's folders, safetensors.

Every format is split so that a folder of it can be uploaded to a hub: at most `MOST_FILES` files of
`MOST_BYTES` each. Rows are read once, in key order, a few megabytes at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors.numpy import save_file

from sightline.cache.keys import Keys
from sightline.errors import SightlineError

FEATURES, KEY = "features", "key"
"""Names of the column or tensor of rows, and of the column of keys."""
METADATA = "metadata/metadata_{number}.parquet"
"""Keys and names of the rows of an .npy or .safetensors file with the same number."""
MOST_FILES, MOST_BYTES = 10_000, 500_000_000
_OTHER_FILES = 2  # the card and the record
_FILL = 0.95  # of MOST_BYTES, for headers, page overhead and footers
_SAFETENSORS_BYTES = 128_000_000  # the library needs a file's tensors in memory
_CHUNK_BYTES = 16 << 20
_KEY_BYTES = 72  # as text, with its length


class Form(StrEnum):
    """Formats that a feature set can be written in."""

    PARQUET = "parquet"
    NPY = "npy"
    SAFETENSORS = "safetensors"


@dataclass(frozen=True)
class Source:
    """What is written.

    Attributes:
        read: range of rows → their keys and rows, uint8 [n, 32] and [n, dim]; called in order.
        rows, dim, dtype: of all of them.
        texts: whether they describe texts, not images.
        names: further columns, strings [rows], by name.
    """

    read: Callable[[range], tuple[Keys, NDArray]]
    rows: int
    dim: int
    dtype: np.dtype
    texts: bool
    names: Mapping[str, pa.Array]

    @property
    def row_bytes(self) -> int:
        return self.dim * self.dtype.itemsize

    def chunks(self, rows: range) -> Iterator[range]:
        """Parts of ``rows`` that take a few megabytes each."""
        step = max(1, _CHUNK_BYTES // self.row_bytes)
        for start in range(rows.start, rows.stop, step):
            yield range(start, min(start + step, rows.stop))

    def columns(self, rows: range, keys: Keys) -> dict[str, pa.Array]:
        """The names of some rows, and their keys as text."""
        named = {name: every.slice(rows.start, len(rows)) for name, every in self.names.items()}
        return {KEY: pa.array([key.tobytes().hex() for key in keys], pa.string()), **named}


def write_files(form: Form, folder: Path, source: Source) -> None:
    """Write the files of a format below ``folder``.

    Raises:
        SightlineError: they would be more than `MOST_FILES`; nothing has been written.
    """
    most = _SAFETENSORS_BYTES if form is Form.SAFETENSORS else MOST_BYTES
    parts = list(_files(source, int(min(most, MOST_BYTES) * _FILL)))
    files = len(parts) * (1 if form is Form.PARQUET else 2) + _OTHER_FILES
    if files > MOST_FILES:
        raise SightlineError(
            f"{source.rows:,} rows of {source.row_bytes:,} bytes would be {files:,} files of "
            f"{form}, more than the {MOST_FILES:,} that a hub accepts in a folder; share this set "
            "as an archive (--format tar), or in parts"
        )
    for number, rows in enumerate(parts):
        _WRITERS[form](folder, number, rows, source)
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_size > MOST_BYTES:
            raise SightlineError(f"{path.name}: larger than {MOST_BYTES:,} bytes")


def _files(source: Source, limit: int) -> Iterator[range]:
    """The rows of each file, as many as ``limit`` bytes hold."""
    sizes = np.full(source.rows, source.row_bytes + _KEY_BYTES, dtype=np.int64)
    for every in source.names.values():
        lengths = pc.call_function("binary_length", [every]).fill_null(0)
        sizes += lengths.to_numpy(zero_copy_only=False).astype(np.int64) + 8
    ends = np.cumsum(sizes)
    start = 0
    while start < source.rows or start == 0:
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + limit, side="right"))
        stop = min(max(stop, start + 1), source.rows)
        yield range(start, stop)
        if stop == source.rows:
            return
        start = stop


def _write_parquet(folder: Path, number: int, rows: range, source: Source) -> None:
    path = folder / "data" / f"rows-{number:04}.parquet"
    path.parent.mkdir(exist_ok=True)
    schema = row_schema(source)
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for table in row_tables(source, rows):
            writer.write_table(table)


def row_schema(source: Source) -> pa.Schema:
    """Columns of a table of rows: the key, the names, and the features as a fixed-size list."""
    kind = pa.float16() if source.dtype.itemsize == 2 else pa.float32()
    return pa.schema(
        [
            pa.field(KEY, pa.string(), nullable=False),
            *(pa.field(name, pa.string()) for name in source.names),
            pa.field(FEATURES, pa.list_(pa.field("item", kind, nullable=False), source.dim)),
        ]
    )


def row_tables(source: Source, rows: range) -> Iterator[pa.Table]:
    """Some rows as tables of a few megabytes each."""
    schema = row_schema(source)
    kind = schema.field(FEATURES).type
    for some in source.chunks(rows):
        keys, values = source.read(some)
        flat = pa.array(np.ascontiguousarray(values).reshape(-1), kind.value_type)
        lists = pa.FixedSizeListArray.from_arrays(flat, type=kind)
        yield pa.table({**source.columns(some, keys), FEATURES: lists}, schema)


def _write_npy(folder: Path, number: int, rows: range, source: Source) -> None:
    what = "text" if source.texts else "img"
    path = folder / f"{what}_emb" / f"{what}_emb_{number:04}.npy"
    path.parent.mkdir(exist_ok=True)
    header = {"descr": source.dtype.str, "fortran_order": False, "shape": (len(rows), source.dim)}
    with path.open("xb") as file, _metadata(folder, number, source) as write:
        np.lib.format.write_array_header_1_0(file, header)
        for some in source.chunks(rows):
            keys, values = source.read(some)
            file.write(np.ascontiguousarray(values).data)
            write(some, keys)


def _write_safetensors(folder: Path, number: int, rows: range, source: Source) -> None:
    path = folder / "data" / f"rows-{number:04}.safetensors"
    path.parent.mkdir(exist_ok=True)
    keys, values = source.read(rows)
    save_file({FEATURES: np.ascontiguousarray(values)}, path, {"format": "np"})
    with _metadata(folder, number, source) as write:
        write(rows, keys)


@contextmanager
def _metadata(folder: Path, number: int, source: Source) -> Iterator[Callable[[range, Keys], None]]:
    """Writes the keys and names of a file's rows to the table with its number."""
    path = folder / METADATA.format(number=f"{number:04}")
    path.parent.mkdir(exist_ok=True)
    schema = pa.schema([(KEY, pa.string()), *((name, pa.string()) for name in source.names)])
    with pq.ParquetWriter(path, schema) as writer:
        yield lambda rows, keys: writer.write_table(pa.table(source.columns(rows, keys), schema))


_WRITERS = {
    Form.PARQUET: _write_parquet,
    Form.NPY: _write_npy,
    Form.SAFETENSORS: _write_safetensors,
}
