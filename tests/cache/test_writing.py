"""Written rows are read back by their keys; only new ones are computed, whatever the history."""

from __future__ import annotations

import errno
import json
import pickle
import time
from contextlib import suppress

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from set_oracle import expect_sound
from stub_set import (
    DIM,
    KEYS,
    SHARD_ROWS,
    SPEC,
    SPECS,
    Forger,
    every_format,
    files,
    fill,
    flip,
    make,
    rows_of,
)

from sightline.cache import (
    CacheError,
    FeatureSet,
    MissingKeys,
    SetWriter,
    TokenSet,
    keys_of_texts,
    publish,
    verify,
    writer,
)
from sightline.cache import writer as writer_module
from sightline.cache.compact import Garbage, collect, compact, garbage
from sightline.cache.index import read_index
from sightline.cache.keys import unique_sorted
from sightline.cache.parts import part_names, read_failures, write_part
from sightline.cache.plan import rows_done
from sightline.cache.publish import MAX_SMALL_SHARDS
from sightline.cache.record import FILE_NAME, Provenance, read_record
from sightline.cache.repair import repair
from sightline.errors import BusyError, SightlineError, Unfinished
from sightline.files.lock import WriterLock
from sightline.files.output import Output, run_folder_of

BAD = frozenset(key.tobytes() for key in KEYS[3:6])


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """The set of one run over all keys."""
    folder = tmp_path_factory.mktemp("clean") / "set"
    fill(folder)
    return folder


# --- rows


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_rows_are_returned_in_the_requested_order_across_shards(tmp_path, dtype):
    fill(tmp_path / "set", spec=SPEC.model_copy(update={"dtype": dtype}))
    features = pickle.loads(pickle.dumps(FeatureSet.open(tmp_path / "set")))
    asked = KEYS[np.random.default_rng(0).integers(0, len(KEYS), 500)]
    assert len(features.record.shards) > 3
    assert features.take(asked).dtype == dtype
    np.testing.assert_array_equal(features.take(asked), rows_of(asked).astype(dtype))
    assert len(features) == 100
    assert features.dim == DIM


def test_a_missing_or_failed_row_is_an_error_with_its_reason(tmp_path):
    bad = KEYS[3].tobytes()
    record, _ = fill(tmp_path / "set", KEYS[:50], failing=frozenset([bad]))
    features = FeatureSet.open(tmp_path / "set")
    assert (record.rows, record.failed) == (49, 1)
    assert features.failed == {bad: "undecodable"}
    with pytest.raises(MissingKeys, match="51 of 100 keys are missing"):
        features.rows(KEYS)
    with pytest.raises(MissingKeys, match="failed before, such as undecodable"):
        features.rows(KEYS[:50])
    listed = json.loads((tmp_path / "set.run" / "failures.jsonl").read_text())
    assert (listed["path"], listed["reason"]) == ("a.jpg", "not an image")


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e6])
def test_a_row_that_cannot_be_stored_is_an_error_row(tmp_path, value):
    with SetWriter(tmp_path / "set", SPEC) as writer:
        (batch,) = writer.plan(KEYS[:4], batch_size=4)
        rows = rows_of(batch.keys)
        rows[2, 1] = value
        writer.add(batch, rows)
        record = writer.publish()
    assert (record.rows, record.failed) == (3, 1)
    assert list(FeatureSet.open(tmp_path / "set").failed.values()) == ["not_finite"]


def test_a_row_that_float16_would_lose_is_an_error_row_and_float32_holds_it(tmp_path):
    rows = rows_of(KEYS[:5])
    rows[0] *= 1e-10  # zeros in float16
    rows[1] *= 3e-9  # a few steps of float16 above zero
    rows[2] = 0.0
    rows[3, 1:] *= 1e-10  # beside a number that float16 holds
    for dtype, lost in (("float16", 2), ("float32", 0)):
        folder = tmp_path / dtype
        with SetWriter(folder, SPEC.model_copy(update={"dtype": dtype})) as writer:
            (batch,) = writer.plan(KEYS[:5], batch_size=5)
            writer.add(batch, rows[[KEYS[:5].tolist().index(k.tolist()) for k in batch.keys]])
            writer.publish()
            reasons = [failure["reason"] for failure in writer.failures.values()]
        features = FeatureSet.open(folder)
        assert set(features.failed) == {key.tobytes() for key in KEYS[:lost]}
        assert set(features.failed.values()) <= {"underflow"}
        assert all("too small for float16" in why and "float32" in why for why in reasons)


@pytest.mark.parametrize("still", [frozenset(), BAD], ids=["now sound", "still failing"])
def test_failed_rows_are_recomputed_only_on_request(tmp_path, still):
    first, _ = fill(tmp_path / "set", failing=BAD)
    assert fill(tmp_path / "set")[1] == 0
    record, computed = fill(tmp_path / "set", failing=still, retry_failed=True)
    assert (first.failed, record.failed, computed) == (3, len(still), 3)
    expected, _ = fill(tmp_path / "clean", failing=still)
    assert record.content_digest == expected.content_digest
    assert verify(tmp_path / "set") == []
    assert read_failures(tmp_path / "set.run").keys() == still


def test_a_kill_right_after_the_commit_leaves_no_error_without_its_reason(tmp_path, monkeypatch):
    commit = publish.commit_rows

    def killed(*words):
        commit(*words)
        raise KeyboardInterrupt

    monkeypatch.setattr(publish, "commit_rows", killed)
    key = KEYS[3].tobytes()
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path / "set", failing=frozenset([key]))
    assert FeatureSet.open(tmp_path / "set").failed == {key: "undecodable"}
    assert read_failures(tmp_path / "set.run")[key]["reason"] == "not an image"


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
        assert "preprocessing.resize: 224 → 256" in writer.current.found_set.replaces
    with pytest.raises(CacheError, match="fingerprint"):
        FeatureSet.open(tmp_path / "set", fingerprint=other.fingerprint)


# --- interrupted runs


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr("sightline.cache.writer.block_rows", lambda spec: 16)


def broken_off(folder, blocks=3, spec=SPEC, wanted=KEYS):
    """A run that finished some blocks of 16 rows; their files."""
    with SetWriter(folder, spec) as writer:
        for batch in writer.plan(wanted, batch_size=16, shard_rows=SHARD_ROWS)[:blocks]:
            writer.add(batch, rows_of(batch.keys), computed={"device": "cpu"})
    return parts_of(folder)


def parts_of(folder):
    parts = folder.with_name(folder.name + ".run") / "parts"
    return sorted(parts.glob("*.json")) if parts.exists() else []


@pytest.mark.usefixtures("small_blocks")
def test_an_interrupted_run_keeps_its_batch_shape_and_retries_its_failures(tmp_path):
    assert fill(tmp_path / "set", failing=BAD, stop_after=6, batch_size=16)[0] is None
    with SetWriter(tmp_path / "set", SPEC) as writer:
        writer.plan(KEYS, batch_size=64, shard_rows=SHARD_ROWS)
        assert writer.current.shape.batch_size == 16
        (said,) = writer.repaired
        assert said.startswith("batches of 16, as the interrupted run had, not of 64; delete")
    record, _ = fill(tmp_path / "set", retry_failed=True)
    assert (record.rows, record.failed) == (len(KEYS), 0)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "gone"])
@pytest.mark.parametrize("of", ["shard", "record"])
def test_a_damaged_part_is_named_and_recomputed(tmp_path, clean, of, damage):
    first, *_ = broken_off(tmp_path / "set")
    damaged = first.with_suffix(".h5") if of == "shard" else first
    data = damaged.read_bytes()
    at = len(data) // 2
    flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    damaged.write_bytes({"cut": data[:-5], "empty": b""}.get(damage, flipped))
    if damage == "gone":
        damaged.unlink()
    with SetWriter(tmp_path / "set", SPEC) as writer:
        writer.plan(KEYS, batch_size=16, shard_rows=SHARD_ROWS)
        assert writer.counts.resumed == 32
        said = "".join(writer.repaired)
        # a shard without a record is of a process that was killed between the two
        silent = (of, damage) == ("record", "gone")
        assert ("damaged part of an interrupted run" in said) != silent
    fill(tmp_path / "set")
    assert files(tmp_path / "set") == files(clean)
    assert not first.parent.exists()


BF16 = SPEC.model_copy(update={"precision": "bf16"})


@pytest.mark.usefixtures("small_blocks")
def test_parts_of_another_encoder_are_neither_used_nor_lost(tmp_path, clean):
    """A run that was entered by mistake and stopped deletes no night's work."""
    folder = tmp_path / "set"
    night = broken_off(folder)
    assert len(broken_off(folder, blocks=1, spec=BF16)) == len(night) + 1
    with SetWriter(folder, SPEC) as writer:
        assert len(writer.plan(KEYS, batch_size=16, shard_rows=SHARD_ROWS)) == 4
        assert writer.counts.resumed == 48
    fill(folder)
    assert files(folder) == files(clean)
    (other,) = parts_of(folder)  # that of the mistake
    both = {f"parts/{other.name}", f"parts/{other.with_suffix('.h5').name}"}
    assert garbage(folder).files.keys() == both
    assert collect(folder).files.keys() == both
    assert not parts_of(folder)
    assert files(folder) == files(clean)


@pytest.mark.usefixtures("small_blocks")
def test_gc_leaves_the_parts_that_the_next_run_goes_on_with(tmp_path, clean):
    folder = tmp_path / "set"
    fill(folder, KEYS[:10])
    mistaken = broken_off(folder, blocks=1, spec=BF16)
    broken_off(folder, wanted=KEYS[:60])
    broken_off(folder)
    both = [file for path in mistaken for file in (path, path.with_suffix(".h5"))]
    assert collect(folder).files.keys() == {f"parts/{file.name}" for file in both}
    with SetWriter(folder, SPEC) as writer:
        left = writer.plan(KEYS, batch_size=16, shard_rows=SHARD_ROWS)
        assert (writer.counts.planned, sum(len(batch.keys) for batch in left)) == (90, 0)


@pytest.mark.usefixtures("small_blocks")
def test_a_part_goes_once_a_set_of_its_fingerprint_holds_its_rows(tmp_path):
    folder, ordered = tmp_path / "set", KEYS[unique_sorted(KEYS)]
    first = broken_off(folder)  # of 16 keys each, in their order
    assert fill(folder, ordered[:20])[1] == 0
    assert parts_of(folder) == first[1:]
    assert fill(folder)[1] == len(KEYS) - 48
    assert not parts_of(folder)


@pytest.mark.usefixtures("small_blocks")
def test_rows_of_an_earlier_plan_are_used_by_a_larger_one(tmp_path, clean):
    broken_off(tmp_path / "set", wanted=KEYS[:40])
    broken_off(tmp_path / "set", blocks=1)
    with SetWriter(tmp_path / "set", SPEC) as writer:
        left = writer.plan(KEYS, batch_size=16, shard_rows=SHARD_ROWS)
        assert sum(len(batch.keys) for batch in left) == 44
        counts = writer.counts
        assert (counts.planned, counts.resumed, counts.durable) == (100, 56, 56)
    fill(tmp_path / "set")
    assert files(tmp_path / "set") == files(clean)


def test_a_failure_in_a_part_of_another_plan_is_counted(tmp_path):
    one_by_one = {"batch_size": 1, "rows_per_block": 1}
    fill(tmp_path / "set", KEYS[:16])
    rest = KEYS[16:][unique_sorted(KEYS[16:])]
    bad, more = rest[:1], rest[1:9]
    failing = frozenset({bad[0].tobytes()})
    every, fewer = (np.concatenate([KEYS[:16], *others]) for others in ([bad, more], [bad]))
    fill(tmp_path / "set", every, failing, stop_after=1, **one_by_one)
    for _ in range(2):
        record, computed = fill(tmp_path / "set", fewer, failing, **one_by_one)
        assert (record.rows, record.failed, computed) == (16, 1, 0)
        assert [*read_index(tmp_path / "set", record)[1].values()] == ["undecodable"]


def test_rows_of_a_batch_have_one_length(tmp_path):
    lengths = np.arange(len(KEYS), dtype=np.int32) % 3
    with SetWriter(tmp_path / "set", SPEC) as made:
        batches = made.plan(KEYS, lengths, batch_size=16)
    length_of = {key.tobytes(): length for key, length in zip(KEYS, lengths, strict=True)}
    for batch in batches:
        assert {length_of[key.tobytes()] for key in batch.keys} == {batch.length}
        assert len(batch.keys) <= 16
    assert sum(len(batch.keys) for batch in batches) == len(KEYS)


# --- rows of other sets


def test_rows_of_a_neighbour_with_the_same_fingerprint_are_copied(tmp_path, clean):
    fill(tmp_path / "a" / "set", KEYS[:60])
    record, computed = fill(tmp_path / "b" / "set", copy_from=tmp_path)
    assert (computed, record.rows) == (40, 100)
    assert files(tmp_path / "b" / "set") == files(clean)


def test_neither_a_damaged_shard_nor_another_fingerprint_is_copied(tmp_path, clean):
    fill(tmp_path / "other" / "set", spec=SPEC.model_copy(update={"precision": "bf16"}))
    donor, _ = fill(tmp_path / "a" / "set")
    shard = donor.shards[0]
    flip(tmp_path / "a" / "set" / shard.name, -3)
    _, computed = fill(tmp_path / "b" / "set", copy_from=tmp_path)
    assert computed == shard.rows
    assert files(tmp_path / "b" / "set") == files(clean)


def test_rows_are_not_copied_by_a_damaged_index(tmp_path, clean):
    donor, _ = fill(tmp_path / "a" / "set")
    index = tmp_path / "a" / "set" / donor.index.name
    intact, sound = index.read_bytes(), read_index(index.parent, donor)[0].numbers
    for at in range(KEYS.nbytes, len(intact)):  # what follows the keys
        index.write_bytes(intact)
        flip(index, at)
        with suppress(CacheError, KeyError):
            if not np.array_equal(read_index(index.parent, donor)[0].numbers, sound):
                break  # readable, but keys have the rows of others
    else:
        raise AssertionError("every flip was noticed")
    _, computed = fill(tmp_path / "b" / "set", copy_from=tmp_path)
    assert computed == 0  # the shards say which rows they have
    assert files(tmp_path / "b" / "set") == files(clean)


def published(folder, keys, provenance=None, **computed):
    """Publish a set of rows that were computed like this."""
    with SetWriter(folder, SPEC) as writer:
        for batch in writer.plan(keys, batch_size=16):
            writer.add(batch, rows_of(batch.keys), computed=computed)
        writer.publish(provenance)


def test_where_copied_rows_were_computed_stays_on_record(tmp_path):
    published(tmp_path / "a" / "set", KEYS[:10], device="a GPU")
    record, _ = fill(tmp_path / "b" / "set", KEYS[:20], copy_from=tmp_path)
    assert [shard.computed for shard in record.shards] == [{"device": "a GPU + cpu"}]


def test_rows_of_an_imported_set_stay_imported_though_they_were_dropped(tmp_path):
    imported = Provenance(imported=True)
    published(tmp_path / "set", KEYS, imported)
    assert fill(tmp_path / "set", KEYS[:50])[0].provenance == imported
    record, computed = fill(tmp_path / "set", KEYS[50:])  # nothing of the set is kept
    assert (computed, record.provenance) == (0, imported)


# --- workers


def test_a_worker_gives_back_no_block_that_it_has_just_claimed(tmp_path, monkeypatch):
    released = []
    monkeypatch.setattr(WriterLock, "release", lambda self, block: released.append(block))
    monkeypatch.setattr("sightline.cache.writer.block_rows", lambda spec: 32)
    second = SetWriter(tmp_path / "set", SPEC, worker=(1, 2))
    with second.beside_others():
        second.plan(KEYS, batch_size=16)
        mine = second.claim()
        first = next(mine)
        second.add(first, rows_of(first.keys))
        assert (first.block, released) == (1, [])


def test_a_worker_sees_the_block_of_one_that_has_just_ended(tmp_path, monkeypatch):
    def slow_names(folder):
        time.sleep(0.01)
        return part_names(folder)

    monkeypatch.setattr("sightline.cache.writer.block_rows", lambda spec: 32)
    monkeypatch.setattr(writer_module, "part_names", slow_names)
    second = SetWriter(tmp_path / "set", SPEC, worker=(1, 2))
    with second.beside_others():
        second.plan(KEYS, batch_size=32)
        theirs = second.claim()
        assert next(theirs).block == 1  # it has looked at what is there
        run_folder = run_folder_of(tmp_path / "set")
        plan = second.current
        (batch,) = [batch for batch in plan.batches if batch.block == 0]
        rows, block = rows_of(batch.keys).astype(np.float16), (plan.stored.name, 0)
        write_part(run_folder, SPEC, block, batch.keys, rows, {}, {}, None)
        assert 0 not in [batch.block for batch in theirs]


def test_a_worker_does_not_retry_what_another_reported_as_failed(tmp_path):
    fill(tmp_path / "set", failing=BAD)
    first, second = (SetWriter(tmp_path / "set", SPEC, worker=(i, 2)) for i in range(2))
    with first.beside_others():
        first.plan(KEYS, batch_size=16, retry_failed=True)
        (batch,) = first.claim()
        again = {"code": "undecodable", "path": "a.jpg", "reason": "still not an image"}
        none = np.empty((0, 8), np.float32)
        first.add(batch, none, {key.tobytes(): again for key in batch.keys})
    with second.beside_others():
        assert second.plan(KEYS, batch_size=16, retry_failed=True) == []
        assert second.counts.resumed == len(BAD)


# --- garbage and small shards


def test_dropped_rows_are_restored_from_disk_until_gc(tmp_path):
    folder = tmp_path / "set"
    clean, _ = fill(folder)
    small, _ = fill(folder, KEYS[10:])
    assert small.content_digest == fill(tmp_path / "small", KEYS[10:])[0].content_digest
    assert len(FeatureSet.open(folder)) == len(KEYS) - 10
    assert garbage(folder).rows == 10
    record, computed = fill(folder)
    assert (computed, record.content_digest) == (0, clean.content_digest)
    fill(folder, KEYS[10:])
    freed = collect(folder, SHARD_ROWS)
    assert (freed.rows, garbage(folder).bytes) == (10, 0)
    assert files(folder) == files(tmp_path / "small")
    assert fill(folder)[1] == 10


def test_publishing_keeps_the_files_of_the_record_before_and_no_older_ones(tmp_path):
    """Readers may have the former mapped."""
    folder, listed = tmp_path / "set", list[set[str]]()
    for stop in (20, 40, 60, 80):
        record, _ = fill(folder, KEYS[:stop])
        listed.append({file.name for file in record.files})
        shards = {path.name for path in folder.iterdir()} - {FILE_NAME, f"{FILE_NAME}.next"}
        assert shards == set().union(*listed[-2:])
    assert collect(folder).files.keys() == listed[-2] - listed[-1]
    assert listed[-2] - listed[-1]


def test_what_a_kill_left_before_the_record_goes_with_the_next_one(tmp_path, monkeypatch):
    folder = tmp_path / "set"
    fill(folder, KEYS[:20])
    with monkeypatch.context() as killed:
        killed.setattr(Output, "commit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fill(folder, KEYS[:60])
    left = garbage(folder).files.keys()
    assert any(name.startswith("index-") for name in left)
    fill(folder, KEYS[10:40])
    assert not left & files(folder).keys() - {file.name for file in read_record(folder).files}


@every_format
def test_gc_removes_only_what_the_set_no_longer_references(tmp_path, kind):
    folder = tmp_path / "set"
    for part in (slice(None), slice(9)):  # most rows of some shards are dropped
        fill(folder, KEYS[part], spec=SPECS[kind])
    theirs = {"notes.txt", f"shard-{'0' * 32}.parquet"}
    for name in theirs:
        (folder / name).write_text("mine")
    planned, before = garbage(folder), files(folder)
    freed = collect(folder)
    assert planned.files.keys() <= freed.files.keys()  # and shards with rows in no use
    assert sum(len(before[name]) for name in planned.files) <= planned.bytes
    named = {file.name for file in read_record(folder).files}
    assert files(folder).keys() == {*named, FILE_NAME, *theirs}
    assert verify(folder) == []
    assert (garbage(folder).bytes, collect(folder).files) == (0, {})


def test_gc_without_room_for_a_shard_frees_what_is_superseded(tmp_path, monkeypatch):
    folder = tmp_path / "set"
    for part in (KEYS[:40], KEYS, KEYS[:9]):
        fill(folder, part)
    superseded = garbage(folder)
    assert superseded.files
    assert superseded.rows

    def no_room(output, name, data):
        if name.startswith("index"):  # after the shards
            assert not files(folder).keys() & superseded.files.keys()
            raise OSError(errno.ENOSPC, "No space left on device")
        write(output, name, data)

    write = Output.write
    monkeypatch.setattr(Output, "write", no_room)
    with pytest.raises(Unfinished, match="No space left on device; its shards still hold") as left:
        collect(folder)
    monkeypatch.undo()
    assert isinstance(left.value.done, Garbage)
    assert left.value.done.files.keys() >= superseded.files.keys()
    assert left.value.done.rows == 0
    assert left.value.done.bytes == sum(superseded.files.values())
    assert verify(folder) == []
    assert garbage(folder).files == {}
    assert len(FeatureSet.open(folder)) == 9


def test_compact_leaves_full_shards_alone_and_waits_for_no_run(tmp_path):
    fill(tmp_path / "set")
    before = {path: path.stat().st_ino for path in (tmp_path / "set").glob("shard-*")}
    compact(tmp_path / "set", SHARD_ROWS)
    assert {path: path.stat().st_ino for path in (tmp_path / "set").glob("shard-*")} == before
    with SetWriter(tmp_path / "set", SPEC):
        for act in (collect, compact):
            with pytest.raises(BusyError):
                act(tmp_path / "set")


def test_a_shard_that_another_version_of_a_library_wrote_is_kept(tmp_path):
    """A shard is named by its rows: other bytes of the same rows are recorded as they are."""
    folder = tmp_path / "set"
    fill(folder, spec=SPECS["tokens"])
    shard = Forger(folder).shard()
    pq.write_table(pq.read_table(shard), shard, compression="none")
    Forger(folder).refit()
    before = files(folder)
    compact(folder, SHARD_ROWS)
    assert files(folder) == before
    expect_sound(folder)


def test_a_run_merges_too_many_small_shards(tmp_path):
    folder = tmp_path / "set"
    for stop in range(1, MAX_SMALL_SHARDS + 3):
        record, computed = fill(folder, KEYS[:stop])
        assert computed == 1
        assert len(record.shards) == (stop if stop <= MAX_SMALL_SHARDS + 1 else 1)
    assert verify(folder) == []
    assert record.content_digest == fill(tmp_path / "clean", KEYS[:stop])[0].content_digest


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.integers(1, 100), st.integers(0, 60)),
        st.tuples(st.just("kill"), st.integers(1, 100), st.integers(0, 3)),
        st.tuples(st.sampled_from(["retry", "compact", "gc", "damage"]), st.just(0), st.just(0)),
    ),
    max_size=8,
)


@settings(max_examples=20, deadline=None)
@given(STEPS)
def test_after_any_history_a_set_equals_that_of_a_clean_run(tmp_path_factory, clean, steps):
    folder = tmp_path_factory.mktemp("history") / "set"
    for action, size, start in steps:
        wanted = KEYS[start : start + size][:: -1 if size % 2 else 1]
        if action == "run":
            fill(folder, wanted, failing=BAD, batch_size=1 + start)
        elif action == "kill":
            fill(folder, wanted, stop_after=start)
        elif not folder.exists():
            continue
        elif action == "retry":
            fill(folder, retry_failed=True)
        elif action == "compact":
            compact(folder, SHARD_ROWS)
        elif action == "gc":
            collect(folder)
        elif (shard := min(folder.glob("shard-*"), default=None)) is not None:
            flip(shard, shard.stat().st_size - 1)
            repair(folder)
    record, _ = fill(folder, retry_failed=True)
    assert record.content_digest == read_record(clean).content_digest
    assert verify(folder) == []
    compact(folder, SHARD_ROWS)
    collect(folder)
    assert files(folder) == files(clean)
    np.testing.assert_array_equal(
        FeatureSet.open(folder).take(KEYS), rows_of(KEYS).astype(np.float16)
    )


def test_more_codes_of_failures_than_a_byte_holds(tmp_path):
    keys = keys_of_texts([str(number) for number in range(300)])
    with SetWriter(tmp_path / "set", SPEC) as writer:
        (batch,) = writer.plan(keys, batch_size=300)
        bad = {
            key.tobytes(): {"code": f"code {number}", "path": "", "reason": ""}
            for number, key in enumerate(batch.keys[:250])
        }
        codes = {key: failure["code"] for key, failure in bad.items()}
        writer.add(batch, rows_of(batch.keys[250:]), bad)
        assert writer.publish().failed == 250
    expect_sound(tmp_path / "set")
    assert FeatureSet.open(tmp_path / "set").failed == codes


@pytest.mark.parametrize(
    "change",
    [
        {"rows": "x"},
        {"rows": None},
        {"blocks": [[4, 25.0]]},
        {"blocks": [["a", 1]]},
        {"blocks": 3},
        {"blocks": [[1, 1 << 60]]},
        {"parts": [1]},
        {"parts": None},
        {"digest": 5},
        {"shape": {"batch_size": "16"}},
        {"asked": []},
        {"shape": None},
        {"more": 1},
    ],
)
def test_a_plan_of_wrong_types_is_no_plan(tmp_path, clean, change):
    fill(tmp_path / "set", stop_after=2, rows_per_block=16)
    path = tmp_path / "set.run" / "plan.json"
    body = json.loads(path.read_text())
    for text in (json.dumps({**body, **change}), "[" * 100_000):
        path.write_text(text)
        assert rows_done(tmp_path / "set") is None
    assert (
        fill(tmp_path / "set", rows_per_block=16)[0].content_digest
        == read_record(clean).content_digest
    )


def test_a_set_with_failed_rows_is_emptied_and_filled_again(tmp_path):
    fill(tmp_path / "set", failing=BAD)
    record, computed = fill(tmp_path / "set", KEYS[:0])
    assert (record.rows, record.failed, computed) == (0, 0, 0)
    assert verify(tmp_path / "set") == []
    assert fill(tmp_path / "set")[0].rows == len(KEYS)


@pytest.mark.usefixtures("small_blocks")
def test_an_interrupted_run_with_failed_rows_is_planned_to_no_key(tmp_path):
    fill(tmp_path / "set", failing=BAD, stop_after=6)
    assert fill(tmp_path / "set", KEYS[:0])[0].rows == 0


def test_a_missing_row_is_never_another_one(tmp_path):
    fill(tmp_path / "set")
    features = FeatureSet.open(tmp_path / "set")
    with pytest.raises(IndexError, match="-1 is a missing key"):
        features.gather(features.find(keys_of_texts(["nobody"])))
    make(tmp_path / "tokens", "tokens")
    with pytest.raises(IndexError, match="-1 is a missing key"):
        TokenSet.open(tmp_path / "tokens").gather(np.array([0, -1]))


def test_the_room_for_parts_copies_and_shards_is_asked_for(tmp_path, monkeypatch):
    fill(tmp_path / "a" / "set")
    size = sum(len(data) for data in files(tmp_path / "a" / "set").values())
    monkeypatch.setattr(writer, "free_bytes", lambda folder: size // 8)
    for options in ({}, {"copy_from": tmp_path / "a"}):
        with pytest.raises(SightlineError, match=r"need about .* during writing"):
            fill(tmp_path / "b" / "set", **options)
