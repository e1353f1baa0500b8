"""One world that no test changes, and what a diagnosis of it finds."""

from __future__ import annotations

import pytest
from diagnosed_world import DiagnosedWorld, look

from train.diagnose.diagnosis import Diagnosis
from train.diagnose.settings import Terms


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> DiagnosedWorld:
    return DiagnosedWorld(tmp_path_factory.mktemp("diagnosed") / "world", noise=1.2).write()


@pytest.fixture(scope="session")
def diagnosis(world: DiagnosedWorld) -> Diagnosis:
    return look(
        world,
        batch_size=16,
        batches=9,
        seed=3,
        thresholds=[0.2, 0.6],
        near=0.7,
        configured=Terms(0.35, 0.5),
        run="kdmcse",
    )
