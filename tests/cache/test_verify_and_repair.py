"""Damage is named, with its rows, and exactly that is removed and recomputed."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from command_line import sightline
from stub_set import (
    KEYS,
    SPECS,
    Forger,
    every_format,
    every_kind,
    files,
    fill,
    flip,
    make,
    read,
)

from sightline.cache import CacheError, FeatureSet, verify
from sightline.cache.record import read_record
from sightline.cache.verify import bytes_to_verify, repair, rows_to_compute
from sightline.output import Output


@pytest.fixture
def folder(tmp_path):
    """A feature set without failed rows."""
    fill(tmp_path / "set")
    return tmp_path / "set"


@every_format
@pytest.mark.parametrize("rows", [False, True])
def test_progress_of_verify_adds_up(world, kind, rows):
    told: list[int] = []
    assert verify(world / kind, told.append, rows=rows) == []
    assert sum(told) == bytes_to_verify(read_record(world / kind), rows=rows)


# --- what is named


def test_a_flipped_bit_of_a_row_names_the_shard_and_the_rows_at_stake(folder):
    shard = read_record(folder).shards[2]
    with h5py.File(folder / shard.name) as file:
        at = file["features"].id.get_offset()
    flip(folder / shard.name, at + 5)
    (fault,) = verify(folder)
    assert shard.name in fault
    assert f"1 of its {shard.rows} rows ({shard.rows} in use) changed: row 0" in fault


def test_rows_of_a_table_that_cannot_be_decoded_are_counted(world):
    shard = read_record(world / "tokens").shards[0]
    flip(world / "tokens" / shard.name, -1)
    (fault,) = verify(world / "tokens")
    assert f"its {shard.rows} rows ({shard.rows} in use) are lost" in fault


def flip_around_the_rows(shard: Path) -> None:
    """Flip a bit that belongs to no key and no row."""
    with h5py.File(shard) as file:
        used = [
            range(data.id.get_offset(), data.id.get_offset() + data.id.get_storage_size())
            for data in (file["features"], file["keys"])
        ]
    flip(
        shard, max(at for at in range(600, shard.stat().st_size) if not any(at in u for u in used))
    )


def test_a_flipped_bit_outside_the_rows_is_distinguished(folder):
    flip_around_the_rows(Forger(folder).shard())
    (fault,) = verify(folder)
    assert "its keys and rows are intact" in fault


@pytest.mark.parametrize(("dtype", "value"), [("float16", np.nan), ("float32", -np.inf)])
def test_a_row_that_is_not_finite_is_named_though_the_digests_fit(folder, dtype, value):
    def spoil(file):
        file["features"][7, 3] = value

    fill(folder, spec=SPECS["image"].model_copy(update={"dtype": dtype}))
    Forger(folder).edit(spoil, number=1)
    assert verify(folder) == []
    unlike, unfit = verify(folder, rows=True)
    assert "1 rows are not the index's: row 7" in unlike
    assert "1 rows hold NaN or infinity: row 7" in unfit


@every_format
def test_another_key_or_row_is_named_though_the_digests_fit(world, kind):
    def spoil(file):
        file["keys"][4] = file["keys"][4] ^ 1

    forger = Forger(world / kind)
    if kind == "image":
        forger.edit(spoil)
    else:
        rows = pq.read_table(forger.shard()).drop_columns("key")
        forger.rows(rows.take([*range(4), 5, 4, *range(6, len(rows))]))
    (fault,) = verify(world / kind, rows=True)
    assert ("1 rows" if kind == "image" else "2 rows") + " are not the index's: row" in fault
    assert " 4" in fault


# --- repair


@pytest.mark.parametrize("repaired", [True, False], ids=["repaired", "as it is"])
@every_kind
def test_only_the_damaged_shard_is_computed_again(world, kind, repaired):
    folder = world / kind
    before, record = files(folder), read_record(folder)
    damaged = record.shards[-1]
    flip(folder / damaged.name, damaged.bytes - 1)
    if repaired:
        (dropped,) = repair(folder).dropped
        assert (dropped.name, dropped.rows) == (damaged.name, damaged.rows)
        assert damaged.name in dropped.reason
        assert not (folder / damaged.name).exists()
        assert verify(folder) == []
        assert rows_to_compute(folder) == damaged.rows
        assert len(read(folder, kind)) == record.rows - damaged.rows
        assert sum(shard.rows for shard in read_record(folder).shards) == len(read(folder, kind))
    make(folder, kind)
    assert {name: files(folder)[name] for name in before} == before
    assert read_record(folder) == record
    assert verify(folder, rows=True) == []


def test_a_missing_shard_costs_a_run_only_its_rows(folder):
    record, before = read_record(folder), files(folder)
    (folder / record.shards[0].name).unlink()
    assert fill(folder)[1] == record.shards[0].rows
    assert before.items() <= files(folder).items()


def test_verify_says_how_many_rows_repair_took_out(world, capsys):
    shard = read_record(world / "grounding").shards[0]
    flip(world / "grounding" / shard.name, 60)
    assert sightline("cache", "repair", world / "grounding") == 0
    assert sightline("cache", "verify", world / "grounding") == 0
    assert f"sound, {shard.rows} rows to compute" in capsys.readouterr().out


@every_format
def test_nothing_to_repair_changes_nothing(world, kind):
    before = {path: path.stat().st_mtime_ns for path in (world / kind).iterdir()}
    assert repair(world / kind).lines() == []
    assert {path: path.stat().st_mtime_ns for path in (world / kind).iterdir()} == before


@every_format
def test_repair_fixes_a_record_with_a_wrong_content_digest(world, kind):
    before = files(world / kind)
    Forger(world / kind).say(lambda body: body.update(content_digest="0" * 64))
    assert "content digest" in verify(world / kind)[0]
    assert repair(world / kind).dropped == ()
    assert files(world / kind) == before


@every_format
def test_a_damaged_index_is_rebuilt_from_the_shards(tmp_path, kind):
    folder = tmp_path / kind
    if kind == "image":
        fill(folder)  # without failed rows
    else:
        make(folder, kind)
    index = Forger(folder).index
    before = index.read_bytes()
    flip(index, len(before) // 2)
    assert index.name in repair(folder).index_fault
    assert index.read_bytes() == before
    assert verify(folder, rows=True) == []


def test_failed_rows_are_lost_with_the_index_and_computed_again(world):
    folder, before = world / "image", files(world / "image")
    flip(Forger(folder).index, 600)
    repair(folder)
    assert FeatureSet.open(folder).failed == {}
    make(folder, "image")
    assert before.items() <= files(folder).items()


def test_a_file_without_permission_is_not_damage(folder, monkeypatch):
    """Through `os.access`, because tests may run as root, which ignores permissions."""
    shard = Forger(folder).shard()
    before = files(folder)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != shard and access(path, mode))
    with pytest.raises(CacheError, match=f"{shard}: no permission to read"):
        repair(folder)
    assert files(folder) == before


def test_a_run_does_not_treat_a_link_as_damage(folder):
    shard = Forger(folder).shard()
    shard.rename(folder.parent / "elsewhere.h5")
    shard.symlink_to(folder.parent / "elsewhere.h5")
    with pytest.raises(CacheError, match="not a plain file"):
        fill(folder)
    assert shard.is_symlink()


def test_a_run_deletes_nothing_that_it_cannot_read(folder):
    shard = Forger(folder).shard()
    shard.write_bytes(shard.read_bytes()[:-8])
    fill(folder, KEYS[:0:-1], stop_after=0)
    assert shard.exists()


def test_a_repair_that_is_killed_leaves_a_set_that_can_be_read(folder, monkeypatch):
    shard = read_record(folder).shards[1]
    flip(folder / shard.name, shard.bytes - 1)

    def killed(self, names):
        raise KeyboardInterrupt

    monkeypatch.setattr(Output, "remove", killed)
    with pytest.raises(KeyboardInterrupt):
        repair(folder)
    assert verify(folder) == []
    assert len(FeatureSet.open(folder)) == len(KEYS) - shard.rows


def test_a_run_over_damage_around_the_rows_leaves_the_files_of_a_clean_one(folder):
    before = files(folder)
    flip_around_the_rows(Forger(folder).shard())
    assert fill(folder)[1] == read_record(folder).shards[0].rows
    assert before.items() <= files(folder).items()
