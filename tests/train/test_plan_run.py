"""The plan of a training run: steps left, their time, and that its folder is not touched."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import World, silent
from kills import KillAfter, Killed

from sightline.planning import Planned, Planning, WorkPlan
from train.plan_run import _scores
from train.run_spec import RunSpec
from train.train_run import train_run


class Ticking:
    """A clock that moves by a second whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def planned(spec: RunSpec, probe: bool | None = None) -> WorkPlan:
    (plan,) = Planning(probe, clock=Ticking()).of(lambda: train_run(spec, say=silent))
    return plan


def files(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


def test_a_new_run_has_every_step_to_do_and_leaves_nothing(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    random = torch.random.get_rng_state()
    plan = planned(world.spec(tmp_path / "run", train={"max_steps": 40, "eval_steps": 16}))
    assert (plan.there, plan.left, plan.unit, plan.device) == (0, 40, "steps", "cpu")
    # a step takes a tick, a score of all pairs one: after steps 16, 32 and 40
    assert plan.seconds == 40 + 3
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["temporary"]
    assert torch.equal(torch.random.get_rng_state(), random)


def test_a_stopped_run_has_the_steps_after_its_checkpoint_to_do(
    world: World, tmp_path: Path
) -> None:
    spec = world.spec(tmp_path / "run")  # six steps, a checkpoint and a score every two
    with pytest.raises(Killed):
        train_run(spec, say=silent, callbacks=[KillAfter(5)])
    before = files(tmp_path)
    plan = planned(spec)
    assert (plan.there, plan.left) == (4, 2)
    assert plan.seconds == 2 + 1
    assert any("resuming from checkpoint-4" in each for each in plan.remarks)
    assert files(tmp_path) == before
    assert train_run(spec, say=silent).steps == 6  # the run still resumes


def test_a_finished_run_has_nothing_to_do_until_it_changes(world: World, tmp_path: Path) -> None:
    spec = world.spec(tmp_path / "run")
    train_run(spec, say=silent)
    before = files(tmp_path)
    plan = planned(spec)
    assert (plan.there, plan.left, plan.seconds, plan.write_bytes) == (6, 0, 0.0, 0)
    changed = planned(world.spec(tmp_path / "run", train={"learning_rate": 0.5}), probe=False)
    assert (changed.there, changed.left, changed.seconds) == (0, 6, None)
    assert any("replaces the finished run: its parameters" in each for each in changed.remarks)
    assert files(tmp_path) == before


def test_seeds_of_a_run_are_probed_once(world: World, tmp_path: Path) -> None:
    planning = Planning(clock=Ticking())
    for seed in (0, 1):
        spec = world.spec(tmp_path / str(seed), seed=seed)
        planning.of(lambda spec=spec: train_run(spec, say=silent))
    first, second = planning.found
    assert first.seconds == second.seconds
    assert len(planning.timings) == 2  # of the steps, and of a score


def test_a_loss_that_is_not_finite_is_said_and_leaves_no_failure(
    world: World, tmp_path: Path
) -> None:
    plan = planned(world.spec(tmp_path / "run", train={"learning_rate": 1e30, "max_steps": 30}))
    assert plan.seconds is None
    assert any("is not finite" in each for each in plan.remarks)
    assert not list(tmp_path.iterdir())


def test_an_automatic_precision_is_not_stored(world: World, tmp_path: Path) -> None:
    file = tmp_path / "probes.json"
    spec = world.spec(tmp_path / "run", train={"precision": "auto"}, precision_file=file)
    plan = planned(spec)
    assert any("precision auto" in each for each in plan.remarks)
    assert planned(spec, probe=False).left == 6
    assert not list(tmp_path.iterdir())


def test_planning_ends_a_run_before_it_begins(world: World, tmp_path: Path) -> None:
    ended = []

    def run() -> None:
        try:
            train_run(world.spec(tmp_path / "run"), say=silent)
        except Planned:
            ended.append(True)
            raise

    Planning(probe=False).of(run)
    assert ended


@pytest.mark.parametrize(
    ("done", "steps", "every", "expected"),
    [(0, 6, 2, 3), (0, 7, 2, 4), (4, 6, 2, 1), (5, 7, 2, 2), (0, 1, 125, 1), (250, 300, 125, 1)],
)
def test_dev_scores_that_are_left(done: int, steps: int, every: int, expected: int) -> None:
    assert _scores(done, steps, every) == expected
    due = {step for step in range(done + 1, steps + 1) if step % every == 0 or step == steps}
    assert len(due) == expected
