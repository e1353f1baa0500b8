"""Damage is named, with its rows, and exactly that is removed and recomputed."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import h5py
import numpy as np
import pytest
from blake3 import blake3
from stub_set import KEYS, SPEC, files, fill, flip

from sightline.cache import CacheError, FeatureSet, verify
from sightline.cache.record import FILE_NAME, read_features
from sightline.cache.verify import bytes_to_verify, repair
from sightline.digest import digest
from sightline.output import Output


@pytest.fixture
def folder(tmp_path):
    fill(tmp_path / "set")
    return tmp_path / "set"


def forge(folder, number: int, change) -> None:
    """Change the rows of a shard and update size, digest and record, as a forger would."""
    body = json.loads((folder / FILE_NAME).read_text())
    del body["digest"]
    path = folder / body["shards"][number]["name"]
    with h5py.File(path, "r+") as file:
        change(file)
    body["shards"][number]["blake3"] = blake3(path.read_bytes()).hexdigest()
    (folder / FILE_NAME).write_text(
        json.dumps({**body, "digest": digest(body)}, indent=1, ensure_ascii=False) + "\n"
    )


def test_progress_adds_up(folder):
    told: list[int] = []
    assert verify(folder, told.append) == []
    assert sum(told) == bytes_to_verify(read_features(folder))


def test_a_flipped_bit_of_a_row_names_the_shard_and_the_rows_at_stake(folder):
    shard = read_features(folder).shards[2]
    with h5py.File(folder / shard.name) as file:
        at = file["features"].id.get_offset()
    flip(folder / shard.name, at + 5)
    (fault,) = verify(folder)
    assert shard.name in fault
    assert f"1 of its {shard.rows} rows ({shard.rows} in use) changed: row 0" in fault


def test_a_flipped_bit_outside_the_rows_is_distinguished(folder):
    shard = read_features(folder).shards[0]
    path = folder / shard.name
    with h5py.File(path) as file:
        used = [
            (data.id.get_offset(), data.id.get_storage_size())
            for data in (file["features"], file["keys"])
        ]
    free = max(at for at in range(600, path.stat().st_size) if not inside(at, used))
    flip(path, free)
    (fault,) = verify(folder)
    assert "its keys and rows are intact" in fault


def inside(at: int, parts: list[tuple[int, int]]) -> bool:
    return any(start <= at < start + size for start, size in parts)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_forged_row_that_is_not_finite_is_named(tmp_path, value, dtype):
    spec = SPEC.model_copy(update={"dtype": dtype})
    fill(tmp_path / "set", spec=spec)

    def spoil(file):
        file["features"][7, 3] = value

    forge(tmp_path / "set", 1, spoil)
    faults = verify(tmp_path / "set", rows=True)
    assert any("1 rows hold NaN or infinity: row 7" in fault for fault in faults)
    assert any("1 rows are not the index's: row 7" in fault for fault in faults)


def test_a_forged_key_is_named(folder):
    def spoil(file):
        file["keys"][4] = file["keys"][4] ^ 1

    forge(folder, 0, spoil)
    (fault,) = verify(folder, rows=True)
    assert "1 rows are not the index's: row 4" in fault


def test_a_shard_on_a_failing_disk_is_named_and_not_mapped(folder, monkeypatch):
    """An I/O error in a memory map is a signal that ends the process without a line."""
    shard = folder / read_features(folder).shards[0].name
    opened, mapped = Path.open, np.memmap

    def failing(path, *args, **kwargs):
        if path == shard:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opened(path, *args, **kwargs)

    def refusing(path, *args, **kwargs):
        assert path != shard
        return mapped(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", failing)
    monkeypatch.setattr(np, "memmap", refusing)
    (fault,) = verify(folder)
    assert f"{shard}: cannot be read (Input/output error)" in fault
    with pytest.raises(CacheError, match="cannot be read"):
        FeatureSet.open(folder)
    assert [dropped.name for dropped in repair(folder).dropped] == [shard.name]


def test_a_rewritten_but_equal_record_is_detected(folder):
    path = folder / FILE_NAME
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    FeatureSet.open(folder)
    (fault,) = verify(folder)
    assert "the file was rewritten" in fault


def test_repair_removes_exactly_the_damaged_shards_and_a_run_restores_the_files(folder):
    before = files(folder)
    record = read_features(folder)
    damaged = record.shards[1]
    flip(folder / damaged.name, (folder / damaged.name).stat().st_size - 1)
    report = repair(folder)
    assert [(each.name, each.rows) for each in report.dropped] == [(damaged.name, damaged.rows)]
    assert len(FeatureSet.open(folder)) == len(KEYS) - damaged.rows
    assert verify(folder) == []
    _, computed = fill(folder)
    assert computed == damaged.rows
    after = files(folder)
    assert {name: after[name] for name in before} == before


def test_nothing_to_repair_changes_nothing(folder):
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert repair(folder).lines() == []
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_a_file_without_permission_is_not_damage(folder, monkeypatch):
    """Through `os.access`, because tests may run as root, which ignores permissions."""
    shard = next(folder.glob("shard-*"))
    before = files(folder)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != shard and access(path, mode))
    with pytest.raises(CacheError, match=f"{shard}: no permission to read"):
        repair(folder)
    assert files(folder) == before


def test_a_damaged_index_is_rebuilt_from_the_shards(folder):
    index = folder / read_features(folder).index.name
    before = index.read_bytes()
    flip(index, len(before) // 2)
    assert any(index.name in fault for fault in verify(folder))
    assert repair(folder).index_fault
    assert index.read_bytes() == before
    assert verify(folder) == []


def test_a_missing_shard_costs_a_run_only_its_rows(folder):
    record = read_features(folder)
    before = files(folder)
    (folder / record.shards[0].name).unlink()
    _, computed = fill(folder)
    assert computed == record.shards[0].rows
    after = files(folder)
    assert {name: after[name] for name in before} == before


def test_a_damaged_commit_file_cannot_be_repaired(folder):
    flip(folder / FILE_NAME, 300)
    with pytest.raises(CacheError):
        repair(folder)


def test_a_run_does_not_treat_a_link_as_damage(folder):
    shard = folder / read_features(folder).shards[0].name
    shard.rename(folder.parent / "elsewhere.h5")
    shard.symlink_to(folder.parent / "elsewhere.h5")
    with pytest.raises(CacheError, match="not a plain file"):
        fill(folder)
    assert shard.is_symlink()


def test_a_run_deletes_nothing_that_it_cannot_read(folder):
    shard = folder / read_features(folder).shards[0].name
    shard.write_bytes(shard.read_bytes()[:-8])
    fill(folder, KEYS[:0:-1], stop_after=0)
    assert shard.exists()


def test_a_repair_that_is_killed_leaves_a_set_that_can_be_read(folder, monkeypatch):
    shard = read_features(folder).shards[1]
    flip(folder / shard.name, shard.bytes - 1)

    def killed(self, names):
        raise KeyboardInterrupt

    monkeypatch.setattr(Output, "remove", killed)
    with pytest.raises(KeyboardInterrupt):
        repair(folder)
    assert verify(folder) == []
    assert len(FeatureSet.open(folder)) == len(KEYS) - shard.rows


def test_a_run_over_damage_around_the_rows_leaves_the_files_of_a_clean_one(folder, tmp_path):
    fill(tmp_path / "clean")
    shard = folder / read_features(folder).shards[0].name
    with h5py.File(shard) as file:
        used = [
            (data.id.get_offset(), data.id.get_storage_size())
            for data in (file["features"], file["keys"])
        ]
    flip(shard, max(at for at in range(600, shard.stat().st_size) if not inside(at, used)))
    _, computed = fill(folder)
    assert computed == 30
    names = [file.name for file in read_features(folder).files]
    assert {name: files(folder)[name] for name in names}.items() <= files(
        tmp_path / "clean"
    ).items()
