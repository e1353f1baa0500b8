"""The world to train in and runs in it, made once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from training_world import World, make_world, silent

from train.records import RunSummary
from train.train_run import train_run

if TYPE_CHECKING:
    from cases import Features


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    torch.set_num_threads(1)
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def features(world: World, tmp_path_factory: pytest.TempPathFactory) -> Features:
    from cases import Features

    return Features(world, tmp_path_factory.mktemp("features"))


@pytest.fixture(scope="session")
def finished_run(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of six steps with a checkpoint and a dev score every two; only to be read."""
    out = tmp_path_factory.mktemp("finished") / "run"
    train_run(world.spec(out), say=silent)
    return out


@pytest.fixture(scope="session")
def trained(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunSummary]:
    """A finished run of MCSE, six steps: its folder and its summary; only to be read."""
    out = tmp_path_factory.mktemp("trained") / "run"
    return out, train_run(world.spec(out, "mcse"), say=silent)
