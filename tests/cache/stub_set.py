"""Sets of every kind, filled by a stub (a row follows from its key), and a forger of sets."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3

from sightline.cache import (
    EncoderRecord,
    FeatureSet,
    FeatureSpec,
    PhraseTokenHeader,
    PhraseTokens,
    SetWriter,
    TokenHeader,
    TokenSet,
    keys_of_texts,
)
from sightline.cache.manifest import as_in_file
from sightline.cache.record import FILE_NAME, TABLE_KINDS, TableSpec
from sightline.cache.table_sets import described, open_tables
from sightline.cache.tables import ROWS_OF
from sightline.digest import digest

KINDS = ("image", *TABLE_KINDS)
"""One kind of features, since all are read alike, and every other kind."""
every_kind = pytest.mark.parametrize("kind", KINDS)
every_table = pytest.mark.parametrize("kind", TABLE_KINDS)
every_format = pytest.mark.parametrize("kind", ["image", "tokens"])
"""For what depends on how rows are stored: numbers, or tables."""

DIM, SHARD_ROWS = 8, 30
SPEC = FeatureSpec(
    kind="image",
    encoder=EncoderRecord(name="stub", source="random:0", weights_sha256="0" * 64, untrained=True),
    preprocessing={"resize": 224, "eps": 1e-05},
    precision="fp32",
    dim=DIM,
    dtype="float16",
)
HEADER = TokenHeader("0" * 64, max_length=8, pad_token_id=0, vocabulary_size=100)
SPANS = PhraseTokenHeader("0" * 64, max_length=8, phrases=60, dropped={"cut": 20})
_HEADERS = {"tokens": described(HEADER), "phrase-tokens": described(SPANS)}
SPECS: dict[str, Any] = {
    "image": SPEC,
    **{k: TableSpec(kind=k, description=_HEADERS.get(k, {"made": "here"})) for k in TABLE_KINDS},
}
KEYS = keys_of_texts([str(i) for i in range(100)])


def rows_of(keys: np.ndarray, spec: Any = SPEC) -> Any:
    if isinstance(spec, FeatureSpec):
        return keys[:, :DIM].astype(np.float32) / 7
    rows = [_row(spec.kind, key.tobytes()) for key in keys]
    return pa.Table.from_pylist(rows, ROWS_OF[spec.kind])


def _row(kind: str, key: bytes) -> dict[str, Any]:
    count, about = key[0] % 3, {"caption_key": key, "phrase": "a dög"}
    span = {"token_start": count, "token_end": count + 1, "cutout_key": key}
    where = {"char_start": 0, "char_end": 5, "box": [0.0, 1.0, 2.5, 3.0], "score": key[1] / 256}
    mask = {"size": [2, 3], "counts": "021O1"}
    return {
        "grounding": {
            "image_key": key,
            "captions": 2,
            "phrases": [{**about, **where, "mask": mask, "cutout_key": key}] * count,
            "drops": [{**about, "reason": "no box", "detail": ""}] * (2 - count),
        },
        "cutouts": {"width": 3, "height": 2, "png": key * count},
        "tokens": {"input_ids": [1, *(byte % 90 for byte in key[: count + 1]), 5]},
        "phrase-tokens": {"phrases": [span] * count},
    }[kind]


def fill(
    folder: Path,
    keys: np.ndarray = KEYS,
    failing: frozenset[bytes] = frozenset(),
    *,
    spec: Any = SPEC,
    stop_after: int | None = None,
    batch_size: int = 16,
    **options: Any,
) -> tuple[Any, int]:
    """Update the set to ``keys``; returns its record (None if stopped) and the computed rows."""
    computed = 0
    with SetWriter(folder, spec) as writer:
        batches = writer.plan(keys, batch_size=batch_size, shard_rows=SHARD_ROWS, **options)
        for number, batch in enumerate(batches):
            if number == stop_after:
                return None, computed
            good = np.array([key.tobytes() not in failing for key in batch.keys])
            failed = {
                key.tobytes(): {"code": "undecodable", "path": "a.jpg", "reason": "not an image"}
                for key in batch.keys[~good]
            }
            rows = rows_of(batch.keys[good], spec)
            writer.add(batch, rows, failed, {"device": "cpu"})
            computed += len(batch.keys)
        return writer.publish(), computed


def make(folder: Path, kind: str) -> int:
    """The set of a kind, of several shards, and how many rows it lacked; one feature has failed."""
    if kind == "image":
        return fill(folder, failing=frozenset({KEYS[0].tobytes()}))[1]
    return fill(folder, KEYS[:40], spec=SPECS[kind])[1]


def read(folder: Path, kind: str) -> Any:
    """All rows of a set, through every function that reads such sets."""
    if kind == "image":
        features = FeatureSet.open(folder)
        return features.take(features.keys)
    if kind == "tokens":
        TokenSet.open(folder)
    if kind == "phrase-tokens":
        PhraseTokens.open(folder)
    _, rows, _ = open_tables(folder, kind)  # type: ignore
    return rows.gather(np.arange(len(rows)))


def files(folder: Path) -> dict[str, bytes]:
    """Name → bytes of every file of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def flip(path: Path, at: int, bit: int = 2) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


@dataclass(frozen=True)
class Forger:
    """Changes an intact set and makes every size and digest fit."""

    folder: Path

    def say(self, change: Callable[[dict[str, Any]], Any]) -> None:
        """Change the commit file's content, and its digest accordingly."""
        body = json.loads((self.folder / FILE_NAME).read_text())
        del body["digest"]
        change(body)
        text = json.dumps({**body, "digest": digest(body)}, indent=1, ensure_ascii=False)
        (self.folder / FILE_NAME).write_text(text + "\n")

    @property
    def record(self) -> dict[str, Any]:
        return json.loads((self.folder / FILE_NAME).read_text())

    def shard(self, number: int = 0) -> Path:
        return self.folder / self.record["shards"][number]["name"]

    @property
    def index(self) -> Path:
        return self.folder / self.record["index"]["name"]

    def refit(self) -> None:
        """Make the commit file list the files as they are."""

        def refit(body: dict[str, Any]) -> None:
            for file in (body["index"], *body["shards"]):
                data = (self.folder / file["name"]).read_bytes()
                file |= {"blake3": blake3(data).hexdigest(), "bytes": len(data)}

        self.say(refit)

    def rows(self, rows: pa.Table) -> None:
        """Replace the rows of the first shard, which is of tables."""
        path = self.shard()
        keys = pq.read_table(path, columns=["key"]).slice(0, len(rows))
        rows = as_in_file(rows.add_column(0, keys.schema.field("key"), keys.column("key")))
        pq.write_table(rows, path)
        self.refit()

    def column(self, name: str, change: Callable[[list[Any]], list[Any]]) -> None:
        """Replace a column of the index; fewer values shorten the others, texts change its type."""
        table = pq.read_table(self.index)
        at = table.column_names.index(name)
        values = change(table.column(name).to_pylist())
        kind = pa.string() if isinstance(values[0], str) else table.schema.field(name).type
        table = table.slice(0, len(values)).set_column(at, name, pa.array(values, kind))
        pq.write_table(table, self.index)
        self.refit()
