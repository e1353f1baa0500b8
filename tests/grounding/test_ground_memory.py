"""Out of memory while grounding: batches are halved, no row is lost, and the record says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ground_data import SETTINGS, BoxSegmenter, DataSet, Killed, WordGrounder, files_of, run_ground

from pipeline.extract.halving import HalvingCalls
from sightline.cache.groundings import read_phrases
from sightline.cache.record import read_tables_record
from sightline.errors import SightlineError


@pytest.fixture
def data(tmp_path) -> DataSet:
    return DataSet.of(tmp_path / "data", 7)


def at_most(count: int):
    """A hook that has room for ``count`` items."""

    def hook(items):
        if len(items) > count:
            raise torch.OutOfMemoryError("CUDA out of memory")

    return hook


def computed(out: Path) -> list[dict]:
    return [shard.computed for shard in read_tables_record(out, "grounding").shards]


def test_batches_are_halved_until_they_fit_and_that_is_recorded(data, tmp_path, capsys):
    grounder = WordGrounder(at_most(2))
    summary = run_ground(data, tmp_path / "out", grounder, BoxSegmenter(at_most(1)))
    assert max(grounder.calls) == 2
    assert summary.halved_to == {"grounder": 2, "segmenter": 1}
    assert "batches halved for memory: grounder 2, segmenter 1" in str(summary)
    said = capsys.readouterr().err
    assert "grounder words: out of memory with 4 captions per call; continuing with 2" in said
    shards = computed(tmp_path / "out")
    assert len(shards) == 3
    for each in shards:
        assert each["halved_to"] == {"grounder": 2, "segmenter": 1}
        assert each["batch_size"] == SETTINGS.batch_size
        assert each["device"] == "cpu"
    run_ground(data, tmp_path / "clean")
    assert all("halved_to" not in each for each in computed(tmp_path / "clean"))
    assert read_phrases(tmp_path / "out") == read_phrases(tmp_path / "clean")
    commits = [read_tables_record(tmp_path / name, "grounding") for name in ("out", "clean")]
    assert commits[0].fingerprint == commits[1].fingerprint


def test_only_shards_that_were_computed_in_halves_say_so_and_keep_saying_it(data, tmp_path):
    run_ground(data, tmp_path / "out")
    data.add("new.png")
    run_ground(data, tmp_path / "out", WordGrounder(at_most(1)))
    sizes = [each.get("halved_to") for each in computed(tmp_path / "out")]
    assert sorted(sizes, key=bool) == [None, None, None, {"grounder": 1}]
    data.add("newer.png")
    del data.captions["0.png"]
    run_ground(data, tmp_path / "out")
    sizes = [each.get("halved_to") for each in computed(tmp_path / "out")]
    assert sizes.count({"grounder": 1}) == 1
    assert len(sizes) == 5


def test_a_resumed_run_starts_with_the_smaller_batch(data, tmp_path):
    small = at_most(2)

    def dying(captions):
        small(captions)
        if sum(grounder.calls) >= 6:  # in the second block
            raise Killed

    grounder = WordGrounder(dying)
    with pytest.raises(Killed):
        run_ground(data, tmp_path / "out", grounder)
    again = WordGrounder()
    summary = run_ground(data, tmp_path / "out", again)
    assert summary.resumed == SETTINGS.block_rows
    assert max(again.calls) == 2
    assert summary.halved_to == {"grounder": 2}
    run_ground(data, tmp_path / "whole", WordGrounder(small))
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    assert read_tables_record(tmp_path / "out", "grounding").shards[0].computed["halved_to"]


def test_an_item_that_never_fits_is_an_error_with_a_remedy():
    calls, items = HalvingCalls("segmenter x", "images", "segmenter"), list(range(5))
    calls.begin(8, [])
    with pytest.raises(SightlineError, match="segmenter x: the device has no room for one of its"):
        calls.run(5, lambda start, stop: at_most(0)(items[start:stop]))
