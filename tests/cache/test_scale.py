"""Memory per key, measured, so that no step accumulates Python objects.

A key is 32 bytes, and one as a Python object 65 or more: a set of them anywhere shows here.
"""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest
from stub_set import DIM, SPEC

from sightline.cache import FeatureSet, SetWriter, verify
from sightline.cache.compact import collect

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
            writer.add(batch.keys, batch.keys[:, :DIM].astype(np.float32))
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


def test_opening_and_verifying(folder):
    assert bytes_a_row(lambda: FeatureSet.open(folder)) < 30
    assert bytes_a_row(lambda: verify(folder)) < 120


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
