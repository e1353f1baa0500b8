"""Shared by the tests of runs: servers that fork one run each, and a set whose run is broken."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from interrupted import World, make_world
from stage_server import StageServer


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    server = StageServer()
    yield make_world(server, tmp_path_factory)
    server.close()


@pytest.fixture(scope="session")
def real() -> Iterator[StageServer]:
    """Runs the command line, with real encoders."""
    server = StageServer("--torch")
    yield server
    server.close()
