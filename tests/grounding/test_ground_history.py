"""After any history, a grounding and its cut-outs equal those of a clean run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ground_data import SETTINGS, DataSet, files_of, run_ground
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipeline.extract.settings import RunSettings
from pipeline.grounding.cutouts import write_cutouts
from sightline.cache import CacheError, verify
from sightline.cache.compact import collect, compact, garbage
from sightline.cache.groundings import read_phrases
from sightline.cache.record import FILE_NAME, read_tables_record
from sightline.cache.sets import open_tables
from sightline.cache.verify import repair
from sightline.cache.writer import MAX_SMALL_SHARDS

CUTTING = RunSettings(block_rows=5, shard_rows=8)


def make(data: DataSet, folder: Path, chosen: list[int]) -> None:
    """Records and cut-outs of some of the images of ``data``."""
    everything = data.captions
    data.captions = {f"{i}.png": everything[f"{i}.png"] for i in chosen}
    run_ground(data, folder / "out", settings=SETTINGS)
    paths = {unit.key: unit.place for unit in data.units()}
    write_cutouts(folder / "out", paths, folder / "cut", CUTTING)
    data.captions = everything


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> DataSet:
    return DataSet.of(tmp_path_factory.mktemp("data"), 12)


_SOME = st.lists(st.integers(0, 11), unique=True, min_size=1)
_STEP = st.one_of(_SOME, st.sampled_from(["compact", "gc", "repair"]))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_STEP, min_size=1, max_size=6), _SOME)
@example([[0], "repair", "repair", "compact", "gc"], [0, 1])
def test_after_any_history_the_files_are_those_of_a_clean_run_once_compacted(
    data, tmp_path_factory, history, last
):
    folder, clean = tmp_path_factory.mktemp("history"), tmp_path_factory.mktemp("clean")
    for step in [*history, last]:
        for name, rows in ("out", SETTINGS.shard_rows), ("cut", CUTTING.shard_rows):
            if not (folder / name / FILE_NAME).exists():
                continue
            if step == "compact":
                compact(folder / name, rows)
            elif step == "gc":
                collect(folder / name)
            elif step == "repair":
                for first in read_tables_record(folder / name, _KIND[name]).files[:1]:
                    (folder / name / first.name).write_bytes(b"damaged")
                repair(folder / name)
        if isinstance(step, list):
            make(data, folder, step)
    make(data, clean, last)
    for name in ("out", "cut"):
        kind = _KIND[name]
        found, expected = (read_tables_record(at / name, kind) for at in (folder, clean))
        assert found.content_digest == expected.content_digest
        compact(folder / name, SETTINGS.shard_rows if name == "out" else CUTTING.shard_rows)
        collect(folder / name)
        assert verify(folder / name) == []
        assert files_of(folder / name) == files_of(clean / name)


_KIND = {"out": "grounding", "cut": "cutouts"}


def test_many_small_shards_are_merged(data, tmp_path):
    large = SETTINGS.but(shard_rows=100)
    everything, data.captions = data.captions, {}
    for count in range(MAX_SMALL_SHARDS + 2):
        name = f"{count % 12}.png"
        data.captions[name] = [*data.captions.get(name, []), f"a thing called {count}"]
        run_ground(data, tmp_path / "out", settings=large)
    assert len(read_tables_record(tmp_path / "out", "grounding").shards) <= MAX_SMALL_SHARDS + 1
    run_ground(data, tmp_path / "clean", settings=large)
    data.captions = everything
    compact(tmp_path / "out")
    collect(tmp_path / "out")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "clean")


def test_compact_of_a_clean_set_rewrites_nothing_that_differs(data, tmp_path):
    make(data, tmp_path, list(range(12)))
    before = files_of(tmp_path / "out")
    compact(tmp_path / "out", SETTINGS.shard_rows)
    assert garbage(tmp_path / "out").files == {}
    assert files_of(tmp_path / "out") == before


def test_compact_refuses_a_damaged_table_and_names_the_remedy(data, tmp_path):
    make(data, tmp_path, [0, 1, 2, 3])
    shard = read_tables_record(tmp_path / "out", "grounding").shards[0]
    path = tmp_path / "out" / shard.name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    before = files_of(tmp_path / "out")
    with pytest.raises(CacheError, match=r"sightline cache repair"):
        compact(tmp_path / "out")
    assert files_of(tmp_path / "out") == before


def test_rows_are_returned_in_the_requested_order_from_several_shards(data, tmp_path):
    make(data, tmp_path, list(range(12)))
    _, rows, _ = open_tables(tmp_path / "out", "grounding")
    assert len(rows.files) > 2
    whole = rows.gather(np.arange(len(rows))).to_pylist()
    asked = np.random.default_rng(0).permutation(len(rows))
    assert rows.gather(asked).to_pylist() == [whole[i] for i in asked]
    assert sum(len(row["phrases"]) for row in whole) == read_phrases(tmp_path / "out").num_rows
    np.testing.assert_array_equal(rows.find(rows.keys[asked]), asked)
