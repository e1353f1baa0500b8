"""Feature sets: written rows are read back completely, in any order, and only by their keys."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from stub_set import DIM, KEYS, SHARD_ROWS, SPEC, files, fill, rows_of

from sightline.cache import (
    CacheError,
    FeatureSet,
    MissingKeys,
    SetWriter,
)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_rows_are_returned_in_the_requested_order_across_shards(tmp_path, dtype):
    fill(tmp_path / "set", spec=SPEC.model_copy(update={"dtype": dtype}))
    features = FeatureSet.open(tmp_path / "set")
    asked = KEYS[np.random.default_rng(0).integers(0, len(KEYS), 500)]
    assert len(features.record.shards) > 3
    assert features.take(asked).dtype == dtype
    np.testing.assert_array_equal(features.take(asked), rows_of(asked).astype(dtype))
    assert len(features) == 100
    assert features.dim == DIM


def test_missing_keys_are_counted_and_named(tmp_path):
    fill(tmp_path / "set", KEYS[:50])
    with pytest.raises(MissingKeys, match="50 of 100 keys are missing"):
        FeatureSet.open(tmp_path / "set").rows(KEYS)


def test_a_failed_row_is_an_error_status_and_not_a_row(tmp_path):
    bad = KEYS[3].tobytes()
    record, _ = fill(tmp_path / "set", failing=frozenset([bad]))
    features = FeatureSet.open(tmp_path / "set")
    assert (record.rows, record.failed) == (99, 1)
    assert features.failed == {bad: "undecodable"}
    with pytest.raises(MissingKeys, match="failed before, such as undecodable"):
        features.rows(KEYS)
    listed = json.loads((tmp_path / "set.run" / "failures.jsonl").read_text())
    assert listed["path"] == "a.jpg"
    assert listed["reason"] == "not an image"


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e6])
def test_a_row_that_cannot_be_stored_is_an_error_row(tmp_path, value):
    with SetWriter(tmp_path / "set", SPEC) as writer:
        (batch,) = writer.plan(KEYS[:4], batch_size=4)
        rows = rows_of(batch.keys)
        rows[2, 1] = value
        writer.add(batch.keys, rows)
        record = writer.publish()
    assert (record.rows, record.failed) == (3, 1)
    assert list(FeatureSet.open(tmp_path / "set").failed.values()) == ["not_finite"]


def test_an_interrupted_run_keeps_its_batch_shape(tmp_path):
    fill(tmp_path / "set", stop_after=3, batch_size=16)
    with SetWriter(tmp_path / "set", SPEC) as writer:
        writer.plan(KEYS, batch_size=64, shard_rows=SHARD_ROWS)
        assert writer.shape.batch_size == 16


def broken_off(folder, blocks=3, spec=SPEC, wanted=KEYS):
    """A run that finished some blocks of 16 rows; their files."""
    with SetWriter(folder, spec) as writer:
        for batch in writer.plan(wanted, batch_size=16, shard_rows=SHARD_ROWS)[:blocks]:
            writer.add(batch.keys, rows_of(batch.keys), computed={"device": "cpu"})
            writer.flush()
    return sorted((folder.with_name(folder.name + ".run") / "parts").iterdir())


@pytest.mark.parametrize("damage", ["cut", "flip", "flip in its note", "empty"])
def test_a_damaged_part_is_named_and_recomputed(tmp_path, damage):
    first, *_ = broken_off(tmp_path / "set")
    data = first.read_bytes()
    at = data.index(b'"fingerprint"') if damage == "flip in its note" else len(data) - 1
    flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    first.write_bytes({"cut": data[:-5], "empty": b""}.get(damage, flipped))
    with SetWriter(tmp_path / "set", SPEC) as writer:
        writer.plan(KEYS, batch_size=16, shard_rows=SHARD_ROWS)
        assert writer.resumed_rows == 32
        (said,) = writer.repaired
        assert "damaged part of an interrupted run" in said
    fill(tmp_path / "set")
    fill(tmp_path / "whole")
    assert files(tmp_path / "set") == files(tmp_path / "whole")


def test_parts_of_another_encoder_are_not_used(tmp_path):
    other = SPEC.model_copy(update={"precision": "bf16"})
    broken_off(tmp_path / "set", spec=other)
    with SetWriter(tmp_path / "set", SPEC) as writer:
        writer.plan(KEYS, batch_size=16, shard_rows=SHARD_ROWS)
        assert writer.resumed_rows == 0
    assert not (tmp_path / "set.run" / "parts").exists()


def test_rows_of_an_earlier_plan_are_used_by_a_larger_one(tmp_path):
    broken_off(tmp_path / "set", wanted=KEYS[:40])
    broken_off(tmp_path / "set", blocks=1)
    with SetWriter(tmp_path / "set", SPEC) as writer:
        left = writer.plan(KEYS, batch_size=16, shard_rows=SHARD_ROWS)
        assert sum(len(batch.keys) for batch in left) == 44
        assert (writer.planned_rows, writer.resumed_rows) == (100, 56)
    fill(tmp_path / "set")
    fill(tmp_path / "whole")
    assert files(tmp_path / "set") == files(tmp_path / "whole")


def test_a_second_run_changes_nothing(tmp_path):
    fill(tmp_path / "set")
    assert not (tmp_path / "set.run").exists()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "set").iterdir()}
    fill(tmp_path / "set", KEYS[::-1])
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "set").iterdir()} == before


def test_another_fingerprint_replaces_the_set_and_says_why(tmp_path):
    fill(tmp_path / "set")
    other = SPEC.model_copy(update={"preprocessing": {"resize": 256}})
    with SetWriter(tmp_path / "set", other) as writer:
        assert len(writer.plan(KEYS, batch_size=16)) == 7
        assert "preprocessing.resize: 224 → 256" in writer.replaces
    with pytest.raises(CacheError, match="fingerprint"):
        FeatureSet.open(tmp_path / "set", fingerprint=other.fingerprint)


def test_an_open_set_survives_pickling(tmp_path):
    fill(tmp_path / "set")
    features = pickle.loads(pickle.dumps(FeatureSet.open(tmp_path / "set")))
    np.testing.assert_array_equal(features.take(KEYS), rows_of(KEYS).astype(np.float16))
