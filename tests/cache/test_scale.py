"""Memory per key, measured, so that no step accumulates Python objects.

A key is 32 bytes, and one as a Python object 65 or more: a set of them anywhere shows here.
"""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from stub_set import DIM, SPEC

from sightline.cache import FeatureSet, SetWriter, verify
from sightline.cache.compact import collect
from sightline.devices import allow_open_files

ROOT = Path(__file__).parents[2]
ROWS = 200_000
MORE = ROWS // 100
FIXED = 8 << 20
"""Bytes that do not grow: blocks of a file, batches of rows, a finished block."""


def keys(start, stop):
    data = np.random.default_rng(0).bytes(32 * (ROWS + MORE))
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, 32)[start:stop]


def bring(folder, wanted, part=slice(None), *, publish=True):
    """Compute this part of the batches that the set lacks."""
    with SetWriter(folder, SPEC) as writer:
        for batch in writer.plan(wanted, batch_size=1024)[part]:
            writer.add(batch, batch.keys[:, :DIM].astype(np.float32))
        if publish:
            writer.publish()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scale") / "set"
    bring(folder, keys(0, ROWS))
    return folder


def bytes_a_row(step):
    """Peak memory of NumPy and Python during ``step`` beyond FIXED, per row."""
    gc.collect()
    tracemalloc.start()
    try:
        step()
        return (tracemalloc.get_traced_memory()[1] - FIXED) / ROWS
    finally:
        tracemalloc.stop()


FEW_FILES = """
import resource
from pathlib import Path

import numpy as np
from set_oracle import expect_sound
from stub_set import DIM, SPEC

from sightline.cache import FeatureSet, SetWriter
from sightline.cache.compact import collect, compact

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
folder, keys = Path("set"), np.random.default_rng(0).integers(0, 256, (100_000, 32), np.uint8)


def fill(wanted, publish=True):
    with SetWriter(folder, SPEC) as writer:
        batches = writer.plan(wanted, batch_size=512, shard_rows=500)
        for batch in batches:
            writer.add(batch, batch.keys[:, :DIM].astype(np.float32))
        return writer.publish() if publish else batches


assert len(fill(keys[:-9000], publish=False)) > 3 * 50
record = fill(keys)
assert len(record.shards) == 200
features = FeatureSet.open(folder)
for draw in range(3):
    some = keys[np.random.default_rng(draw).permutation(len(keys))[:5000]]
    assert (features.take(some) == some[:, :DIM]).all()
expect_sound(folder)
compact(folder)
collect(folder)
assert len(FeatureSet.open(folder)) == len(keys)
"""


def test_hundreds_of_parts_and_shards_need_few_open_files(tmp_path):
    """macOS lets a process have 256; one that is asked for 64 shows that none is kept."""
    script = [sys.executable, "-c", FEW_FILES]
    path = os.pathsep.join(map(str, [Path(__file__).parent, ROOT / "tests/helpers", ROOT]))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.stderr, done.returncode) == ("", 0)


def test_the_soft_limit_of_open_files_is_raised_to_the_hard_one(monkeypatch):
    limits = {"now": (256, resource.RLIM_INFINITY)}

    def set_limit(which, new):
        if new[0] > 10_240:
            raise ValueError("not permitted")  # as macOS does beyond its own maximum
        limits["now"] = new

    monkeypatch.setattr(resource, "getrlimit", lambda which: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    allow_open_files()
    assert limits["now"] == (10_240, resource.RLIM_INFINITY)
    limits["now"] = (1024, 4096)
    allow_open_files()
    assert limits["now"] == (4096, 4096)
    allow_open_files()
    assert limits["now"] == (4096, 4096)


@pytest.mark.slow
def test_opening_and_verifying(folder):
    assert bytes_a_row(lambda: FeatureSet.open(folder)) < 30
    assert bytes_a_row(lambda: verify(folder)) < 120


@pytest.mark.slow
def test_planning_from_nothing_and_resuming(tmp_path):
    wanted, first = keys(0, ROWS), slice(1)
    assert bytes_a_row(lambda: bring(tmp_path / "set", wanted, first, publish=False)) < 50
    bring(tmp_path / "set", wanted, slice(-1), publish=False)
    assert bytes_a_row(lambda: bring(tmp_path / "set", wanted, first, publish=False)) < 130


def test_a_run_with_nothing_to_do(folder):
    wanted = keys(0, ROWS)
    assert bytes_a_row(lambda: bring(folder, wanted)) < 200


def test_adding_and_dropping_a_hundredth(folder):
    wanted = keys(MORE, ROWS + MORE)
    # the digests of all rows are 16 bytes each, twice while they are sorted
    assert bytes_a_row(lambda: bring(folder, wanted)) < 240
    assert bytes_a_row(lambda: collect(folder)) < 310
    assert len(FeatureSet.open(folder)) == ROWS
