"""Rows of numbers in files of other projects, read a few megabytes at a time and never unpickled.

A `RowFile` is opened by its header alone, so that shapes are checked before anything is read.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from sightline.cache.manifest import read_batches, read_schema, read_table
from sightline.errors import SightlineError

_BLOCK_BYTES = 8 << 20
_DTYPES = {"float16", "float32"}
_MOST_DIM = 1 << 20
_ARROW_FILE = b"ARROW1"  # a stream begins with a message
_TEXT = ("string", "large_string")


@dataclass(frozen=True)
class RowFile:
    """Rows in one file.

    Attributes:
        path: of the file.
        rows, dim, dtype: from its header; the dtype is float16 or float32.
        read: the rows in order, [≤ n, dim] each, little-endian.
    """

    path: Path
    rows: int
    dim: int
    dtype: np.dtype
    read: Callable[[], Iterator[NDArray]]


def npy_file(path: Path) -> RowFile:
    """A NumPy file of rows.

    Raises:
        SightlineError: not one array [n, dim] of float16 or float32 in C order, or truncated.
    """

    @contextmanager
    def opened() -> Iterator[tuple[IO[bytes], int]]:
        with path.open("rb") as stream:
            yield stream, path.stat().st_size

    return _array(path, str(path), opened)


def npz_file(path: Path, name: str | None) -> RowFile:
    """One array of a NumPy archive.

    Args:
        name: of the array, such as ``l14_img``; None if it is the only one.

    Raises:
        SightlineError: as `npy_file`, not an archive, or no such array; lists those there are.
    """
    with _archive(path) as file:
        names = [each.removesuffix(".npy") for each in file.namelist() if each.endswith(".npy")]
    if name is None and len(names) == 1:
        name = names[0]
    if name not in names:
        found = ", ".join(repr(each[:40]) for each in names[:20]) or "no arrays"
        raise SightlineError(f"{path}: has {found}; name the array to import with --features")

    @contextmanager
    def opened() -> Iterator[tuple[IO[bytes], int]]:
        with _archive(path) as file, file.open(f"{name}.npy") as stream:
            yield stream, file.getinfo(f"{name}.npy").file_size

    return _array(path, f"{path}, {name}", opened)


def parquet_column(path: Path, column: str | None) -> RowFile:
    """A Parquet column of lists of one length.

    Args:
        column: its name; None if only one column is a `fixed_size_list` of numbers.

    Raises:
        SightlineError: no such column; lists those there are.
    """
    name, kind = _list_column(path, read_schema(path), column)
    rows = pq.ParquetFile(path).metadata.num_rows
    if isinstance(kind, pa.FixedSizeListType):
        dim = kind.list_size
    else:  # readers of Parquet files without Arrow's schema do not know that the length is fixed
        dim = next((len(b.column(0)[0]) for b in read_batches(path, [name], 1)), 0)
    step = max(1, _BLOCK_BYTES // max(1, dim * 4))
    batches = lambda: (batch.column(0) for batch in read_batches(path, [name], step))  # noqa: E731
    return _lists(path, name, kind, rows, dim, batches)


def arrow_column(path: Path, column: str | None) -> RowFile:
    """A column of an Arrow file or stream, as `parquet_column`."""
    with _arrow(path) as reader:
        name, kind = _list_column(path, reader.schema, column)
    rows, dim = 0, kind.list_size if isinstance(kind, pa.FixedSizeListType) else 0
    for batch in arrow_batches(path):
        rows += batch.num_rows
        if not dim and batch.num_rows and batch.column(name)[0].is_valid:
            dim = len(batch.column(name)[0])
    batches = lambda: (batch.column(name) for batch in arrow_batches(path))  # noqa: E731
    return _lists(path, name, kind, rows, dim, batches)


def safetensors_file(path: Path, name: str) -> RowFile:
    """A tensor of rows.

    Raises:
        SightlineError: not a file of safetensors, or no such tensor of float16 or float32 [n, dim].
    """
    try:
        with safe_open(path, "np") as file:
            if name not in file.keys():  # noqa: SIM118  (not a dictionary)
                raise SightlineError(f"{path}: has no tensor {name!r}")
            tensor = file.get_slice(name)
            shape, kind = tensor.get_shape(), tensor.get_dtype()
    except SafetensorError as error:
        raise SightlineError(f"{path}: not a file of safetensors ({error})") from error
    if kind not in ("F16", "F32") or len(shape) != 2 or not 0 < shape[1] <= _MOST_DIM:
        raise SightlineError(
            f"{path}: {name} is {kind} {shape}, expected float16 or float32 [n, dim]"
        )
    rows, dim = shape
    dtype = np.dtype("<f2" if kind == "F16" else "<f4")
    step = max(1, _BLOCK_BYTES // (dim * dtype.itemsize))

    def read() -> Iterator[NDArray]:
        with _readable(str(path)), safe_open(path, "np") as file:
            tensor = file.get_slice(name)
            for start in range(0, rows, step):
                yield tensor[start : min(start + step, rows)]

    return RowFile(path, rows, dim, dtype, read)


def column_names(path: Path) -> dict[str, str]:
    """Columns of a Parquet or Arrow file: name → type."""
    if path.suffix == ".parquet":
        schema = read_schema(path)
    else:
        with _arrow(path) as reader:
            schema = reader.schema
    return {field.name: str(field.type) for field in schema}


def texts_of_column(path: Path, column: str) -> list[str | None]:
    """The texts of a column of a Parquet or Arrow file, which `column_names` has."""
    kind = column_names(path)[column]
    if kind not in _TEXT:
        raise SightlineError(f"{path}: column {column!r} is {kind}, expected texts")
    if path.suffix == ".parquet":
        return read_table(path, [column])[column].to_pylist()
    return [text for batch in arrow_batches(path) for text in batch.column(column).to_pylist()]


def arrow_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The batches of an Arrow file or stream, memory-mapped."""
    with _arrow(path) as reader:
        if isinstance(reader, pa.ipc.RecordBatchFileReader):
            batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        else:
            batches = iter(reader)
        for batch in batches:
            batch.validate(full=True)
            yield batch


def _array(path: Path, where: str, opened: Any) -> RowFile:
    with _readable(where), opened() as (stream, size):
        shape, order, dtype = _header(where, stream)
        begin = stream.tell()
    if dtype.name not in _DTYPES or len(shape) != 2 or not 0 < shape[1] <= _MOST_DIM or order:
        layout = " in Fortran order" if order else ""
        raise SightlineError(
            f"{where}: {dtype} {list(shape)}{layout}, expected float16 or float32 [n, dim] in C "
            "order; convert it first"
        )
    rows, dim = shape
    if size - begin != rows * dim * dtype.itemsize:
        raise SightlineError(
            f"{where}: {size - begin:,} bytes of numbers, but its header promises {rows:,} × "
            f"{dim:,} {dtype.name}; it is truncated or damaged, so get it again"
        )
    step = max(1, _BLOCK_BYTES // (dim * dtype.itemsize))

    def read() -> Iterator[NDArray]:
        with _readable(where), opened() as (stream, _):
            _header(where, stream)
            for start in range(0, rows, step):
                count = min(step, rows - start)
                data = _exactly(where, stream, count * dim * dtype.itemsize)
                block = np.frombuffer(data, dtype).reshape(count, dim)
                yield block.astype(dtype.newbyteorder("<"), copy=False)

    return RowFile(path, rows, dim, dtype.newbyteorder("<"), read)


def _header(where: str, stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether it is in Fortran order, and dtype of the array that begins here."""
    try:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
            version, np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(stream)
    except Exception as error:  # as in `_readable`
        raise SightlineError(f"{where}: not a NumPy array ({error})") from error
    if dtype.hasobject:
        raise SightlineError(f"{where}: holds pickled objects, which are never loaded")
    return shape, fortran, dtype


def _exactly(where: str, stream: IO[bytes], count: int) -> bytes:
    pieces = []
    while count:
        piece = stream.read(count)
        if not piece:
            raise SightlineError(f"{where}: truncated; get it again")
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


@contextmanager
def _readable(where: str) -> Iterator[None]:
    """Errors of a damaged file as one sentence: on such files, the libraries may raise anything."""
    try:
        yield
    except SightlineError:
        raise
    except Exception as error:
        raise SightlineError(f"{where}: damaged, or not such a file ({error})") from error


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    with _readable(str(path)), zipfile.ZipFile(path) as file:
        yield file


@contextmanager
def _arrow(path: Path) -> Iterator[Any]:
    """A reader of an Arrow file, or of a stream, which `datasets` writes."""
    with _readable(str(path)), pa.memory_map(str(path)) as source:
        begins = source.read(len(_ARROW_FILE))
        source.seek(0)
        open_ = pa.ipc.open_file if begins == _ARROW_FILE else pa.ipc.open_stream
        yield open_(source)


def _list_column(path: Path, schema: pa.Schema, column: str | None) -> tuple[str, Any]:
    """Name and type of the column of rows."""
    fixed = [f.name for f in schema if isinstance(f.type, pa.FixedSizeListType)]
    if column is None and len(fixed) == 1:
        column = fixed[0]
    if column is None or column not in schema.names:
        columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
        raise SightlineError(
            f"{path}: has {columns[:500]}; name the column of features, a fixed_size_list of "
            "numbers, with --features"
        )
    kind = schema.field(column).type
    lists = isinstance(kind, pa.FixedSizeListType | pa.ListType | pa.LargeListType)
    values = str(kind.value_type) if lists else ""
    if values not in ("halffloat", "float"):
        raise SightlineError(
            f"{path}: column {column!r} is {kind}, expected lists of float16 or float32; convert "
            "it first"
        )
    return column, kind


def _lists(
    path: Path, name: str, kind: Any, rows: int, dim: int, batches: Callable[[], Iterator[Any]]
) -> RowFile:
    """Rows of a column of lists."""
    if rows and not 0 < dim <= _MOST_DIM:
        raise SightlineError(f"{path}: lists of {dim:,} numbers in column {name!r}")
    dtype = np.dtype("<f2" if str(kind.value_type) == "halffloat" else "<f4")

    def read() -> Iterator[NDArray]:
        done = 0
        for column in batches():
            values = column.flatten()
            if column.null_count or values.null_count or len(values) != len(column) * dim:
                raise SightlineError(
                    f"{path}: column {name!r}, rows {done:,} to {done + len(column) - 1:,}: "
                    f"expected {dim:,} numbers in each, found empty cells or other lengths"
                )
            done += len(column)
            yield values.to_numpy(zero_copy_only=False).astype(dtype, copy=False).reshape(-1, dim)

    return RowFile(path, rows, dim, dtype, read)
