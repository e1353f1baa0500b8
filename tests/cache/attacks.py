"""Feature sets as an attacker would forge them: every digest fits, and every file lies."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.cache import EncoderRecord, FeatureSetWriter, FeatureSpec, keys_of_texts
from pipeline.cache.record import FILE_NAME, digest

DIM, ROWS = 8, 90
SPEC = FeatureSpec(
    kind="image",
    encoder=EncoderRecord(name="stub", source="random:0", weights_sha256="0" * 64, untrained=True),
    preprocessing={"resize": 224, "eps": 1e-05},
    precision="fp32",
    dim=DIM,
    dtype="float16",
)
KEYS = keys_of_texts([str(i) for i in range(ROWS)])


def write_set(folder: Path) -> None:
    """A sound set of three shards, with one row in error."""
    with FeatureSetWriter(folder, SPEC) as writer:
        for batch in writer.plan(KEYS, batch_size=16, shard_bytes=30 * DIM * 2):
            rows = batch.keys[:, :DIM].astype(np.float32) / 7
            rows[(batch.keys == KEYS[0]).all(axis=1)] = np.nan
            writer.add(batch.keys, rows)
        writer.publish({"device": "cpu"})


@dataclass(frozen=True)
class Forger:
    """Changes a sound set in ``folder``; ``outside`` holds a file that nobody may touch."""

    folder: Path
    outside: Path

    def body(self) -> dict[str, Any]:
        found = json.loads((self.folder / FILE_NAME).read_text())
        del found["digest"]
        return found

    def commit(self, body: dict[str, Any]) -> None:
        """A commit file that says ``body``, with the digest that it should have."""
        text = json.dumps({**body, "digest": digest(body)}, indent=1, ensure_ascii=False)
        (self.folder / FILE_NAME).write_bytes((text + "\n").encode("utf-8", "surrogatepass"))

    @property
    def shard(self) -> Path:
        return self.folder / self.body()["shards"][0]["name"]

    @property
    def index(self) -> Path:
        return self.folder / self.body()["index"]["name"]

    def refit(self) -> None:
        """Sizes and hashes in the commit file become those of the files."""
        from pipeline.cache import key_of_file

        body = self.body()
        for file in (body["index"], *body["shards"]):
            path = self.folder / file["name"]
            if path.is_file():
                file["bytes"], file["sha256"] = path.stat().st_size, key_of_file(path).hex()
        self.commit(body)

    def hdf5(self, fill: Callable[[h5py.File, int], None]) -> None:
        """Replace the first shard by an HDF5 file with keys and whatever ``fill`` makes."""
        rows = self.body()["shards"][0]["rows"]
        path = self.shard
        with h5py.File(path) as file:
            keys = file["keys"][:]
        path.unlink()
        with h5py.File(path, "w") as file:
            file["keys"] = keys
            fill(file, rows)
        self.refit()

    def addresses(self, move: Callable[[int, int, int], tuple[int, int]]) -> None:
        """Move the storage of the first shard: (features, keys, size) → (features, keys).

        Old object headers have no checksum, so an address can be written over.
        """
        path = self.shard
        with h5py.File(path) as file:
            features, keys = file["features"][:], file["keys"][:]
        with h5py.File(path, "w", libver="earliest") as file:
            file["features"], file["keys"] = features, keys
            old = [file[name].id.get_offset() for name in ("features", "keys")]
        sizes = features.nbytes, keys.nbytes
        data = path.read_bytes()
        for before, after, size in zip(old, move(*old, len(data)), sizes, strict=True):
            found = struct.pack("<QQ", before, size)  # as the layout message has it
            assert data.count(found) == 1
            data = data.replace(found, struct.pack("<QQ", after % 2**64, size))
        path.write_bytes(data)
        self.refit()

    def table(self, **changes: Any) -> None:
        """Replace columns of the index, or the way in which it is written."""
        options = changes.pop("options", {})
        table = pq.read_table(self.index)
        for name, values in changes.items():
            at = table.column_names.index(name)
            table = table.set_column(at, table.schema.field(name), values(table.column(name)))
        pq.write_table(table, self.index, **{"compression": "none", **options})
        self.refit()


def zeros(rows: int) -> np.ndarray:
    return np.zeros((rows, DIM), np.float16)


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


def _huge(file: h5py.File, rows: int) -> None:
    file.create_dataset("features", (1 << 40, 1 << 20), np.float16)


HDF5: dict[str, tuple[Callable[[Forger], None], str]] = {
    "an external link": (
        lambda f: f.hdf5(_link(h5py.ExternalLink(str(f.outside), "/features"))),
        "link to elsewhere",
    ),
    "a soft link": (lambda f: f.hdf5(_link(h5py.SoftLink("/elsewhere"))), "link to elsewhere"),
    "a soft link to itself": (
        lambda f: f.hdf5(_link(h5py.SoftLink("/features"))),
        "link to elsewhere",
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
    "a filter": (lambda f: f.hdf5(_plain(compression="gzip")), "chunked or filtered"),
    "a checksum filter": (lambda f: f.hdf5(_plain(fletcher32=True)), "chunked or filtered"),
    "chunks": (lambda f: f.hdf5(_plain(chunks=True)), "chunked or filtered"),
    "a named type": (lambda f: f.hdf5(_named), "expected float16"),
    "other floats": (lambda f: f.hdf5(_same(lambda n: np.zeros((n, DIM)))), "expected float16"),
    "big-endian floats": (
        lambda f: f.hdf5(_same(lambda n: np.zeros((n, DIM), ">f2"))),
        "expected float16",
    ),
    "text": (lambda f: f.hdf5(_same(lambda n: ["x"] * n)), "expected float16"),
    "references": (
        lambda f: f.hdf5(
            lambda file, n: file.create_dataset("features", (n, DIM), h5py.ref_dtype).name
        ),
        "expected float16",
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


def _rename_shard(name: str) -> Callable[[Forger], None]:
    def forge(f: Forger) -> None:
        body = f.body()
        body["shards"][0]["name"] = name.replace("SHARD", body["shards"][0]["name"])
        f.commit(body)

    return forge


def _instead(make: Callable[[Path, Forger], Any], which: str = "shard") -> Callable[[Forger], None]:
    def forge(f: Forger) -> None:
        path = f.folder / FILE_NAME if which == "record" else getattr(f, which)
        aside = f.folder.parent / f"{f.folder.name} aside"
        path.rename(aside)
        make(path, f)

    return forge


NAMES: dict[str, tuple[Callable[[Forger], None], str]] = {
    "a name with ..": (_rename_shard("../SHARD"), "not allowed"),
    "an absolute name": (_rename_shard("/etc/passwd"), "not allowed"),
    "a name with a folder": (_rename_shard("more/SHARD"), "not allowed"),
    "a name with a zero": (_rename_shard("SHARD\0"), "not allowed"),
    "a name with a line end": (_rename_shard("SHARD\n"), "not allowed"),
    "an endless name": (_rename_shard("x" * 100_000), "not allowed"),
    "the record's own name": (_rename_shard(FILE_NAME), "not allowed"),
    "one name twice": (
        lambda f: f.commit({**(b := f.body()), "shards": [b["shards"][0], *b["shards"]]}),
        "names a file twice",
    ),
    "a link for a shard": (
        _instead(lambda path, f: path.symlink_to(f.folder.parent / f"{f.folder.name} aside")),
        "not a plain file",
    ),
    "a link for the index": (
        _instead(
            lambda path, f: path.symlink_to(f.folder.parent / f"{f.folder.name} aside"), "index"
        ),
        "not a plain file",
    ),
    "a link for the record": (
        _instead(
            lambda path, f: path.symlink_to(f.folder.parent / f"{f.folder.name} aside"), "record"
        ),
        "is a link",
    ),
    "a link to nowhere": (_instead(lambda path, f: path.symlink_to("nowhere")), "not a plain file"),
    "a pipe for a shard": (_instead(lambda path, f: os.mkfifo(path)), "not a plain file"),
    "a pipe for the record": (
        _instead(lambda path, f: os.mkfifo(path), "record"),
        "no feature set here",
    ),
    "a folder for a shard": (_instead(lambda path, f: path.mkdir()), "not a plain file"),
}


def _text(text: str | bytes) -> Callable[[Forger], None]:
    def forge(f: Forger) -> None:
        data = text.encode() if isinstance(text, str) else text
        (f.folder / FILE_NAME).write_bytes(data)

    return forge


def _say(change: Callable[[dict[str, Any]], Any]) -> Callable[[Forger], None]:
    def forge(f: Forger) -> None:
        body = f.body()
        change(body)
        if "fingerprint" in body and isinstance(body["spec"], dict):
            spec = {k: v for k, v in body["spec"].items() if k not in ("encoder", "kind")}
            encoder = body["spec"]["encoder"]
            spec |= {"schema": body["schema"], "kind": body["spec"]["kind"]}
            spec |= {"encoder": encoder["name"], "weights_sha256": encoder["weights_sha256"]}
            body["fingerprint"] = digest(spec)
        f.commit(body)

    return forge


def _deep(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


JSON: dict[str, tuple[Callable[[Forger], None], str]] = {
    "JSON nested deeply": (_text("[" * 1_000_000), "cut short or not JSON|nested too deeply"),
    "objects nested deeply": (
        _text('{"a":' * 200_000 + "0" + "}" * 200_000),
        "cut short or not JSON|nested too deeply",
    ),
    "preprocessing nested deeply": (
        _say(lambda b: b["spec"]["preprocessing"].update(x=_deep(300))),
        "recursion|nested|depth",
    ),
    "a number of a million digits": (_text("1" * 1_000_000), "not JSON"),
    "a number that is infinite": (
        _text('{"schema": "sightline.feature_set/1", "rows": 1e999}'),
        "digest does not fit",
    ),
    "NaN": (_text('{"schema": "sightline.feature_set/1", "rows": NaN}'), "NaN is no JSON number"),
    "a huge file": (_text(b" " * (9 << 20)), "more than the"),
    "a million empty lists": (
        _text('{"schema": "sightline.feature_set/1", "x": [' + "[]," * 1_000_000 + "0]}"),
        "digest does not fit",
    ),
    "half a surrogate pair": (
        _text('{"schema": "sightline.feature_set/1", "x": "\\ud800", "digest": ""}'),
        "not Unicode",
    ),
    "bytes that are not UTF-8": (_text(b'{"schema": "\xff\xfe"}'), "not JSON"),
    "a list": (_text("[1, 2]"), "schema version"),
    "a schema that is no name": (_text('{"schema": {"x": []}}'), "schema version"),
    "a name that writes to the terminal": (
        _say(lambda b: b["spec"]["encoder"].update(name="\x1b]0;owned\x07\x1b[2J")),
        "spec.encoder.name",
    ),
    "a source of two lines": (
        _say(lambda b: b["spec"]["encoder"].update(source="good\nrandom:0")),
        "spec.encoder.source",
    ),
    "a library name that writes to the terminal": (
        _say(lambda b: b["shards"][0]["computed"].update(device="\x1b[2J")),
        "computed",
    ),
    "more rows than memory": (_say(lambda b: b.update(rows=1 << 47)), "cannot hold"),
    "more failures than memory": (_say(lambda b: b.update(failed=1 << 47)), "cannot hold"),
    "a shard of more rows than bytes": (
        _say(lambda b: b["shards"][0].update(rows=(1 << 31) - 1)),
        "cannot hold",
    ),
    "rows of a million numbers": (_say(lambda b: b["spec"].update(dim=1 << 20)), "cannot hold"),
    "rows beyond what can be counted": (_say(lambda b: b.update(rows=10**30)), "rows"),
    "a negative number": (_say(lambda b: b["shards"][0].update(rows=-5)), "rows"),
    "true for a number": (_say(lambda b: b.update(failed=True)), "failed"),
    "text for a number": (_say(lambda b: b.update(rows="89")), "rows"),
    "a field that nobody knows": (_say(lambda b: b.update(run="rm -rf /")), "run"),
}


def _patched(old: bytes, new: bytes) -> Callable[[Forger], None]:
    def forge(f: Forger) -> None:
        data = f.index.read_bytes()
        assert old in data
        f.index.write_bytes(data.replace(old, new))
        f.refit()

    return forge


def _tail(length: int) -> Callable[[Forger], None]:
    """Lie about the length of the Parquet footer."""

    def forge(f: Forger) -> None:
        data = f.index.read_bytes()
        f.index.write_bytes(data[:-8] + struct.pack("<I", length) + b"PAR1")
        f.refit()

    return forge


def _status(values: list[str]) -> Callable[[Any], Any]:
    def change(column: Any) -> Any:
        codes = pa.array(values[:1] + ["ok"] * (len(column) - 1))
        return codes.dictionary_encode().cast(column.type)

    return change


def _bomb(f: Forger) -> None:
    """A few thousand bytes that say a million rows, as run lengths do."""
    count = 1_000_000
    schema = pq.read_schema(f.index)
    table = pa.table(
        {
            "key": pa.array([b"\0" * 32] * count, pa.binary(32)),
            "shard": np.zeros(count, np.int32),
            "row": np.zeros(count, np.int32),
            "status": pa.array(["ok"] * count).dictionary_encode(),
        }
    ).cast(schema)
    pq.write_table(table, f.index, compression="none", use_dictionary=True)
    assert f.index.stat().st_size < 20_000
    f.refit()
    f.commit({**f.body(), "rows": count})


def _swap(column: Any) -> Any:
    values = column.to_pylist()
    return pa.array([values[1], values[0], *values[2:]], column.type)


PARQUET: dict[str, tuple[Callable[[Forger], None], str]] = {
    "a footer longer than the file": (_tail(0xFFFFFFFF), "not a readable Parquet"),
    "a footer of no length": (_tail(0), "not a readable Parquet"),
    "a footer that begins too early": (_tail(2000), "not a readable Parquet"),
    "a pickle for an index": (
        lambda f: (f.index.write_bytes(harmful_pickle(f.outside) + b"\0" * 4000), f.refit())[1],
        "not a readable Parquet",
    ),
    "zeros for an index": (
        lambda f: (f.index.write_bytes(b"PAR1" + b"\0" * 4000 + b"PAR1"), f.refit())[1],
        "not a readable Parquet",
    ),
    "a million rows in a small index": (_bomb, "cannot hold"),
    "a compressed index": (lambda f: f.table(options={"compression": "zstd"}), "not an index"),
    "an error code of megabytes": (
        lambda f: f.table(status=_status(["x" * 5_000_000])),
        "error codes",
    ),
    "an error code for the terminal": (
        lambda f: f.table(status=_status(["\x1b[2J"])),
        "error codes",
    ),
    "keys in another order": (lambda f: f.table(key=_swap), "not sorted"),
    "rows that no shard has": (
        lambda f: f.table(row=lambda c: pa.array([1000] * len(c), c.type)),
        "no shard has",
    ),
    "a shard that is not there": (
        lambda f: f.table(shard=lambda c: pa.array([7] * len(c), c.type)),
        "no shard has|rows",
    ),
    "negative rows": (
        lambda f: f.table(row=lambda c: pa.array([-3] * len(c), c.type)),
        "no shard has",
    ),
    "one row less in the index": (
        lambda f: (pq.write_table(pq.read_table(f.index)[1:], f.index), f.refit())[1],
        "rows, expected",
    ),
    "other columns": (
        lambda f: (
            pq.write_table(pq.read_table(f.index).rename_columns(list("abcd")), f.index),
            f.refit(),
        )[1],
        "not an index",
    ),
}


class _Payload:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (Path(f"{self.path}.owned"),)


def harmful_pickle(outside: Path) -> bytes:
    """A pickle that touches ``<outside>.owned`` when it is loaded."""
    return pickle.dumps(_Payload(outside))


ATTACKS = HDF5 | NAMES | JSON | PARQUET
"""Name → how the set is forged, and what the refusal says."""
