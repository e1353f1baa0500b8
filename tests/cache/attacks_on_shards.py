"""Shards whose HDF5 lies: links, other files' bytes, wild shapes and addresses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from forger import DIM, Attacks, harmful_pickle, zeros


def _virtual(file: h5py.File, rows: int, where: str) -> None:
    layout = h5py.VirtualLayout((rows, DIM), np.float16)
    layout[:] = h5py.VirtualSource(where, "features", (rows, DIM))
    file.create_virtual_dataset("features", layout)


def _raw(file: h5py.File, rows: int, where: Path) -> None:
    external = [(str(where), 0, rows * DIM * 2)]
    file.create_dataset("features", (rows, DIM), np.float16, external=external)


def _named(file: h5py.File, rows: int) -> None:
    file["type"] = np.dtype(np.float16)
    file.create_dataset("features", data=zeros(rows), dtype=file["type"])


def _same(what: Any) -> Callable[[h5py.File, int], None]:
    def fill(file: h5py.File, rows: int) -> None:
        file["features"] = what(rows)

    return fill


def _link(link: Any) -> Callable[[h5py.File, int], None]:
    def fill(file: h5py.File, rows: int) -> None:
        file["elsewhere"] = zeros(rows)
        file["features"] = link

    return fill


def _plain(**options: Any) -> Callable[[h5py.File, int], None]:
    def fill(file: h5py.File, rows: int) -> None:
        file.create_dataset("features", data=zeros(rows), **options)

    return fill


def _beside(what: Any) -> Callable[[h5py.File, int], None]:
    def fill(file: h5py.File, rows: int) -> None:
        file["features"] = zeros(rows)
        file["more"] = what

    return fill


def _huge(file: h5py.File, rows: int) -> None:
    file.create_dataset("features", (1 << 40, 1 << 20), np.float16)


HDF5: Attacks = {
    "an external link": (
        lambda f: f.hdf5(_link(h5py.ExternalLink(str(f.outside), "/features"))),
        "external link",
    ),
    "a soft link": (lambda f: f.hdf5(_link(h5py.SoftLink("/elsewhere"))), "external link"),
    "a soft link to itself": (
        lambda f: f.hdf5(_link(h5py.SoftLink("/features"))),
        "external link",
    ),
    "a virtual data set": (
        lambda f: f.hdf5(lambda file, n: _virtual(file, n, str(f.outside))),
        "in another file",
    ),
    "a virtual data set of itself": (
        lambda f: f.hdf5(lambda file, n: _virtual(file, n, ".")),
        "in another file",
    ),
    "external raw storage": (
        lambda f: f.hdf5(lambda file, n: _raw(file, n, f.outside)),
        "in another file",
    ),
    "data beside the rows": (lambda f: f.hdf5(_beside(zeros(3))), "contains more than"),
    "an external link beside the rows": (
        lambda f: f.hdf5(_beside(h5py.ExternalLink(str(f.outside), "/features"))),
        "contains more than",
    ),
    "a filter": (lambda f: f.hdf5(_plain(compression="gzip")), "chunked or filtered"),
    "a checksum filter": (lambda f: f.hdf5(_plain(fletcher32=True)), "chunked or filtered"),
    "chunks": (lambda f: f.hdf5(_plain(chunks=True)), "chunked or filtered"),
    "a named type": (lambda f: f.hdf5(_named), "expected plain float16"),
    "other floats": (
        lambda f: f.hdf5(_same(lambda n: np.zeros((n, DIM)))),
        "expected plain float16",
    ),
    "big-endian floats": (
        lambda f: f.hdf5(_same(lambda n: np.zeros((n, DIM), ">f2"))),
        "expected plain float16",
    ),
    "text": (lambda f: f.hdf5(_same(lambda n: ["x"] * n)), "expected plain float16"),
    "references": (
        lambda f: f.hdf5(
            lambda file, n: file.create_dataset("features", (n, DIM), h5py.ref_dtype).name
        ),
        "expected plain float16",
    ),
    "a group": (
        lambda f: f.hdf5(lambda file, n: file.create_group("features").name),
        "not a data set",
    ),
    "a group that is its own": (
        lambda f: f.hdf5(lambda file, n: file.__setitem__("features", file["/"])),
        "not a data set",
    ),
    "one row less": (lambda f: f.hdf5(_same(lambda n: zeros(n - 1))), "has shape"),
    "a scalar": (lambda f: f.hdf5(_same(lambda n: np.float16(1))), "has shape"),
    "no values": (lambda f: f.hdf5(_same(lambda n: h5py.Empty(np.float16))), "has shape"),
    "a huge shape": (lambda f: f.hdf5(_huge), "has shape"),
    "values never written": (
        lambda f: f.hdf5(
            lambda file, n: file.create_dataset("features", (n, DIM), np.float16).name
        ),
        "outside the file|overlap|cannot hold",
    ),
    "an offset beyond the file": (
        lambda f: f.addresses(lambda features, keys, size: (size * 2, keys)),
        "outside the file|not a readable",
    ),
    "an offset near 2 to the 64": (
        lambda f: f.addresses(lambda features, keys, size: (-64, keys)),
        "outside the file|not a readable",
    ),
    "rows that end beyond the file": (
        lambda f: f.addresses(lambda features, keys, size: (size - 16, keys)),
        "outside the file|not a readable",
    ),
    "features over the keys": (
        lambda f: f.addresses(lambda features, keys, size: (keys, keys)),
        "overlap",
    ),
    "features half over the keys": (
        lambda f: f.addresses(lambda features, keys, size: (keys + 16, keys)),
        "overlap",
    ),
    "features over the head of the file": (
        lambda f: f.addresses(lambda features, keys, size: (0, keys)),
        "outside the file|not a readable",
    ),
    "no HDF5": (lambda f: (f.shard.write_bytes(b"\0" * 4000), f.refit())[1], "not a readable HDF5"),
    "a pickle": (
        lambda f: (f.shard.write_bytes(harmful_pickle(f.outside) + b"\0" * 4000), f.refit())[1],
        "not a readable HDF5",
    ),
}
