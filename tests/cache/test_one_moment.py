"""A reader sees a set of one moment, whatever runs publish and collect meanwhile."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from stub_set import KEYS, SHARD_ROWS, SPECS, files, fill, rows_of

from sightline.cache import CacheError, FeatureSet, record, verify
from sightline.cache.archive import export_set, import_set
from sightline.cache.compact import collect, compact
from sightline.cache.diff import compare
from sightline.cache.record import read_record
from sightline.cache.table_sets import open_tables, read_rows
from sightline.cache.verify import rows_to_compute


@pytest.fixture
def meanwhile(monkeypatch):
    """Called with an action: does it once, right after the next record is read."""

    def arrange(act) -> None:
        read = record._checked_record

        def then_act(*args):
            monkeypatch.setattr(record, "_checked_record", read)
            found = read(*args)
            act()
            return found

        monkeypatch.setattr(record, "_checked_record", then_act)

    return arrange


READERS = {
    "open": lambda folder: len(FeatureSet.open(folder)),
    "verify": lambda folder: verify(folder) or 60,
    "diff": lambda folder: compare(folder, folder).same,
    "rows to compute": lambda folder: rows_to_compute(folder) + 60,
}


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_starts_over_where_a_run_published_and_collected(tmp_path, meanwhile, reader):
    folder = tmp_path / "set"
    fill(folder)

    def publish() -> None:
        fill(folder, KEYS[:60])
        collect(folder)

    meanwhile(publish)
    assert READERS[reader](folder) == 60


@pytest.mark.parametrize("kind", ["tokens", "grounding"])
def test_so_does_a_reader_of_tables(tmp_path, meanwhile, kind):
    folder = tmp_path / "set"
    for read in (read_rows, lambda *of: open_tables(*of)[1]):
        fill(folder, KEYS[:40], spec=SPECS[kind])
        meanwhile(lambda: (fill(folder, KEYS[40:60], spec=SPECS[kind]), collect(folder)))
        found = read(folder, kind)
        assert len(found if not isinstance(found, tuple) else found[0]) == 20


def test_an_export_is_of_one_moment(tmp_path, meanwhile):
    fill(tmp_path / "set")
    meanwhile(lambda: (fill(tmp_path / "set", KEYS[:60]), collect(tmp_path / "set")))
    export_set(tmp_path / "set", tmp_path / "set.tar")
    assert import_set(tmp_path / "set.tar", tmp_path / "again").rows == 60
    assert files(tmp_path / "again") == files(tmp_path / "set")


def test_damage_is_named_at_once(tmp_path):
    made, _ = fill(tmp_path / "set")
    (tmp_path / "set" / made.shards[0].name).unlink()
    assert any("missing" in fault for fault in verify(tmp_path / "set"))
    with pytest.raises(CacheError, match="missing"):
        FeatureSet.open(tmp_path / "set")


@pytest.mark.parametrize("kind", ["image", "tokens"])
def test_a_record_is_pickled_as_it_was_read(tmp_path, kind):
    fill(tmp_path / "set", spec=SPECS[kind])
    record = read_record(tmp_path / "set")
    assert pickle.loads(pickle.dumps(record)) == record


def test_a_pickled_set_reads_the_rows_that_were_meant_or_none(tmp_path):
    folder = tmp_path / "set"
    fill(folder, KEYS[:60])
    features = FeatureSet.open(folder)
    rows, sent = features.rows(KEYS[:10]), pickle.dumps(features)
    compact(folder, 2 * SHARD_ROWS)  # the same rows in other files
    again = pickle.loads(sent)
    np.testing.assert_array_equal(again.gather(rows), rows_of(KEYS[:10]).astype(np.float16))
    fill(folder)
    with pytest.raises(CacheError, match="a run has published since; open it again"):
        pickle.loads(sent)
