"""A small set of tables of every kind, their readers, and a forger of their records."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3

sys.path.append(str(Path(__file__).parents[1] / "grounding"))

from ground_data import SETTINGS, DataSet, WordGrounder, run_ground

from pipeline.extract.runner import RunSettings
from pipeline.grounding.cutouts import write_cutouts
from sightline.cache import (
    PhraseTokenHeader,
    PhraseTokens,
    TokenHeader,
    TokenSet,
    keys_of_texts,
    write_phrase_tokens,
    write_tokens,
)
from sightline.cache.record import FILE_NAME, TableKind, TableSpec
from sightline.cache.sets import open_tables
from sightline.digest import digest

TEXTS = [f"text {i}" for i in range(40)]
HEADER = TokenHeader("tiny", "0" * 64, max_length=8, pad_token_id=0, vocabulary_size=100)
SPANS = PhraseTokenHeader("tiny", "0" * 64, max_length=8, phrases=60, dropped={"cut": 20})
WORDS = ("A red dog and a blue ball", "nothing", "a green bird over the old house")


def settings(block_images: int = 2) -> RunSettings:
    return dataclasses.replace(
        SETTINGS, block_rows=block_images, shard_rows=block_images, max_failed=0.01
    )


def photographs(folder: Path, count: int = 7) -> DataSet:
    """Photographs with captions; every second one has a caption without phrases."""
    data = DataSet(folder)
    for i in range(count):
        data.add(f"{i}.png", *WORDS[i % 3 :], *["a b"] * (i % 2))
    return data


def make_grounding(
    data: DataSet, folder: Path, block_images: int = 2, grounder: WordGrounder | None = None
) -> None:
    run_ground(data, folder, grounder, settings=settings(block_images))


def make_cutouts(data: DataSet, grounding: Path, folder: Path) -> None:
    paths = {unit.key: unit.place for unit in data.units()}
    write_cutouts(grounding, paths, folder, RunSettings(block_rows=9, shard_rows=9))


def make_tokens(folder: Path, texts: list[str] = TEXTS, token: int = 5) -> None:
    ids = [[1, *range(2, 2 + int(text.split()[1]) % token), token] for text in texts]
    write_tokens(folder, HEADER, keys_of_texts(texts), ids)


def make_phrase_tokens(folder: Path) -> None:
    pairs = keys_of_texts([f"pair {i // 2}" for i in range(40)])
    starts = np.arange(40) % 5
    write_phrase_tokens(folder, SPANS, pairs, keys_of_texts(TEXTS), starts, starts + 1)  # type: ignore


def make_all(folder: Path) -> Path:
    """``folder`` with a set of each kind, named after it."""
    data = photographs(folder / "data")
    make_grounding(data, folder / "grounding")
    make_cutouts(data, folder / "grounding", folder / "cutouts")
    make_tokens(folder / "tokens")
    make_phrase_tokens(folder / "phrase-tokens")
    return folder


def read(folder: Path, kind: TableKind) -> pa.Table:
    """All rows of a set, through every function that reads such sets."""
    if kind == "tokens":
        TokenSet.open(folder)
    if kind == "phrase-tokens":
        PhraseTokens.open(folder)
    _, rows, _ = open_tables(folder, kind)
    return rows.gather(np.arange(len(rows)))


@dataclass(frozen=True)
class Forger:
    """Changes an intact set of tables like an attacker who fixes up every digest."""

    folder: Path

    def body(self) -> dict[str, Any]:
        found = json.loads((self.folder / FILE_NAME).read_text())
        del found["digest"]
        return found

    def commit(self, body: dict[str, Any], refit: bool = True) -> None:
        """A commit file with content ``body`` and the matching digest."""
        if refit:
            spec = body["spec"]
            body["fingerprint"] = TableSpec.model_construct(**spec).fingerprint
        text = json.dumps({**body, "digest": digest(body)}, indent=1, ensure_ascii=False)
        text = text.replace("Infinity", "1e999")  # which is a number to JSON
        (self.folder / FILE_NAME).write_bytes((text + "\n").encode("utf-8", "surrogatepass"))

    def say(self, change: Callable[[dict[str, Any]], Any], refit: bool = True) -> None:
        body = self.body()
        change(body)
        self.commit(body, refit)

    def shard(self, number: int = 0) -> Path:
        return self.folder / self.body()["shards"][number]["name"]

    def replace(self, rows: pa.Table, count: int | None = None) -> None:
        """Replace the first shard with these columns besides the keys; the record agrees."""
        body = self.body()
        shard = body["shards"][0]
        keys = pq.read_table(self.folder / shard["name"], columns=["key"]).slice(0, len(rows))
        (self.folder / shard["name"]).unlink()
        table = rows.add_column(0, keys.schema.field("key"), keys.column("key"))
        pq.write_table(table, self.folder / shard["name"])
        data = (self.folder / shard["name"]).read_bytes()
        shard |= {"blake3": blake3(data).hexdigest(), "bytes": len(data)}
        self.commit(body)
