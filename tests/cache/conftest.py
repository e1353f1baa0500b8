"""A small set of every kind, made once, and a copy of them for each test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from stub_set import KINDS, make


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a set of each kind, named after it; tests only read it."""
    folder = tmp_path_factory.mktemp("sets")
    for kind in KINDS:
        make(folder / kind, kind)
    return folder


@pytest.fixture
def world(made: Path, tmp_path: Path) -> Path:
    """A copy of `made` to modify freely."""
    return Path(shutil.copytree(made, tmp_path / "world"))
