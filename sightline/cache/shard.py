"""Shards: immutable HDF5 files of feature rows, written once and read through a memory map."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

import h5py
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from sightline.cache.errors import CacheError
from sightline.cache.keys import KEY_BYTES, Keys
from sightline.cache.record import FileRecord, ShardRecord
from sightline.output import Output

FEATURES, KEYS = "features", "keys"
TARGET_BYTES = 64 << 20
_VERSIONS = (h5py.h5f.LIBVER_V18, h5py.h5f.LIBVER_V110)
_ALIGNMENT = 8
"""Bytes; a memory map needs rows aligned to their numbers."""
_REMEDY = "do not use it; pull the set again, or rerun its stage"


def rows_per_shard(dim: int, itemsize: int, target_bytes: int = TARGET_BYTES) -> int:
    """Number of rows in a shard of about ``target_bytes``."""
    return max(1, target_bytes // (dim * itemsize))


def write_shard(
    output: Output, keys: Keys, features: NDArray, computed: dict[str, str | int]
) -> ShardRecord:
    """Write one shard, named by its keys and payload; equal rows give equal bytes.

    Args:
        keys: uint8 [n, 32], n ≥ 1.
        features: float16 or float32 [n, dim].
        computed: device, library versions and batch size, for the record.
    """
    features = np.ascontiguousarray(features, dtype=features.dtype.newbyteorder("<"))
    content = blake3(np.ascontiguousarray(keys).data)
    content.update(features.view(np.uint8).data)
    data = _image(keys, features)
    name = f"shard-{content.hexdigest()[:32]}.h5"
    output.write(name, data)
    return ShardRecord(
        name=name,
        blake3=blake3(data).hexdigest(),
        bytes=len(data),
        rows=len(keys),
        computed=computed,
    )


def _image(keys: Keys, features: NDArray) -> bytes:
    """The bytes of a shard, the same for every version of HDF5.

    It is built in memory, so that HDF5 never sees a disk failure, and read when the file is closed:
    the image of an open one has a wrong checksum before HDF5 2.0.
    """
    image = io.BytesIO()
    creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    creation.set_obj_track_times(False)  # of the root group, which has them before HDF5 2.0
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(*_VERSIONS)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    access.set_alignment(1, _ALIGNMENT)
    access.set_fileobj_driver(h5py.h5fd.fileobj_driver, image)
    opened = h5py.h5f.create(b"shard", h5py.h5f.ACC_TRUNC, fcpl=creation, fapl=access)
    with h5py.File(opened) as file:
        file.create_dataset(FEATURES, data=features, track_times=False)
        file.create_dataset(KEYS, data=keys, track_times=False)
    return image.getvalue()


def map_features(folder: Path, record: ShardRecord, dim: int, dtype: np.dtype) -> np.memmap:
    """The rows of a shard as a read-only memory map [rows, dim].

    Raises:
        CacheError: the file is missing or truncated, or its layout is anything but one contiguous
            run of plain numbers inside this file.
    """
    return _mapped(folder, record, FEATURES, (record.rows, dim), dtype)


def map_keys(folder: Path, record: ShardRecord) -> NDArray[np.uint8]:
    """The keys of a shard as a read-only memory map, uint8 [rows, 32]; raises as `map_features`."""
    return _mapped(folder, record, KEYS, (record.rows, KEY_BYTES), np.dtype(np.uint8))


def check_file(folder: Path, record: FileRecord) -> Path:
    """Path of a file of the set, checked to be a plain file of the recorded size.

    Raises:
        CacheError: it is missing, a link, or of the wrong size.
    """
    path = folder / record.name
    try:
        found = os.lstat(path)
    except OSError as error:
        raise CacheError(f"{path}: missing; {_REMEDY}") from error
    if not stat.S_ISREG(found.st_mode):
        # an untrusted link may point anywhere
        raise CacheError(
            f"{path}: not a plain file; a cache set contains no links "
            "(with DVC, use `dvc config cache.type reflink,hardlink,copy`)"
        )
    if found.st_size != record.bytes:
        raise CacheError(
            f"{path}: {found.st_size} bytes, expected {record.bytes}: truncated or changed; "
            f"{_REMEDY}"
        )
    return path


def _mapped(
    folder: Path, record: ShardRecord, name: str, shape: tuple[int, int], dtype: np.dtype
) -> np.memmap:
    path = check_file(folder, record)
    try:
        with h5py.File(path, "r") as file:
            linked = not isinstance(file.get(name, getlink=True), h5py.HardLink)
            data = None if linked else file[name]
            if not isinstance(data, h5py.Dataset) or (
                data.external or data.is_virtual or data.chunks
            ):
                raise CacheError(
                    f"{path}: /{name} is not one contiguous run of numbers in this file; {_REMEDY}"
                )
            if (data.shape, data.dtype) != (shape, dtype):
                raise CacheError(
                    f"{path}: /{name} is {data.dtype} {data.shape}, expected {dtype} {shape}; "
                    f"{_REMEDY}"
                )
            offset = data.id.get_offset()
    except CacheError:
        raise
    except Exception as error:  # on damaged files the library may raise anything
        raise CacheError(f"{path}: not a readable HDF5 file ({error}); {_REMEDY}") from error
    size = shape[0] * shape[1] * dtype.itemsize
    if not offset or offset + size > record.bytes or offset % dtype.itemsize:
        raise CacheError(f"{path}: /{name} is outside the file (offset {offset}); {_REMEDY}")
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape)
