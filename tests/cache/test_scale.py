"""Memory per key, measured, so that no step accumulates Python objects.

A key is 32 bytes, and one as a Python object 65 or more: a set of them anywhere shows here.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from stub_set import DIM, SPEC

from sightline.cache import FeatureSet, SetWriter, verify
from sightline.cache.compact import collect

ROWS = 200_000
MORE = ROWS // 100
FIXED = 8 << 20
"""Bytes that do not grow: blocks of a file, batches of rows, a finished block."""


def keys(start: int, stop: int) -> np.ndarray:
    data = np.random.default_rng(0).bytes(32 * (ROWS + MORE))
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, 32)[start:stop]


def bring(folder: Path, wanted: np.ndarray, *, publish: bool = True) -> None:
    with SetWriter(folder, SPEC) as writer:
        for batch in writer.plan(wanted, batch_size=1024):
            writer.add(batch.keys, batch.keys[:, :DIM].astype(np.float32))
            if not publish:
                return
        writer.publish()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scale") / "set"
    bring(folder, keys(0, ROWS))
    return folder


def bytes_a_row(step: Callable[[], object]) -> float:
    """Peak memory of NumPy and Python during ``step`` beyond FIXED, per row."""
    gc.collect()
    tracemalloc.start()
    try:
        step()
        return (tracemalloc.get_traced_memory()[1] - FIXED) / ROWS
    finally:
        tracemalloc.stop()


def test_opening(folder: Path) -> None:
    assert bytes_a_row(lambda: FeatureSet.open(folder)) < 30


def test_verifying(folder: Path) -> None:
    assert bytes_a_row(lambda: verify(folder)) < 120


def test_planning_from_nothing(tmp_path: Path) -> None:
    wanted = keys(0, ROWS)
    assert bytes_a_row(lambda: bring(tmp_path / "set", wanted, publish=False)) < 50


def test_a_run_with_nothing_to_do(folder: Path) -> None:
    wanted = keys(0, ROWS)
    assert bytes_a_row(lambda: bring(folder, wanted)) < 200


def test_adding_and_dropping_a_hundredth(folder: Path) -> None:
    wanted = keys(MORE, ROWS + MORE)
    # the digests of all rows are 16 bytes each, twice while they are sorted
    assert bytes_a_row(lambda: bring(folder, wanted)) < 240
    assert bytes_a_row(lambda: collect(folder)) < 310
    assert len(FeatureSet.open(folder)) == ROWS


def test_an_interrupted_run_that_resumes(tmp_path: Path) -> None:
    with SetWriter(tmp_path / "set", SPEC) as writer:
        for batch in writer.plan(keys(0, ROWS), batch_size=1024)[:-1]:
            writer.add(batch.keys, batch.keys[:, :DIM].astype(np.float32))
    wanted = keys(0, ROWS)
    assert bytes_a_row(lambda: bring(tmp_path / "set", wanted, publish=False)) < 130
