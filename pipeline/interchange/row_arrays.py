"""Columns of tables, and arrays in .npy, .npz, safetensors and HDF5, before they are read.

Nothing is unpickled, and no HDF5 is followed into another file.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import h5py
import numpy as np
import pyarrow as pa
from numpy.lib import format as npy_format
from numpy.typing import NDArray
from safetensors import safe_open

from sightline.errors import SightlineError
from sightline.files.file_kinds import FileKind, file_kind, unexpected
from sightline.tables.arrow_files import batches_of, plain_type, readable, schema_of
from sightline.wording import counted

_ROWS = 1024  # of a table at a time
_IMAGE_ROWS = 32  # of a table with images
_BLOCK_BYTES = 8 << 20  # of an array
_SUFFIXES: dict[str, FileKind] = {
    ".npy": "npy", ".npz": "npz", ".safetensors": "safetensors", ".h5": "hdf5", ".hdf5": "hdf5",
    ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow",
}  # fmt: skip
NEEDED = ("name", "features")
"""Columns of a table of features, for messages."""
FLOATS = ("float16", "float32", "float64")
_SAFETENSORS = {"F16": "float16", "F32": "float32", "F64": "float64", "BF16": "bfloat16"}


class Column(NamedTuple):
    """A column or array.

    Attributes:
        holds: rows are of `FLOATS`, [n, dim]; images are the bytes of files; numbers are whole.
        about: its type, for messages.
        read: its values in blocks: [≤ n, dim] of rows, else lists.
    """

    holds: Literal["rows", "texts", "images", "numbers", "other"]
    about: str
    read: Callable[[], Iterator[Any]]


class Array(NamedTuple):
    """An array of an open file; ``load`` gives what slices are taken from."""

    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], Any]


def kind_of_rows(path: Path) -> FileKind | None:
    """What a file is; of one whose content says nothing, what its suffix says."""
    with readable(path):
        kind = file_kind(path)
    by_suffix = _SUFFIXES.get(path.suffix.lower())
    return by_suffix or kind if kind in (None, "zip") else kind


def table_beside(path: Path) -> Path | None:
    """The table that belongs to a file of arrays."""
    tables = (path.with_suffix(suffix) for suffix in (".parquet", ".PARQUET", ".pq"))
    return next(filter(Path.is_file, tables), None)


def columns_in(path: Path) -> dict[str, Column]:
    """The columns of a table, or the arrays of a file, by name.

    If every array is one row, these are a column `features`, and their names one of `names`; in a
    file with a group for each image, the rows have the name that they have in every group.
    """
    if kind_of_rows(path) not in ARRAYS:
        return {field.name: _column(path, field) for field in schema_of(path)}
    with arrays_in(path) as arrays:
        groups = _arrays_of_groups(arrays)
        columns = {part: _one_of_each(path, arrays, names) for part, names in groups.items()}
        if rows := {part: column for part, column in columns.items() if column is not None}:
            images = [*next(iter(groups.values()))]
            return {**rows, "names": Column("texts", "names of arrays", lambda: iter([images]))}
        return {name: _array(path, name, array) for name, array in arrays.items()}


def _arrays_of_groups(arrays: Mapping[str, Array]) -> dict[str, dict[str, str]]:
    """Name of a part → image → array, where each array, or each group of HDF5, is of an image."""
    parts = [name.rpartition("/") for name in arrays]
    if not all(image and "." not in part for image, _, part in parts):
        return {"features": {name: name for name in arrays}}
    groups: dict[str, dict[str, str]] = {}
    for (image, _, part), name in zip(parts, arrays, strict=True):
        groups.setdefault(part, {})[image] = name
    images = {frozenset(of_part) for of_part in groups.values()}
    return groups if len(images) == 1 else {}


def _one_of_each(
    path: Path, arrays: Mapping[str, Array], names: Mapping[str, str]
) -> Column | None:
    """The column of arrays that are one row each; None if they are not."""
    shapes = [arrays[name].shape for name in names.values()]
    rows = {(arrays[name].dtype, arrays[name].shape[-1:]) for name in names.values()}
    flat = all(len(shape) == 1 for shape in shapes)
    single = len(shapes) > 1 and all(shape[:-1] == (1,) for shape in shapes)
    if len(rows) != 1 or not (flat or (single and table_beside(path) is None)):
        return None
    dtype, dim = rows.pop()
    column = _array(path, "", Array((len(shapes), *dim), dtype, list))
    read = partial(_each, path, [*names.values()])
    return column._replace(read=read) if column.holds == "rows" else None


# -- tables ------------------------------------------------------------------------------------


def _column(path: Path, field: pa.Field) -> Column:
    kind = field.type
    if plain_type(kind) in ("list of halffloat", "list of float", "list of double"):
        return Column("rows", str(kind), partial(_lists, path, field.name))
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:  # as `datasets` has images
        kind = kind.field("bytes").type
    default = "numbers" if pa.types.is_integer(kind) else "other"
    holds = {"string": "texts", "binary": "images"}.get(plain_type(kind), default)
    count = _IMAGE_ROWS if holds == "images" else _ROWS
    return Column(cast(Any, holds), str(field.type), partial(_cells, path, field.name, count))


def _cells(path: Path, name: str, count: int) -> Iterator[list[Any]]:
    for batch in batches_of(path, [name], count):
        yield batch.column(0).to_pylist()


def _lists(path: Path, name: str) -> Iterator[NDArray]:
    """The rows of a column of lists; a null is NaN, and so a row without a value."""
    done = dim = 0
    for batch in batches_of(path, [name], _ROWS):
        column = batch.column(0)
        values = column.flatten().to_numpy(zero_copy_only=False)
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        lengths = np.array([len(row) for row in column.filter(valid)], dtype=np.int64)
        dim = dim or int(next(iter(lengths), 0))
        if not dim or (lengths != dim).any():
            wrong = np.flatnonzero(valid)[(lengths != dim).argmax()] if len(lengths) else 0
            count = int(lengths[(lengths != dim).argmax()]) if len(lengths) else 0
            raise SightlineError(
                f"{path}: column {name!r}, row {done + wrong:,}: found {counted(count, 'number')}, "
                f"expected {f'{dim:,}, as before' if dim else 'some'}; correct it, or write null "
                "in its place, a row without a value (not in the first one)"
            )
        rows = np.full((len(column), dim), np.nan, values.dtype)
        rows[valid] = values.reshape(-1, dim)
        done += len(column)
        yield rows


# -- files of arrays ---------------------------------------------------------------------------


@contextmanager
def arrays_in(
    path: Path, expected: str = "arrays of numbers", kinds: tuple[FileKind, ...] = ()
) -> Iterator[dict[str, Array]]:
    """The arrays of a file by name, those of HDF5 by path, while it is open.

    Args:
        expected: what the file should be, for messages.
        kinds: that are taken; empty: all.
    """
    kind = kind_of_rows(path)
    if kind is not None and kind not in (kinds or ARRAYS):
        raise unexpected(path, kind, expected, NEEDED)
    with ExitStack() as stack:
        with readable(path):
            arrays = _READERS[kind or kinds[0]](path, stack)
        yield arrays


def _array(path: Path, name: str, array: Array) -> Column:
    about, rank = f"{array.dtype} {list(array.shape)}", len(array.shape)
    if array.dtype == "text" and rank == 1:
        return Column("texts", about, partial(_texts, path, name))
    if "int" in array.dtype and rank == 1:
        return Column("numbers", about, partial(_texts, path, name))
    if array.dtype in FLOATS and rank == 2 and array.shape[1]:
        return Column("rows", about, partial(_blocks, path, name))
    if array.dtype == "object":
        about += " (Python objects, a pickle, which is not read; save numbers or dtype=str)"
    return Column("other", about, lambda: iter(()))


def _texts(path: Path, name: str) -> Iterator[list[str]]:
    with arrays_in(path) as arrays, readable(path):
        values = list(arrays[name].load()[:])
        yield [value.decode() if isinstance(value, bytes) else str(value) for value in values]


def _blocks(path: Path, name: str) -> Iterator[NDArray]:
    with arrays_in(path) as arrays:
        (count, dim), dtype, load = arrays[name]
        rows, step = load(), max(1, _BLOCK_BYTES // (dim * np.dtype(dtype).itemsize))
        for start in range(0, count, step):
            yield np.ascontiguousarray(rows[start : min(start + step, count)])


def _each(path: Path, names: Sequence[str]) -> Iterator[NDArray]:
    with arrays_in(path) as arrays:
        loads = [arrays[name].load for name in names]
        for start in range(0, len(loads), _ROWS):
            block = [np.asarray(load()[:]).reshape(-1) for load in loads[start : start + _ROWS]]
            yield np.stack(block)


def _npy(path: Path, stack: ExitStack) -> dict[str, Array]:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    name = path.stem if array.ndim == 1 else "array"  # a file for each image
    return {name: Array(array.shape, array.dtype.name, lambda: array)}


def _npz(path: Path, stack: ExitStack) -> dict[str, Array]:
    archive = stack.enter_context(zipfile.ZipFile(path))
    names = [name for name in archive.namelist() if name.endswith(".npy")]
    return {name.removesuffix(".npy"): _member(path, archive, name) for name in names}


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> Array:
    with archive.open(name) as file:
        first = npy_format.read_magic(file) == (1, 0)
        header = npy_format.read_array_header_1_0 if first else npy_format.read_array_header_2_0
        shape, _, dtype = header(file)

    def load() -> NDArray:
        with archive.open(name) as file:
            return npy_format.read_array(file, allow_pickle=False)

    return Array(shape, "text" if dtype.kind in "US" else dtype.name, load)


def _safetensors(path: Path, stack: ExitStack) -> dict[str, Array]:
    """The tensors, and lists of texts that the metadata holds as JSON."""
    file = stack.enter_context(safe_open(path, "numpy"))
    arrays = {}
    for name, value in (file.metadata() or {}).items():
        with suppress(ValueError):
            texts = json.loads(value)
            if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
                arrays[name] = Array((len(texts),), "text", partial(list, texts))
    for name in file.keys():  # noqa: SIM118
        tensor = file.get_slice(name)
        dtype = _SAFETENSORS.get(str(tensor.get_dtype()), "other")
        arrays[name] = Array(tuple(tensor.get_shape()), dtype, partial(file.get_slice, name))
    return arrays


def _hdf5(path: Path, stack: ExitStack) -> dict[str, Array]:
    file = stack.enter_context(h5py.File(path, "r"))
    links: dict[str, object] = {}
    file.visititems_links(lambda name, link: links.update({name: link}))
    arrays = {}
    for name, link in links.items():
        data = file[name] if isinstance(link, h5py.HardLink) else link
        is_data = isinstance(data, h5py.Dataset)
        if isinstance(link, h5py.ExternalLink) or (is_data and (data.is_virtual or data.external)):
            raise SightlineError(
                f"{path}: /{name} lies in another file, where it is not read; copy the numbers "
                "into one file"
            )
        if is_data and data.shape is not None:
            text = h5py.check_string_dtype(data.dtype) is not None
            dtype = "text" if text else data.dtype.name
            arrays[name] = Array(data.shape, dtype, partial(file.get, name))
    return arrays


_READERS: dict[FileKind, Callable[[Path, ExitStack], dict[str, Array]]] = {
    "npy": _npy, "npz": _npz, "safetensors": _safetensors, "hdf5": _hdf5,
}  # fmt: skip
ARRAYS = tuple(_READERS)
"""Kinds of files that hold arrays."""
