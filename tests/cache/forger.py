"""Intact feature sets, and an attacker's forgeries: every digest matches, but the files lie."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet as pq
from blake3 import blake3

from sightline.cache import EncoderRecord, FeatureSpec, SetWriter, keys_of_texts
from sightline.cache.record import FILE_NAME
from sightline.digest import digest

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
    """An intact set of three shards, with one failed row."""
    with SetWriter(folder, SPEC) as writer:
        for batch in writer.plan(KEYS, batch_size=16, shard_rows=30):
            rows = batch.keys[:, :DIM].astype(np.float32) / 7
            rows[(batch.keys == KEYS[0]).all(axis=1)] = np.nan
            writer.add(batch.keys, rows)
        writer.publish()


@dataclass(frozen=True)
class Forger:
    """Changes an intact set in ``folder``; ``outside`` holds a file that must not be touched."""

    folder: Path
    outside: Path

    def body(self) -> dict[str, Any]:
        found = json.loads((self.folder / FILE_NAME).read_text())
        del found["digest"]
        return found

    def commit(self, body: dict[str, Any]) -> None:
        """A commit file with content ``body`` and the matching digest."""
        text = json.dumps({**body, "digest": digest(body)}, indent=1, ensure_ascii=False)
        (self.folder / FILE_NAME).write_bytes((text + "\n").encode("utf-8", "surrogatepass"))

    @property
    def shard(self) -> Path:
        return self.folder / self.body()["shards"][0]["name"]

    @property
    def index(self) -> Path:
        return self.folder / self.body()["index"]["name"]

    def refit(self) -> None:
        """Update sizes and hashes in the commit file to match the files."""
        body = self.body()
        for file in (body["index"], *body["shards"]):
            path = self.folder / file["name"]
            if path.is_file():
                file["bytes"] = path.stat().st_size
                file["blake3"] = blake3(path.read_bytes()).hexdigest()
        self.commit(body)

    def hdf5(self, fill: Callable[[h5py.File, int], None]) -> None:
        """Replace the first shard with an HDF5 file with keys and the output of ``fill``."""
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
            found = struct.pack("<QQ", before, size)  # as in the layout message
            assert data.count(found) == 1
            data = data.replace(found, struct.pack("<QQ", after % 2**64, size))
        path.write_bytes(data)
        self.refit()

    def table(self, **changes: Any) -> None:
        """Replace columns of the index, or its write options."""
        options = changes.pop("options", {})
        table = pq.read_table(self.index)
        for name, values in changes.items():
            at = table.column_names.index(name)
            table = table.set_column(at, table.schema.field(name), values(table.column(name)))
        pq.write_table(table, self.index, **{"compression": "none", **options})
        self.refit()


def zeros(rows: int) -> np.ndarray:
    return np.zeros((rows, DIM), np.float16)


class _Payload:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (Path(f"{self.path}.owned"),)


def harmful_pickle(outside: Path) -> bytes:
    """A pickle that touches ``<outside>.owned`` when it is loaded."""
    return pickle.dumps(_Payload(outside))


Attacks = dict[str, tuple[Callable[[Forger], None], str]]
"""Name → how the set is forged, and part of the error message."""
