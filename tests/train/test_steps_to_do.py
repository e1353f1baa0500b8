"""`sightline train --dry-run`: the steps that are left, and that nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import KillAfter, Killed, World, silent

from train.train_run import steps_to_do, train_run


def files(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


def test_a_new_run_has_every_step_to_do_and_leaves_nothing(world: World, tmp_path: Path) -> None:
    random = torch.random.get_rng_state()
    left = steps_to_do(world.spec(tmp_path / "run", train={"max_steps": 40, "eval_steps": 16}))
    assert str(left) == f"{tmp_path.as_posix()}/run: 0 steps there, 40 to do"
    assert not list(tmp_path.iterdir())
    assert torch.equal(torch.random.get_rng_state(), random)


def test_a_stopped_run_has_the_steps_after_its_checkpoint_to_do(
    world: World, tmp_path: Path
) -> None:
    spec = world.spec(tmp_path / "run")  # six steps, a checkpoint every two
    with pytest.raises(Killed):
        train_run(spec, say=silent, callbacks=[KillAfter(5)])
    before = files(tmp_path)
    left = steps_to_do(spec)
    assert (left.done, left.to_do) == (4, 2)
    assert files(tmp_path) == before
    assert train_run(spec, say=silent).steps == 6  # the run still resumes


def test_a_finished_run_has_nothing_to_do_until_it_changes(world: World, tmp_path: Path) -> None:
    spec = world.spec(tmp_path / "run")
    train_run(spec, say=silent)
    before = files(tmp_path)
    left = steps_to_do(spec)
    assert (left.done, left.to_do) == (6, 0)
    changed = steps_to_do(world.spec(tmp_path / "run", train={"learning_rate": 0.5}))
    assert (changed.done, changed.to_do) == (0, 6)
    assert files(tmp_path) == before
