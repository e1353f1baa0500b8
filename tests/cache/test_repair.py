"""Damage is named, and exactly that is computed again; soundness is remembered."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from aged_files import aged
from set_oracle import expect_sound, wrong_rows
from stub_set import (
    KEYS,
    SHARD_ROWS,
    Forger,
    every_format,
    every_kind,
    files,
    fill,
    flip,
    make,
    read,
)

from sightline.cache import CacheError, FeatureSet, file_checks, verify
from sightline.cache.record import read_record
from sightline.cache.repair import repair
from sightline.cache.verify import rows_to_compute
from sightline.files.output import Output, run_folder_of


@pytest.fixture
def folder(tmp_path):
    """A feature set without failed rows."""
    fill(tmp_path / "set")
    return tmp_path / "set"


@every_format
def test_progress_of_verify_adds_up(world, kind):
    told = []
    assert verify(world / kind, told.append) == []
    assert sum(told) == read_record(world / kind).size


# --- what is named


def flip_the_end(shard):
    flip(shard, -1)


@every_format
def test_a_damaged_shard_is_named_with_the_number_of_its_rows(world, kind):
    shard = read_record(world / kind).shards[1]
    flip_the_end(world / kind / shard.name)
    (fault,) = verify(world / kind)
    assert shard.name in fault
    assert fault.endswith(f"damaged; its {shard.rows} rows ({shard.rows} in use) are lost")


@every_format
def test_the_oracle_sees_another_key_and_another_row_though_the_digests_fit(world, kind):
    forger = Forger(world / kind)
    if kind == "image":
        with h5py.File(forger.shard(), "r+") as file:
            file["keys"][4] = file["keys"][4] ^ 1
            file["features"][7, 3] = np.nan
        forger.refit()
    else:
        rows = pq.read_table(forger.shard()).drop_columns("key")
        forger.rows(rows.take([*range(4), 5, 4, *range(6, len(rows))]))
    assert verify(world / kind) == []
    wrong = [4, 7] if kind == "image" else [4, 5]
    assert wrong_rows(world / kind) == {forger.shard().name: wrong}


# --- repair


@pytest.mark.parametrize(
    ("repaired", "damage"), [(True, flip_the_end), (False, flip_the_end), (False, Path.unlink)]
)
@every_kind
def test_only_a_damaged_or_missing_shard_is_computed_again(world, kind, repaired, damage):
    folder = world / kind
    before, record = files(folder), read_record(folder)
    damaged = record.shards[-1]
    damage(folder / damaged.name)
    if repaired:
        ((name, fault),) = repair(folder).dropped.items()
        assert name == damaged.name
        assert fault.startswith(str(folder / name))
        assert f"its {damaged.rows} rows" in fault
        assert not (folder / damaged.name).exists()
        assert verify(folder) == []
        assert rows_to_compute(folder) == damaged.rows
        assert len(read(folder, kind)) == record.rows - damaged.rows
        assert sum(shard.rows for shard in read_record(folder).shards) == len(read(folder, kind))
    assert make(folder, kind) == damaged.rows
    assert {name: files(folder)[name] for name in before} == before
    assert read_record(folder) == record
    expect_sound(folder)


@every_format
def test_repair_changes_nothing_but_a_wrong_content_digest(world, kind):
    folder, before = world / kind, files(world / kind)
    times = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert repair(folder).lines() == []
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == times
    Forger(folder).say(lambda body: body.update(content_digest="0" * 64))
    assert "content digest" in verify(folder)[0]
    assert repair(folder).dropped == {}
    assert files(folder) == before


@every_format
def test_a_damaged_index_is_rebuilt_and_failed_rows_are_computed_again(world, kind):
    folder, before = world / kind, files(world / kind)
    index = Forger(folder).index
    flip(index, 600)
    assert index.name in repair(folder).index_fault
    assert read_record(folder).failed == 0
    if kind == "tokens":  # none of whose rows has failed
        assert files(folder) == before
    expect_sound(folder)
    make(folder, kind)
    assert before.items() <= files(folder).items()


def test_a_file_without_permission_is_not_damage(folder, monkeypatch):
    """Through `os.access`, because tests may run as root, which ignores permissions."""
    shard, before, access = Forger(folder).shard(), files(folder), os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != shard and access(path, mode))
    with pytest.raises(CacheError, match=f"{shard}: no permission to read"):
        repair(folder)
    assert files(folder) == before


def test_a_run_reads_a_link_and_of_a_damaged_one_replaces_the_link(folder):
    shard, elsewhere = Forger(folder).shard(), folder.parent / "elsewhere.h5"
    shard.rename(elsewhere)
    shard.symlink_to(elsewhere)
    before = files(folder)
    assert fill(folder)[1] == 0
    assert shard.is_symlink()
    flip_the_end(elsewhere)
    damaged = elsewhere.read_bytes()
    assert fill(folder)[1] == SHARD_ROWS
    assert (shard.is_symlink(), elsewhere.read_bytes()) == (False, damaged)
    assert files(folder) == before


def test_a_run_deletes_nothing_that_it_cannot_read(folder):
    shard = Forger(folder).shard()
    shard.write_bytes(shard.read_bytes()[:-8])
    fill(folder, KEYS[:0:-1], stop_after=0)
    assert shard.exists()


def test_a_repair_that_is_killed_leaves_a_set_that_can_be_read(folder, monkeypatch):
    def killed(self, names):
        raise KeyboardInterrupt

    shard = read_record(folder).shards[1]
    flip_the_end(folder / shard.name)
    monkeypatch.setattr(Output, "remove", killed)
    with pytest.raises(KeyboardInterrupt):
        repair(folder)
    assert verify(folder) == []
    assert len(FeatureSet.open(folder)) == len(KEYS) - shard.rows


# --- what was found sound is remembered, and only that


@pytest.fixture
def pulled(folder, tmp_path):
    """A set as it arrived a while ago: without the folder of its runs."""
    return aged(Path(shutil.copytree(folder, tmp_path / "pulled")))


@pytest.fixture
def checked(monkeypatch):
    """Names of the files that are read to check them."""
    names, file_fault = [], file_checks.file_fault

    def noting(folder, file, progress=lambda _: None):
        names.append(file.name)
        return file_fault(folder, file, progress)

    monkeypatch.setattr(file_checks, "file_fault", noting)
    return names


def test_opening_a_set_imports_no_pandas(pulled):
    opened = "import sys; from sightline.cache import FeatureSet; FeatureSet.open(sys.argv[1]); "
    for _ in range(2):  # the second time from what is remembered
        program = [sys.executable, "-c", opened + "sys.exit('pandas' in sys.modules)", pulled]
        assert subprocess.run(program, check=False).returncode == 0


def test_a_sound_file_is_read_once_unless_it_changes(pulled, checked):
    every = sorted(file.name for file in read_record(pulled).files)
    for read_now in (every, []):
        FeatureSet.open(pulled)
        assert sorted(checked) == read_now
        checked.clear()
    known = pq.read_table(run_folder_of(pulled) / "remembered.parquet")
    assert sorted(file.partition("\0")[0] for file in known["file"].to_pylist()) == every
    name = read_record(pulled).shards[1].name
    os.utime(pulled / name, ns=(1, 1))
    FeatureSet.open(pulled)
    assert checked == [name]
    flip(pulled / name, 900)
    for _ in range(2):  # damage is never remembered as sound
        with pytest.raises(CacheError, match=f"{name}: BLAKE3 .* damaged"):
            FeatureSet.open(pulled)


def test_what_was_written_just_now_is_read_again(pulled, checked):
    """A second change within the clock's tick would not show."""
    name = read_record(pulled).shards[0].name
    os.utime(pulled / name)
    FeatureSet.open(pulled)
    checked.clear()
    FeatureSet.open(pulled)
    assert checked == [name]


def test_a_damaged_shard_with_the_time_of_the_sound_one_is_read(pulled):
    shard = pulled / read_record(pulled).shards[0].name
    FeatureSet.open(pulled)
    flip(shutil.copy2(shard, pulled.parent / "other"), 900)
    shutil.copystat(shard, pulled.parent / "other")
    shutil.copy2(pulled.parent / "other", shard)  # into the same inode, as `cp -p`
    with pytest.raises(CacheError, match=f"{shard.name}: BLAKE3 .* damaged"):
        FeatureSet.open(pulled)


@pytest.mark.parametrize("memory", ["", "[1]", "PAR1"])
def test_a_damaged_memory_costs_only_the_reading(pulled, checked, memory):
    run = run_folder_of(pulled)
    run.mkdir()
    (run / "remembered.parquet").write_text(memory)
    assert len(FeatureSet.open(pulled)) == len(KEYS)
    assert sorted(checked) == sorted(file.name for file in read_record(pulled).files)


@pytest.mark.parametrize("name", ["notes.txt", "lock"])
def test_the_memory_is_only_written_into_a_folder_of_ours(pulled, name):
    run = run_folder_of(pulled)
    run.mkdir()
    (run / name).write_text("mine")
    FeatureSet.open(pulled)
    there = {path.name for path in run.iterdir()}
    assert there == ({name, "remembered.parquet"} if name == "lock" else {name})
