"""What this machine could not read just now is neither damaged nor missing: nothing is dropped."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stub_set import Forger, files, make

from sightline.cache import FeatureSet, verify
from sightline.cache.plan import StoredPlan
from sightline.cache.repair import repair
from sightline.errors import SightlineError
from sightline.files.output import PLAN
from sightline.files.storage import StorageError, look
from sightline.tables.arrow_files import readable

PASSING = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT]


@contextmanager
def no_more_files() -> Iterator[None]:
    """As many files as this process may open are open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))  # noqa: PTH208
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
    held: list[int] = []
    try:
        with suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        for handle in held:
            os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def folder(tmp_path) -> Path:
    make(tmp_path / "set", "image")
    return tmp_path / "set"


@pytest.mark.parametrize("number", PASSING)
def test_a_shard_that_could_not_be_read_just_now_is_not_taken_out(folder, monkeypatch, number):
    shard, before = Forger(folder).shard(), files(folder)
    opened = Path.open

    def failing(path, *args, **kwargs):
        if path == shard:
            raise OSError(number, os.strerror(number))
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", failing)
    for look_at in (verify, repair, FeatureSet.open):
        with pytest.raises(StorageError, match=rf"{shard.name}: cannot be read just now \("):
            look_at(folder)
    monkeypatch.undo()
    assert files(folder) == before
    assert verify(folder) == []


def test_with_too_many_open_files_nothing_is_called_damaged(folder, tmp_path):
    table = tmp_path / "table.parquet"
    pq.write_table(pa.table({"a": [1]}), table)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / PLAN).write_text("{}")
    FeatureSet.open(folder)  # what it imports takes files too
    said = []
    with no_more_files():
        for read in (
            lambda: FeatureSet.open(folder),
            lambda: verify(folder),
            lambda: _read_table(table),
            lambda: StoredPlan.load(tmp_path / "run"),
        ):
            with pytest.raises(SightlineError) as caught:
                read()
            said.append(str(caught.value))
    assert [
        line for line in said if "cannot be read just now (Too many open files)" not in line
    ] == []
    assert verify(folder) == []


def _read_table(path: Path) -> None:
    with readable(path), pq.ParquetFile(path) as file:
        file.read()


@pytest.mark.parametrize("number", PASSING)
def test_a_file_that_could_not_be_found_just_now_is_not_missing(folder, monkeypatch, number):
    shard, found = Forger(folder).shard(), os.stat

    def failing(path, *args, **kwargs):
        if str(path) == str(shard):
            raise OSError(number, os.strerror(number))
        return found(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", failing)
    for look_at in (lambda: look(shard), lambda: verify(folder)):
        with pytest.raises(StorageError, match="cannot be read just now"):
            look_at()
    with pytest.raises((StorageError, OSError)):
        repair(folder)
    monkeypatch.undo()
    assert verify(folder) == []
