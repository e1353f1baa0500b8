"""Shared by the tests of runs: servers that fork one run each, and a set whose run is broken."""

from __future__ import annotations

import pytest
from interrupted import World
from stage_server import StageServer


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    server = StageServer()
    yield World(server, tmp_path_factory)
    server.close()


@pytest.fixture(scope="session")
def real():
    """Runs the command line, with real encoders."""
    server = StageServer("--torch")
    yield server
    server.close()
