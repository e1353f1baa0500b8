"""The inputs of every command, made once, and one process that runs all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from output_world import OutputWorld


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutputWorld]:
    world = OutputWorld(tmp_path_factory.mktemp("world"))
    yield world
    world.close()
