"""One world that no test changes, what a diagnosis of it finds, and a world to change."""

from __future__ import annotations

from pathlib import Path

import pytest
from diagnosed_world import DiagnosedWorld, look

from train.diagnose.diagnosis import Numbers


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> DiagnosedWorld:
    return DiagnosedWorld(tmp_path_factory.mktemp("diagnosed") / "world").write()


@pytest.fixture(scope="session")
def diagnosis(world: DiagnosedWorld) -> Numbers:
    terms = {"image": 0.35, "teacher_text": 0.5}
    batches = {"batch_size": 16, "batches": 9, "seed": 3}
    return look(world, **batches, thresholds=[0.2, 0.6], configured=terms, run="kdmcse")


@pytest.fixture
def own(tmp_path: Path) -> DiagnosedWorld:
    """Not yet written."""
    return DiagnosedWorld(tmp_path / "world")
