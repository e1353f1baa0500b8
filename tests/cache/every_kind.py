"""A small set of every kind, what reads it, and a forger that makes every digest fit."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3
from stub_set import KEYS, fill

sys.path.append(str(Path(__file__).parents[1] / "grounding"))

from ground_data import SETTINGS, DataSet, WordGrounder, run_ground

from pipeline.extract.settings import RunSettings
from pipeline.grounding.cutouts import write_cutouts
from sightline.cache import (
    FeatureSet,
    PhraseTokenHeader,
    PhraseTokens,
    TokenHeader,
    TokenSet,
    keys_of_texts,
    write_phrase_tokens,
    write_tokens,
)
from sightline.cache.record import FILE_NAME, TABLE_KINDS
from sightline.cache.sets import open_tables
from sightline.digest import digest

KINDS = ("image", *TABLE_KINDS)
"""One kind of features, since all are read alike, and every other kind."""
every_kind = pytest.mark.parametrize("kind", KINDS)
every_format = pytest.mark.parametrize("kind", ["image", "tokens"])
"""For what depends on how rows are stored: numbers, or tables."""

TEXTS = [f"text {i}" for i in range(40)]
HEADER = TokenHeader("tiny", "0" * 64, max_length=8, pad_token_id=0, vocabulary_size=100)
SPANS = PhraseTokenHeader("tiny", "0" * 64, max_length=8, phrases=60, dropped={"cut": 20})
WORDS = ("A red dog and a blue ball", "nothing", "a green bird over the old house")


def photographs(world: Path, count: int = 7) -> DataSet:
    """Photographs with captions; every second one has a caption without phrases."""
    data = DataSet(Path(tempfile.mkdtemp(dir=world)))
    for i in range(count):
        data.add(f"{i}.png", *WORDS[i % 3 :], *["a b"] * (i % 2))
    return data


def make_grounding(
    data: DataSet, folder: Path, block_images: int = 2, grounder: WordGrounder | None = None
) -> None:
    settings = SETTINGS.but(block_rows=block_images, shard_rows=block_images, max_failed=0.01)
    run_ground(data, folder, grounder, settings=settings)


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


def make(world: Path, kind: str, folder: Path | None = None) -> None:
    """Make the set of a kind in ``folder``, or in ``world`` under the name of its kind."""
    folder = folder or world / kind
    if kind == "image":
        fill(folder, failing=frozenset({KEYS[0].tobytes()}))
    elif kind == "grounding":
        make_grounding(photographs(world), folder)
    elif kind == "cutouts":
        make_cutouts(photographs(world), world / "grounding", folder)
    elif kind == "tokens":
        make_tokens(folder)
    else:
        make_phrase_tokens(folder)


def make_all(world: Path) -> Path:
    """``world`` with a set of each kind, named after it."""
    for kind in KINDS:
        make(world, kind)
    return world


def read(folder: Path, kind: str) -> Any:
    """All rows of a set, through every function that reads such sets."""
    if kind == "image":
        features = FeatureSet.open(folder)
        return features.take(features.keys)
    if kind == "tokens":
        TokenSet.open(folder)
    if kind == "phrase-tokens":
        PhraseTokens.open(folder)
    _, rows, _ = open_tables(folder, kind)
    return rows.gather(np.arange(len(rows)))


@dataclass(frozen=True)
class Forger:
    """Changes an intact set and makes every size and digest fit."""

    folder: Path

    def body(self) -> dict[str, Any]:
        found = json.loads((self.folder / FILE_NAME).read_text())
        del found["digest"]
        return found

    def commit(self, body: dict[str, Any]) -> None:
        """A commit file with content ``body`` and the matching digest."""
        text = json.dumps({**body, "digest": digest(body)}, indent=1, ensure_ascii=False)
        (self.folder / FILE_NAME).write_text(text + "\n")

    def say(self, change: Callable[[dict[str, Any]], Any]) -> None:
        """Change the commit file's content."""
        body = self.body()
        change(body)
        self.commit(body)

    def shard(self, number: int = 0) -> Path:
        return self.folder / self.body()["shards"][number]["name"]

    @property
    def index(self) -> Path:
        return self.folder / self.body()["index"]["name"]

    def refit(self) -> None:
        """Make the commit file list the files as they are."""
        body = self.body()
        for file in (body["index"], *body["shards"]):
            data = (self.folder / file["name"]).read_bytes()
            file |= {"blake3": blake3(data).hexdigest(), "bytes": len(data)}
        self.commit(body)

    def edit(self, change: Callable[[h5py.File], Any], number: int = 0) -> None:
        """Change a shard of numbers in place."""
        with h5py.File(self.shard(number), "r+") as file:
            change(file)
        self.refit()

    def hdf5(self, fill: Callable[[h5py.File, int], Any]) -> None:
        """Replace the rows of the first shard with the output of ``fill``; the keys stay."""
        path = self.shard()
        with h5py.File(path) as file:
            keys = file["keys"][:]
        with h5py.File(path, "w") as file:
            file["keys"] = keys
            fill(file, len(keys))
        self.refit()

    def rows(self, rows: pa.Table) -> None:
        """Replace the rows of the first shard, which is of tables."""
        path = self.shard()
        keys = pq.read_table(path, columns=["key"]).slice(0, len(rows))
        pq.write_table(rows.add_column(0, keys.schema.field("key"), keys.column("key")), path)
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
