"""What was found sound is remembered, and only that."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from stub_set import KEYS, fill, flip

from sightline.cache import CacheError, FeatureSet, checks
from sightline.cache.record import read_record
from sightline.output import run_folder_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A set as it arrives: without the folder of its runs."""
    fill(tmp_path / "made")
    shutil.copytree(tmp_path / "made", tmp_path / "set")
    return tmp_path / "set"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read to check them."""
    names: list[str] = []
    file_fault = checks.file_fault

    def noting(folder, file, progress=lambda _: None):
        names.append(file.name)
        return file_fault(folder, file, progress)

    monkeypatch.setattr(checks, "file_fault", noting)
    return names


def test_a_sound_file_is_read_once(folder, read):
    FeatureSet.open(folder)
    assert sorted(read) == sorted(file.name for file in read_record(folder).files)
    read.clear()
    FeatureSet.open(folder)
    assert read == []


def test_a_file_that_changed_is_read_again(folder, read):
    FeatureSet.open(folder)
    name = read_record(folder).shards[1].name
    read.clear()
    os.utime(folder / name, ns=(1, 1))
    FeatureSet.open(folder)
    assert read == [name]
    flip(folder / name, 900)
    with pytest.raises(CacheError, match=f"{name}: BLAKE3 .* damaged"):
        FeatureSet.open(folder)
    with pytest.raises(CacheError, match=name):  # damage is never remembered as sound
        FeatureSet.open(folder)


@pytest.mark.parametrize("memory", ["", "[1]", "null", '{"a": 1}', '{"a'])
def test_a_damaged_memory_costs_only_the_reading(folder, read, memory):
    run = run_folder_of(folder)
    run.mkdir()
    (run / "checked.json").write_text(memory)
    assert len(FeatureSet.open(folder)) == len(KEYS)
    assert sorted(read) == sorted(file.name for file in read_record(folder).files)


def test_nothing_is_written_into_somebody_elses_folder(folder):
    run = run_folder_of(folder)
    run.mkdir()
    (run / "notes.txt").write_text("mine")
    FeatureSet.open(folder)
    assert [path.name for path in run.iterdir()] == ["notes.txt"]


def test_after_a_run_the_memory_lies_beside_its_lock(tmp_path):
    fill(tmp_path / "set", KEYS[:5])
    FeatureSet.open(tmp_path / "set")
    known = json.loads((tmp_path / "set.run/checked.json").read_bytes())
    assert known.keys() == {file.name for file in read_record(tmp_path / "set").files}
