"""Feature sets whose digests all match, while names, layout or values are not a set's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from forger import DIM, Attacks, Forger, harmful_pickle, zeros

from sightline.cache.record import FILE_NAME


def _rename_shard(name: str) -> Callable[[Forger], None]:
    def forge(f: Forger) -> None:
        body = f.body()
        body["shards"][0]["name"] = name.replace("SHARD", body["shards"][0]["name"])
        f.commit(body)

    return forge


def _instead(make: Callable[[Path, Forger], Any], which: str = "shard") -> Callable[[Forger], None]:
    def forge(f: Forger) -> None:
        path = f.folder / FILE_NAME if which == "record" else getattr(f, which)
        path.rename(aside(f))
        make(path, f)

    return forge


def aside(f: Forger) -> Path:
    return f.folder.parent / f"{f.folder.name} aside"


def _linked(which: str) -> Callable[[Forger], None]:
    return _instead(lambda path, f: path.symlink_to(aside(f)), which)


NAMES: Attacks = {
    "a name with ..": (_rename_shard("../SHARD"), "name"),
    "an absolute name": (_rename_shard("/etc/passwd"), "name"),
    "a name with a folder": (_rename_shard("more/SHARD"), "name"),
    "a name with a line end": (_rename_shard("SHARD\n"), "name"),
    "the record's own name": (_rename_shard(FILE_NAME), "name"),
    "a link for a shard": (_linked("shard"), "not a plain file"),
    "a link for the index": (_linked("index"), "not a plain file"),
    "a link for the record": (_linked("record"), "is a link"),
    "a link to nowhere": (_instead(lambda path, f: path.symlink_to("nowhere")), "not a plain file"),
    "a folder for a shard": (_instead(lambda path, f: path.mkdir()), "not a plain file"),
}


def _link(link: Any) -> Callable[[h5py.File, int], None]:
    def fill(file: h5py.File, rows: int) -> None:
        file["elsewhere"] = zeros(rows)
        file["features"] = link

    return fill


def _virtual(file: h5py.File, rows: int, where: str) -> None:
    layout = h5py.VirtualLayout((rows, DIM), np.float16)
    layout[:] = h5py.VirtualSource(where, "features", (rows, DIM))
    file.create_virtual_dataset("features", layout)


def _raw(file: h5py.File, rows: int, where: Path) -> None:
    external = [(str(where), 0, rows * DIM * 2)]
    file.create_dataset("features", (rows, DIM), np.float16, external=external)


def _plain(**options: Any) -> Callable[[h5py.File, int], None]:
    def fill(file: h5py.File, rows: int) -> None:
        file.create_dataset("features", data=zeros(rows), **options)

    return fill


def _same(what: Any) -> Callable[[h5py.File, int], None]:
    def fill(file: h5py.File, rows: int) -> None:
        file["features"] = what(rows)

    return fill


_NOT_PLAIN = "not one contiguous run of numbers"
HDF5: Attacks = {
    "an external link": (
        lambda f: f.hdf5(_link(h5py.ExternalLink(str(f.outside), "/features"))),
        _NOT_PLAIN,
    ),
    "a soft link": (lambda f: f.hdf5(_link(h5py.SoftLink("/elsewhere"))), _NOT_PLAIN),
    "a virtual data set": (
        lambda f: f.hdf5(lambda file, n: _virtual(file, n, str(f.outside))),
        _NOT_PLAIN,
    ),
    "external raw storage": (
        lambda f: f.hdf5(lambda file, n: _raw(file, n, f.outside)),
        _NOT_PLAIN,
    ),
    "a filter": (lambda f: f.hdf5(_plain(compression="gzip")), _NOT_PLAIN),
    "chunks": (lambda f: f.hdf5(_plain(chunks=True)), _NOT_PLAIN),
    "a group": (
        lambda f: f.hdf5(lambda file, n: file.create_group("features").name),
        _NOT_PLAIN,
    ),
    "other floats": (lambda f: f.hdf5(_same(lambda n: np.zeros((n, DIM)))), "expected float16"),
    "big-endian floats": (
        lambda f: f.hdf5(_same(lambda n: np.zeros((n, DIM), ">f2"))),
        "expected float16",
    ),
    "one row less": (lambda f: f.hdf5(_same(lambda n: zeros(n - 1))), "expected float16"),
    "values never written": (
        lambda f: f.hdf5(
            lambda file, n: file.create_dataset("features", (n, DIM), np.float16).name
        ),
        "outside the file",
    ),
    "an offset beyond the file": (
        lambda f: f.addresses(lambda features, keys, size: (size * 2, keys)),
        "outside the file|not a readable",
    ),
    "rows that end beyond the file": (
        lambda f: f.addresses(lambda features, keys, size: (size - 16, keys)),
        "outside the file|not a readable",
    ),
    "no HDF5": (lambda f: (f.shard.write_bytes(b"\0" * 4000), f.refit())[1], "not a readable HDF5"),
    "a pickle": (
        lambda f: (f.shard.write_bytes(harmful_pickle(f.outside) + b"\0" * 4000), f.refit())[1],
        "not a readable HDF5",
    ),
}


def _swap(column: Any) -> Any:
    values = column.to_pylist()
    return pa.array([values[1], values[0], *values[2:]], column.type)


def _constant(value: int) -> Callable[[Any], Any]:
    return lambda column: pa.array([value] * len(column), column.type)


INDEX: Attacks = {
    "no Parquet": (
        lambda f: (f.index.write_bytes(b"PAR1" + b"\0" * 4000 + b"PAR1"), f.refit())[1],
        "not a readable Parquet",
    ),
    "keys in another order": (lambda f: f.table(key=_swap), "not sorted"),
    "rows that no shard has": (lambda f: f.table(row=_constant(1000)), "rows that do not exist"),
    "a shard that is not there": (lambda f: f.table(shard=_constant(7)), "rows that do not exist"),
    "negative rows": (lambda f: f.table(row=_constant(-3)), "rows that do not exist"),
    "one row less in the index": (
        lambda f: (pq.write_table(pq.read_table(f.index)[1:], f.index), f.refit())[1],
        "has other rows than",
    ),
    "other columns": (
        lambda f: (
            pq.write_table(pq.read_table(f.index).rename_columns(list("abcde")), f.index),
            f.refit(),
        )[1],
        "not an index",
    ),
}


def _text(text: str | bytes) -> Callable[[Forger], None]:
    data = text.encode() if isinstance(text, str) else text
    return lambda f: (f.folder / FILE_NAME).write_bytes(data) and None


def _say(change: Callable[[dict[str, Any]], Any]) -> Callable[[Forger], None]:
    def forge(f: Forger) -> None:
        body = f.body()
        change(body)
        f.commit(body)

    return forge


RECORD: Attacks = {
    "JSON nested deeply": (_text("[" * 1_000_000), "truncated or not JSON"),
    "bytes that are not UTF-8": (_text(b'{"schema": "\xff\xfe"}'), "not JSON"),
    "a list": (_text("[1, 2]"), "schema version"),
    "another schema": (_text('{"schema": "sightline.set/1"}'), "use the Sightline version that"),
    "no digest": (_text('{"schema": "sightline.set/3"}'), "digest does not match"),
    "a negative number": (_say(lambda b: b["shards"][0].update(rows=-5)), "rows"),
    "true for a number": (_say(lambda b: b.update(failed=True)), "failed"),
    "text for a number": (_say(lambda b: b.update(rows="89")), "rows"),
    "a field that nobody knows": (_say(lambda b: b.update(run="rm -rf /")), "run"),
    "other settings": (_say(lambda b: b["spec"].update(precision="bf16")), "fingerprint"),
}

ATTACKS = NAMES | HDF5 | INDEX | RECORD
