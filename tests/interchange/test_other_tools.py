"""Every export opened by the tools that it is for: their rows, in order, with their names."""

from __future__ import annotations

import io
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from command_line import sightline
from foreign_files import write_set
from numpy.typing import NDArray
from twice import write_twice

from pipeline.interchange import rows as row_files
from sightline.cache import FeatureSet, key_of_text, keys_of_texts

TEXTS = ["a dog", "a red dog", *(f"in no data set {i}" for i in range(30)), "a dog again"]
COLUMNS = ["key", "caption", "caption_ids", "splits"]
NAMES: dict[str, tuple[str, list[str], list[str]]] = {
    "a dog": ("a dog", ["a.png#0", "b.png#0"], ["train", "test"]),
    "a red dog": ("a red dog", ["a.png#1"], ["train"]),
    "a dog again": ("a dog again", ["copy of a.png#0"], ["dev"]),
}
"""What the data set calls the rows that it has."""


class World(NamedTuple):
    folder: Path
    features: FeatureSet

    @property
    def rows(self) -> NDArray:
        """In the order of the keys."""
        return self.features.gather(np.arange(len(self.features)))

    @property
    def names(self) -> list[tuple]:
        """The columns beside the features, in that order."""
        text_of = {key_of_text(text).hex(): text for text in TEXTS}
        keys = [key.tobytes().hex() for key in self.features.keys]
        return [(key, *NAMES.get(text_of[key], (None, [], []))) for key in keys]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A set, and its exports as parquet, npy and set.tar, the first two of several files."""
    folder = tmp_path_factory.mktemp("exports")
    data = write_twice(folder)
    features = write_set(folder / "set", "float16", "text", keys=keys_of_texts(TEXTS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_files, "FILE_BYTES", 200)
        for form in ("parquet", "npy"):
            words = ["--format", form, "--data", data.folder, "--out", folder / form]
            assert sightline("cache", "export", folder / "set", *words) == 0
    assert sightline("cache", "export", folder / "set", "--out", folder / "set.tar") == 0
    assert len([*folder.glob("parquet/data/*")]) > 2
    return World(folder, features)


def by_pandas(folder: Path) -> list[dict]:
    pandas = pytest.importorskip("pandas")
    return pandas.read_parquet(folder).replace({np.nan: None}).to_dict("records")


def by_polars(folder: Path) -> list[dict]:
    polars = pytest.importorskip("polars")
    return polars.read_parquet(folder / "*.parquet").to_dicts()


def by_duckdb(folder: Path) -> list[dict]:
    duckdb = pytest.importorskip("duckdb")
    found = duckdb.execute("SELECT * FROM read_parquet(?)", [f"{folder}/*.parquet"])
    columns = [column[0] for column in found.description]
    return [dict(zip(columns, row, strict=True)) for row in found.fetchall()]


def by_datasets(folder: Path) -> list[dict]:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    cache = folder.parent.parent / "cache"
    return datasets.load_dataset(str(folder.parent), split="train", cache_dir=str(cache)).to_list()


@pytest.mark.parametrize("form", ["parquet", "npy"])
@pytest.mark.parametrize("opened", [by_pandas, by_polars, by_duckdb, by_datasets])
def test_tables_have_the_rows_in_order_with_their_names(world, form, opened):
    rows = opened(world.folder / form / ("data" if form == "parquet" else "metadata"))
    names = [(row["key"], row["caption"], [*row["caption_ids"]], [*row["splits"]]) for row in rows]
    assert names == world.names
    assert {*rows[0]} == {*COLUMNS, *(["features"] if form == "parquet" else [])}
    if form == "parquet":
        found = np.array([row["features"] for row in rows], dtype=np.float16)
        assert found.tobytes() == world.rows.tobytes()


def embeddings(world: World) -> NDArray:
    paths = sorted(world.folder.glob("npy/text_emb/text_emb_*.npy"))
    return np.concatenate([np.load(path, allow_pickle=False) for path in paths])


def test_numpy_has_the_rows_in_the_order_of_the_metadata(world):
    assert embeddings(world).tobytes() == world.rows.tobytes()


def test_faiss_finds_each_row_by_its_number_in_the_metadata(world):
    faiss = pytest.importorskip("faiss")
    rows = embeddings(world).astype(np.float32)
    index = faiss.IndexFlatL2(world.features.dim)
    index.add(rows)
    for number, row in enumerate(rows):
        assert index.search(row[None], 1)[1].item() == number


def test_webdataset_reads_the_tar(world):
    webdataset = pytest.importorskip("webdataset")
    tar = webdataset.WebDataset(str(world.folder / "set.tar"), shardshuffle=False)
    samples = {sample["__key__"]: sample for sample in tar}
    (index,) = (sample["parquet"] for name, sample in samples.items() if name.startswith("index-"))
    live = [row for row in pq.read_table(io.BytesIO(index)).to_pylist() if row["status"] == "ok"]
    assert [row["key"].hex() for row in live] == [name[0] for name in world.names]
    files = [sample["h5"] for name, sample in samples.items() if name.startswith("shard-")]
    shards = [h5py.File(io.BytesIO(file))["features"][:] for file in files]
    rows = np.stack([shards[row["shard"]][row["row"]] for row in live])
    assert rows.tobytes() == world.rows.tobytes()
