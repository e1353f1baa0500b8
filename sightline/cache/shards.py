"""Shards: immutable files of rows by key. HDF5 holds numbers, Parquet everything else.

A shard is named by its keys and the digests of its rows, not by the bytes of the file, which hold
the version of the library that wrote them.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3
from numpy.typing import NDArray
from xxhash import xxh3_128_digest

from sightline.cache.keys import KEY_BYTES, Keys
from sightline.cache.manifest import (
    KEY,
    as_in_file,
    count_rows,
    key_array,
    key_column,
    read_manifest,
    read_table,
)
from sightline.cache.record import (
    REMEDY,
    FeatureSpec,
    ShardRecord,
    Spec,
    TableKind,
    TableSpec,
    check_file,
)
from sightline.cache.tables import ROWS_OF, SHARD_ROWS
from sightline.errors import CacheError, first_lines
from sightline.files.storage import require_of_file
from sightline.tables.arrow_arrays import number_array

DIGEST_BYTES = 16
_KEY = pa.field("key", KEY)
FEATURES, KEYS = "features", "keys"
TARGET_BYTES = 64 << 20
_VERSIONS = (h5py.h5f.LIBVER_V18, h5py.h5f.LIBVER_V110)
_ALIGNMENT = 8
"""Bytes; a memory map needs rows aligned to their numbers."""

Digests = NDArray[np.uint8]
"""uint8 [n, 16]: the XXH3-128 of each row."""
Computed = dict[str, Any]
"""Device, library versions and batch size used to compute rows."""


def shard_name(keys: Keys, digests: Digests, suffix: str) -> str:
    """Name of the shard with these rows."""
    content = blake3(np.ascontiguousarray(keys).data)
    content.update(np.ascontiguousarray(digests).data)
    return f"shard-{content.hexdigest()[:32]}.{suffix}"


@dataclass(frozen=True)
class Numbers:
    """Rows of ``dim`` numbers of one type, in HDF5, read through a memory map."""

    dim: int
    dtype: np.dtype

    suffix = "h5"

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's numbers."""
        return self.dim * self.dtype.itemsize

    @property
    def shard_rows(self) -> int:
        """Rows of a shard of about 64 MiB."""
        return max(1, TARGET_BYTES // self.row_bytes)

    def encode(self, keys: Keys, rows: NDArray) -> memoryview:
        """The bytes of a shard, the same for every version of HDF5."""
        arrays = {FEATURES: np.ascontiguousarray(rows, self.dtype), KEYS: keys}
        image = io.BytesIO()  # HDF5 never sees a disk failure
        with _new_file(image) as file:
            for name, array in arrays.items():
                file.create_dataset(name, data=array, track_times=False)
        return image.getbuffer()

    def opened(self, path: Path, record: ShardRecord) -> OpenShard:
        """The shard in a file of the recorded size; raises as `open_shard`."""
        expected = {KEYS: (KEY_BYTES, np.dtype(np.uint8)), FEATURES: (self.dim, self.dtype)}
        offsets: dict[str, int] = {}
        try:
            file = h5py.h5f.open(os.fsencode(path), h5py.h5f.ACC_RDONLY)
            for name, (width, kind) in expected.items():
                data = _plain_numbers(file, name.encode())
                if data is None:
                    raise CacheError(
                        f"{path}: /{name} is not one contiguous run of numbers in this file; "
                        f"{REMEDY}"
                    )
                if (data.shape, data.dtype) != ((record.rows, width), kind):
                    raise CacheError(
                        f"{path}: /{name} is {data.dtype} {data.shape}, expected {kind} "
                        f"{(record.rows, width)}; {REMEDY}"
                    )
                offsets[name] = data.get_offset() or 0
        except CacheError:
            raise
        except Exception as error:  # on damaged files the library may raise anything
            require_of_file(error, path)
            raise CacheError(
                f"{path}: not a readable HDF5 file ({first_lines(error)}); {REMEDY}"
            ) from error
        with pa.memory_map(os.fsencode(path)) as opened:
            whole = opened.read_buffer()  # which keeps no descriptor open, as `mmap` would
        maps: list[NDArray] = []
        for name, (width, kind) in expected.items():
            offset, size = offsets[name], record.rows * width * kind.itemsize
            if not offset or offset + size > record.bytes or offset % kind.itemsize:
                raise CacheError(f"{path}: /{name} is outside the file (offset {offset}); {REMEDY}")
            values = np.frombuffer(whole, kind, record.rows * width, offset)
            maps.append(values.reshape(record.rows, width))
        return OpenShard(maps[0], maps[1])

    def gathered(self, parts: Iterable[NDArray], places: Sequence[NDArray[np.int64]]) -> NDArray:
        """The rows of parts, of which each says at which places its rows belong: [n, dim]."""
        values = np.empty((sum(map(len, places)), self.dim), self.dtype)
        for part, of_part in zip(parts, places, strict=True):
            values[of_part] = part
        return values

    def concatenated(self, parts: Sequence[NDArray]) -> NDArray:
        """The rows of all parts, one after the other."""
        return np.concatenate([np.empty((0, self.dim), self.dtype), *parts])

    def digests(self, rows: NDArray) -> Digests:
        """XXH3-128 of each row's bytes: uint8 [n, 16]."""
        data = np.ascontiguousarray(rows).view(np.uint8).reshape(-1).data
        size = self.row_bytes
        row_digests = [xxh3_128_digest(data[at : at + size]) for at in range(0, len(data), size)]
        return np.frombuffer(b"".join(row_digests), np.uint8).reshape(-1, DIGEST_BYTES)


@dataclass(frozen=True)
class Tables:
    """Rows of an Arrow schema without the key, in Parquet."""

    schema: pa.Schema
    kind: TableKind

    suffix = "parquet"

    @property
    def shard_rows(self) -> int:
        """Rows of a shard of about 64 MiB."""
        return SHARD_ROWS[self.kind]

    def encode(self, keys: Keys, rows: pa.Table) -> memoryview:
        """The bytes of a shard with these rows."""
        table = as_in_file(rows.cast(self.schema).add_column(0, _KEY, key_array(keys)))
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        return memoryview(sink.getvalue())

    def opened(self, path: Path, record: ShardRecord) -> OpenShard:
        """As that of `Numbers`."""
        table = read_manifest(path, _with_key(self.schema), REMEDY)
        _require_rows(path, record, table.num_rows)
        return OpenShard(key_column(table.column("key")), table.drop_columns("key"))

    def gathered(self, parts: Iterable[pa.Table], places: Sequence[NDArray[np.int64]]) -> pa.Table:
        """As that of `Numbers`: a table of n rows."""
        order = np.concatenate([np.empty(0, dtype=np.int64), *places])
        table = self.concatenated(list(parts))
        if (order == np.arange(len(order))).all():
            return table  # a copy may be gigabytes
        return table.take(number_array(np.argsort(order, kind="stable")))

    def concatenated(self, parts: Sequence[pa.Table]) -> pa.Table:
        """The rows of all parts, one after the other."""
        return pa.concat_tables([self.schema.empty_table(), *parts]).combine_chunks()

    def digests(self, rows: pa.Table) -> Digests:
        """XXH3-128 of each row's JSON, in which bytes are the digest of theirs (hex): [n, 16]."""
        row_digests = [
            xxh3_128_digest(json.dumps(row, separators=(",", ":"), default=_hex).encode())
            for batch in rows.to_batches(1024)
            for row in batch.to_pylist()
        ]
        return np.frombuffer(b"".join(row_digests), np.uint8).reshape(-1, DIGEST_BYTES)


Format = Numbers | Tables
"""How new rows of a set are stored; both have the same methods."""


@overload
def format_of(spec: FeatureSpec) -> Numbers: ...
@overload
def format_of(spec: TableSpec) -> Tables: ...
def format_of(spec: Spec) -> Format:
    """How rows with this description are stored."""
    if isinstance(spec, FeatureSpec):
        return Numbers(spec.dim, np.dtype(spec.dtype).newbyteorder("<"))
    return Tables(ROWS_OF[spec.kind], spec.kind)


@dataclass(frozen=True, eq=False)
class OpenShard:
    """A shard whose rows can be taken, however they are encoded.

    Attributes:
        keys: uint8 [n, 32].
        rows: a read-only memory map [n, dim], which keeps no file open, or a table in memory.
    """

    keys: Keys
    rows: NDArray | pa.Table

    @property
    def is_mapped(self) -> bool:
        """Whether its rows take no memory."""
        return isinstance(self.rows, np.ndarray)

    def take(self, numbers: NDArray) -> NDArray | pa.Table:
        """Some rows, in the order of ``numbers``; a copy."""
        rows = self.rows
        return rows[numbers] if isinstance(rows, np.ndarray) else rows.take(number_array(numbers))


def open_shard(folder: Path, record: ShardRecord, spec: Spec) -> OpenShard:
    """A shard, in the encoding that its record names by the ending of its file.

    Raises:
        CacheError: the file is missing, of another size or encoding, or does not hold such rows; of
            numbers, its layout is anything but contiguous runs of plain numbers inside this file.
    """
    path, kind = check_file(folder, record), format_of(spec)
    if path.suffix != f".{kind.suffix}":
        raise CacheError(f"{path}: rows of kind {spec.kind} are not stored so; {REMEDY}")
    return kind.opened(path, record)


def keys_in(folder: Path, record: ShardRecord, spec: Spec) -> Keys:
    """The keys of a shard alone: uint8 [n, 32]; raises as `open_shard`."""
    if isinstance(spec, TableSpec):
        path = check_file(folder, record)
        _require_rows(path, record, count_rows(path))
        return key_column(read_table(path, pa.schema([_KEY])).column("key"))
    return open_shard(folder, record, spec).keys


def _require_rows(path: Path, record: ShardRecord, rows: int) -> None:
    if rows != record.rows:
        raise CacheError(f"{path}: found {rows:,} rows, expected {record.rows:,}; {REMEDY}")


def _new_file(image: io.BytesIO) -> h5py.File:
    """An HDF5 file in memory, whose data sets are aligned."""
    creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    creation.set_obj_track_times(False)  # of the root group, which has them before HDF5 2.0
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(*_VERSIONS)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    access.set_alignment(1, _ALIGNMENT)
    access.set_fileobj_driver(h5py.h5fd.fileobj_driver, image)
    return h5py.File(h5py.h5f.create(b"shard", h5py.h5f.ACC_TRUNC, creation, access))


def _with_key(rows: pa.Schema) -> pa.Schema:
    return rows.insert(0, _KEY)


def _hex(value: bytes) -> str:
    return xxh3_128_digest(value).hex()


def _plain_numbers(file: h5py.h5f.FileID, name: bytes) -> h5py.h5d.DatasetID | None:
    """The data set of this name, if its numbers are one run of bytes in the file itself.

    By HDF5's own functions; with h5py's classes, opening a file takes three times as long.
    """
    try:
        kind = h5py.h5g.get_objinfo(file, name, follow_link=False).type
    except (KeyError, ValueError):  # there is none
        return None
    if kind != h5py.h5g.DATASET:
        return None
    data = h5py.h5d.open(file, name)
    layout = data.get_create_plist()
    plain = layout.get_layout() == h5py.h5d.CONTIGUOUS and not layout.get_external_count()
    return data if plain else None
