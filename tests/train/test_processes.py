"""Several processes train as one does: gradients, resuming, lost processes, bad starts."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import FIVE, Case, Features, case_of
from conftest import World, assert_equal, curves_of, weights_of
from process_runs import run_processes

from sightline.errors import SightlineError
from train.loop import dropout_seed
from train.records import RunSummary
from train.run_spec import RunSpec
from train.train_run import train_run


@pytest.fixture(scope="module")
def cases(features: Features) -> dict[str, Case]:
    made = {name: case_of(features, name) for name in FIVE}
    ties = case_of(features, "dalr", teachers=[{"encoder": "ties", "weight": 1}])
    return {**made, "dalr with ties": ties}


WEIGHTS_STAY = {"learning_rate": 1e-30, "max_grad_norm": 1e9}
QUICK = {"eval_steps": 1000, "logging_steps": 1000}
"""Writes nothing between the first step and the last."""


def gradient_specs(
    cases: dict[str, Case], folder: Path, pairs: int, accumulation: int, chunk: int | None = None
) -> list[RunSpec]:
    """A run of each objective over 16 batches of 6, in which so many ``pairs`` come round."""
    made = []
    told = {"gradient_accumulation": accumulation, "max_steps": 16 // accumulation}
    for name, case in cases.items():
        spec = case.spec(folder / name, chunk=chunk, **told, **WEIGHTS_STAY, **QUICK)
        body = {**spec.model_dump(), "parameters": {**case.parameters, "pairs": pairs}}
        made.append(RunSpec.model_validate(body))
    return made


def steps_of(specs: list[RunSpec], rank: int = 0) -> dict[str, list[dict[str, torch.Tensor]]]:
    return {each.out.name: torch.load(f"{each.out}-{rank}.pt") for each in specs}


@pytest.mark.parametrize(
    ("count", "pairs", "last", "more"),
    [(2, 13, 7, {"chunk": 2}), (3, 14, 2, {"gradient_accumulation": 2})],
)
def test_gradients_are_those_of_one_process(
    cases: dict[str, Case],
    tmp_path: Path,
    count: int,
    pairs: int,
    last: int,
    more: dict[str, int],
) -> None:
    """Batches of 6 or the ``last`` few pairs; of three processes one has no row of two pairs."""
    accumulation = more.get("gradient_accumulation", 1)
    alone = gradient_specs(cases, tmp_path / "alone", pairs, accumulation)
    assert run_processes(alone, gradients=True).codes == [0]
    assert rows_of(alone[0]) >= {("pairs", 6), ("pairs", last), ("text", 6), ("text", 4)}
    specs = gradient_specs(cases, tmp_path / "shared", pairs, accumulation, more.get("chunk"))
    outcome = run_processes(specs, count=count, gradients=True)
    assert outcome.codes == [0] * count, outcome.said
    expected, found = steps_of(alone), steps_of(specs)
    for name, steps in found.items():
        assert_alike(steps, expected[name], 1e-10, name)
    for rank in range(1, count):  # or weights would part
        for name, steps in steps_of(specs, rank).items():
            assert_alike(steps, found[name], 0.0, (rank, name))


def rows_of(spec: RunSpec) -> set[tuple[str, int]]:
    from train.data import TrainingData
    from train.objectives import make_objective

    data = TrainingData(spec, make_objective(spec.objective, spec.parameters))
    return {(data[k].stream, len(data[k])) for k in range(16)}


def assert_alike(found: Any, expected: Any, bound: float, what: Any) -> None:
    """Every gradient of every step, to ``bound`` of the step's largest one."""
    assert len(found) == len(expected) > 0
    for k, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert ours.keys() == theirs.keys(), (what, k)
        largest = max(float(each.abs().max()) for each in theirs.values())
        assert largest > 0
        for name, gradient in theirs.items():
            off = float((ours[name] - gradient).abs().max())
            assert off <= bound * largest, (what, k, name, off / largest)


def train_config(**changes: Any) -> dict[str, Any]:
    return {"save_steps": 2, "logging_steps": 1, **changes}


def assert_same_run(found: Path, expected: Path) -> None:
    """Bit for bit: best weights, last weights, heads, dev scores and curves."""
    assert_equal(weights_of(found), weights_of(expected))
    for key in ("dev_history", "best_step", "steps", "sentences", "negatives_per_anchor"):
        assert getattr(summary(found), key) == getattr(summary(expected), key), key
    assert curves_of(summary(found)) == curves_of(summary(expected))


def summary(out: Path) -> RunSummary:
    return RunSummary.read(out)


def kept_step(out: Path) -> int:
    return json.loads((out / "checkpoints/state.json").read_text())["step"]


@pytest.fixture(scope="module")
def unbroken(world: World, tmp_path_factory: Any) -> Path:
    """A run of two processes, with dropout, six steps and three dev scores."""
    out = tmp_path_factory.mktemp("unbroken") / "run"
    outcome = run_processes([world.spec(out, "mcse", train=train_config())], count=2)
    assert outcome.codes == [0, 0], outcome.said
    assert summary(out).processes == (2,)
    assert summary(out).negatives_per_anchor == 7
    assert [step for step, _ in summary(out).dev_history] == [2, 4, 6]
    assert outcome.said[1].strip() == "process 1: 6 steps, processes [2]"  # and nothing else
    return out


LOST = [
    # killed process, point, whether the launcher ends the rest, step of the last checkpoint
    (1, "terms 3", 0.05, 2),
    (1, "gather 4", None, 4),
    (0, "terms 3", None, 2),
    (0, "add 5", 0.0, 4),
    (0, "dev 1", None, 2),  # step 4 is done, and not scored yet
    (1, "terms 0", None, 0),
]


@pytest.mark.parametrize(("rank", "at", "launcher", "step"), LOST)
def test_a_killed_process_ends_all_and_the_last_checkpoint_is_resumed_from(
    world: World,
    unbroken: Path,
    tmp_path: Path,
    rank: int,
    at: str,
    launcher: float | None,
    step: int,
) -> None:
    out = tmp_path / "run"
    spec = world.spec(out, "mcse", train=train_config())
    broken = run_processes([spec], count=2, act="kill", rank=rank, at=at, launcher=launcher)
    assert broken.codes[rank] == -9
    if launcher is None or broken.codes[1 - rank] == 1:
        assert broken.codes[1 - rank] == 1, broken.said
        (error,) = broken.errors
        assert "another process of this run has ended" in error
        assert "rerun the same command to resume from the last checkpoint" in error
    else:  # the launcher's signal came first, and the launcher says what happened
        assert broken.codes[1 - rank] == 143, broken.said
    assert kept_step(out) == step
    resumed = run_processes([spec], count=2)
    assert resumed.codes == [0, 0], resumed.said
    assert (f"resuming after step {step}" in resumed.said[0]) == (step > 0)
    assert_same_run(out, unbroken)


@pytest.mark.parametrize("rank", [0, 2])
def test_of_three_processes_each_survivor_says_what_happened(
    world: World, tmp_path: Path, rank: int
) -> None:
    out = tmp_path / "run"
    spec = world.spec(out, "mcse", train=train_config(batch_size=6))
    broken = run_processes([spec], count=3, act="kill", rank=rank, at="terms 3")
    assert [code for code in broken.codes if code != -9] == [1, 1], broken.said
    assert len(broken.errors) == 2, broken
    assert all("another process of this run has ended" in error for error in broken.errors)
    assert kept_step(out) == 2


def test_a_run_resumes_with_a_different_number_of_processes(
    cases: dict[str, Case], tmp_path: Path
) -> None:
    alone, out = tmp_path / "alone", tmp_path / "run"
    told = {"max_steps": 6, "learning_rate": 1e-3, **QUICK, "save_steps": 2}  # and no dropout
    assert run_processes([cases["mcseo"].spec(alone, **told)]).codes == [0]
    spec = cases["mcseo"].spec(out, **told)
    for count, at, kept in ((2, "terms 3", 2), (3, "terms 3", 4)):
        broken = run_processes([spec], count=count, act="kill", rank=1, at=at)
        assert "another process of this run has ended" in broken.errors[0]
        assert kept_step(out) == kept
    outcome = run_processes([spec])
    assert outcome.codes == [0], outcome.said
    assert summary(out).processes == (2, 3, 1)
    assert summary(alone).processes == (1,)
    assert summary(alone).spec_digest == summary(out).spec_digest
    for name, tensor in weights_of(alone).items():
        torch.testing.assert_close(weights_of(out)[name], tensor, rtol=0, atol=2e-5)


def test_a_signal_to_one_process_stops_all_after_one_step(
    world: World, unbroken: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    spec = world.spec(out, "mcse", train=train_config())
    stopped = run_processes([spec], count=2, act="terminate", rank=1, at="terms 2")
    assert stopped.codes == [143, 143], stopped.said
    (line,) = stopped.errors
    assert "stopped by SIGTERM: mcse: step 3 of 6 is kept" in line
    assert kept_step(out) == 3
    assert run_processes([spec], count=2).codes == [0, 0]
    assert_same_run(out, unbroken)


def test_each_process_draws_its_own_dropout_in_every_micro_batch() -> None:
    seeds = [dropout_seed(*of) for of in itertools.product((0, 1), range(3), range(3))]
    assert len(set(seeds)) == len(seeds)


def test_bf16_trains_in_two_processes(world: World, tmp_path: Path) -> None:
    train = train_config(precision="bf16", max_steps=2, chunk=2)
    outcome = run_processes([world.spec(tmp_path / "run", "mcse", train=train)], count=2)
    assert outcome.codes == [0, 0], outcome.said
    assert {each.dtype for each in weights_of(tmp_path / "run").values()} == {torch.float32}


def test_a_finished_run_is_returned_by_every_process(world: World, unbroken: Path) -> None:
    outcome = run_processes([world.spec(unbroken, "mcse", train=train_config())], count=2)
    assert outcome.codes == [0, 0]
    assert "already trained" in outcome.said[0]
    assert outcome.said[1].strip() == "process 1: 6 steps, processes [2]"


@pytest.mark.parametrize(
    ("count", "started", "limit", "message"),
    [
        (3, [0, 2], 2.0, "waiting for clients"),
        (4, [0], 1.0, "waiting for clients"),
        (2, [1], 2.0, "127.0.0.1"),
    ],
)
def test_processes_that_never_start_are_missed_by_those_that_did(
    world: World,
    tmp_path: Path,
    count: int,
    started: list[int],
    limit: float,
    message: str,
) -> None:
    spec = world.spec(tmp_path / "run")
    outcome = run_processes([spec], count=count, started=started, limit=limit)
    assert outcome.codes == [1] * len(started)
    assert len(outcome.errors) == len(started)  # each says so, once
    assert f"error: the processes of this run did not meet within {limit:g} s" in outcome.errors[0]
    assert message in outcome.errors[0]
    assert f"start all {count} with torchrun" in outcome.errors[0]
    if len(started) == 2:  # the others wait for process 0, which has given up
        assert "another process of this run has ended" in outcome.errors[1]
    assert not (tmp_path / "run").exists()


def test_a_bad_start_is_one_error(world: World, tmp_path: Path) -> None:
    odd = world.spec(tmp_path / "run", train={"batch_size": 7})
    fine = world.spec(tmp_path / "run")
    other = world.spec(tmp_path / "run", train={"learning_rate": 2e-3})
    missing = world.spec(tmp_path / "run", dev=tmp_path / "nowhere.tsv")
    for specs, message in (
        ([odd], "batch_size is 7, which 2 processes cannot share evenly; give a multiple of 2"),
        (
            [[fine], [other]],
            "process 1 was started with different parameters or inputs than process 0",
        ),
        ([[fine], [missing]], "nowhere.tsv: no such dev set"),
        ([missing], "nowhere.tsv: no such dev set"),
    ):
        outcome = run_processes(specs, count=2)
        assert outcome.codes == [1, 1], outcome.said
        (error,) = outcome.errors
        assert message in error
    assert not (tmp_path / "run").exists()


def test_an_incomplete_launcher_environment_is_refused(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = world.spec(tmp_path / "run")
    told = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    for name, value, message in (
        ("RANK", "", "RANK is not set and WORLD_SIZE is 2, expected two numbers"),
        ("RANK", "two", "RANK is two and WORLD_SIZE is 2, expected two numbers"),
        ("RANK", "2", "RANK is 2 and WORLD_SIZE is 2, expected two numbers, the first one smaller"),
        ("MASTER_ADDR", "", "MASTER_ADDR expected, but not set"),
    ):
        for each, given in {**told, name: value}.items():
            monkeypatch.setenv(each, given)
        with pytest.raises(SightlineError, match=message):
            train_run(spec)
