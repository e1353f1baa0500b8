"""Several processes train as one does: gradients, resuming, lost processes, bad starts."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import Features, case_of
from process_runs import Outcome, features_in_double, gradients_of, run_processes
from training_world import World, assert_equal, curves_of, silent, weights_of

from sightline.errors import SightlineError
from train.data import TrainingData
from train.loop import dropout_seed
from train.objectives import make_objective
from train.records import RunSummary
from train.run_spec import RunSpec
from train.train_run import train_run

TRAIN = {"save_steps": 2, "logging_steps": 1}


# ---- gradients ----------------------------------------------------------------------------------


def gradient_specs(features: Features, folder: Path, pairs: int, **train: Any) -> list[RunSpec]:
    """Runs over 16 batches of 6, of so many ``pairs``: draws of terms, soft labels, phrases."""
    train = {"learning_rate": 1e-30, "max_grad_norm": 1e9, "eval_steps": 99, **train}
    train["max_steps"] = 16 // train.get("gradient_accumulation", 1)
    ties = [{"encoder": "ties", "weight": 1}]
    cases = [
        case_of(features, "dalr", teachers=ties, pairs=pairs),
        *(case_of(features, name, pairs=pairs) for name in ("kdmcse", "mcseo")),
    ]
    return [case.spec(folder / case.objective, **train) for case in cases]


def rows_of(spec: RunSpec) -> set[tuple[str, int]]:
    data = TrainingData(spec, make_objective(spec.objective, spec.parameters))
    return {(data[k].stream, len(data[k])) for k in range(16)}


@pytest.mark.parametrize(
    ("count", "pairs", "last", "accumulation", "chunk"),
    [(2, 13, 7, 1, 2), pytest.param(3, 14, 2, 2, None, marks=pytest.mark.slow)],
)
def test_gradients_are_those_of_one_process(
    features, tmp_path, monkeypatch, count, pairs, last, accumulation, chunk
):
    """Batches of 6 or the ``last`` few pairs; of three processes one has no row of two pairs."""
    train = {"gradient_accumulation": accumulation}
    alone = gradient_specs(features, tmp_path / "alone", pairs, **train)
    for spec in alone:
        with monkeypatch.context() as patch:
            features_in_double(patch)
            train_run(spec, say=silent, callbacks=[gradients_of(Path(f"{spec.out}.pt"))])
        assert rows_of(spec) >= {("pairs", 6), ("pairs", last), ("text", 6), ("text", 4)}
    shared = gradient_specs(features, tmp_path / "shared", pairs, **train, chunk=chunk)
    for outcome in run_processes(shared, count, gradients=True):
        assert outcome.codes == [0] * count, outcome.said
    for spec, other in zip(alone, shared, strict=True):
        first, *others = (torch.load(f"{other.out}-{rank}.pt") for rank in range(count))
        assert_alike(first, torch.load(f"{spec.out}.pt"), 1e-10)
        for each in others:  # or weights would part
            assert_alike(each, first, 0.0)


def assert_alike(found: Any, expected: Any, bound: float) -> None:
    """Every gradient of every step, to ``bound`` of the step's largest one."""
    assert len(found) == len(expected) > 0
    for k, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert ours.keys() == theirs.keys(), k
        largest = max(float(each.abs().max()) for each in theirs.values())
        assert largest > 0
        for name, gradient in theirs.items():
            off = float((ours[name] - gradient).abs().max())
            assert off <= bound * largest, (k, name, off / largest)


def test_each_process_draws_its_own_dropout_in_every_micro_batch():
    seeds = [dropout_seed(*of) for of in itertools.product((0, 1), range(3), range(3))]
    assert len(set(seeds)) == len(seeds)


# ---- runs, one after the other in the same two processes -----------------------------------------


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("group")


@pytest.fixture(scope="module")
def outcomes(world: World, root: Path) -> dict[str, Outcome]:
    """``unbroken`` has dropout, six steps and three dev scores."""
    unbroken = world.spec(root / "unbroken", "mcse", train=TRAIN)
    bf16 = {**TRAIN, "precision": "bf16", "max_steps": 2, "chunk": 2}
    specs = {
        "unbroken": unbroken,
        "finished": unbroken,
        "bf16": world.spec(root / "bf16", "mcse", train=bf16),
    }
    return dict(zip(specs, run_processes(list(specs.values())), strict=True))


def kept_step(out: Path) -> int:
    return json.loads((out / "checkpoints/state.json").read_text())["step"]


def test_two_processes_train_one_run_and_both_return_it_when_it_is_finished(outcomes, root):
    for name in ("unbroken", "finished"):
        assert outcomes[name].codes == [0, 0], outcomes[name].said
        said = outcomes[name].said[1].splitlines()
        ours = [line for line in said if not line.startswith("[Gloo]")]  # as older PyTorch has it
        assert ours == ["process 1: 6 steps, processes [2]"]
    assert "already trained" in outcomes["finished"].said[0]
    found = RunSummary.read(root / "unbroken")
    assert found.processes == (2,)
    assert [step for step, _ in found.dev_history] == [2, 4, 6]


def test_bf16_trains_in_two_processes(outcomes, root):
    assert outcomes["bf16"].codes == [0, 0], outcomes["bf16"].said
    assert {each.dtype for each in weights_of(root / "bf16").values()} == {torch.float32}


@pytest.mark.parametrize("objective", ["mcse", pytest.param("mcseo", marks=pytest.mark.slow)])
def test_a_step_exchanges_its_embeddings_its_gradients_and_the_wish_to_stop(
    features, tmp_path, objective
):
    """However many blocks a batch has, and however many tensors the student."""
    quiet = {"eval_steps": 99, "save_steps": 99, "logging_steps": 99, "max_steps": 5}
    spec = case_of(features, objective).spec(tmp_path / "run", **quiet)
    (outcome,) = run_processes([spec], act="count", rank=0)
    assert outcome.codes == [0, 0], outcome.said
    counts = [int(count) for count in re.findall(r"exchanges: (\d+)", outcome.said[0])]
    assert [after - before for before, after in itertools.pairwise(counts)] == [3] * 4
    assert counts[0] == 3  # the weights, and all of a step but the wish


# ---- processes that fail, end or never start -----------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "alone", "message"),
    [
        ({"train": {"batch_size": 7}}, False, "batch_size is 7, which 2 processes cannot share"),
        ({"train": {"learning_rate": 2e-3}}, True, "process 1 was started with different param"),
        ({"dev": Path("nowhere.tsv")}, True, "nowhere.tsv: no such dev set"),
        pytest.param(
            *({"dev": Path("nowhere.tsv")}, False, "nowhere.tsv: no such dev set"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_bad_start_of_one_process_or_both_is_one_error(world, tmp_path, changes, alone, message):
    bad = world.spec(tmp_path / "run", **changes)
    spec = (world.spec(tmp_path / "run"), bad) if alone else bad
    (outcome,) = run_processes([spec])
    assert sorted(outcome.codes) == [1, 143], outcome.said
    (error,) = outcome.errors
    assert message in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("late", "kept"),
    [
        (0, "the last checkpoint is of step 1"),
        pytest.param(1, "there is no checkpoint", marks=pytest.mark.slow),
    ],
)
def test_the_clock_of_process_0_decides_and_a_loss_that_is_not_finite_is_one_error(
    world, tmp_path, late, kept
):
    train = {"learning_rate": 1e30, "save_steps": None}
    spec = world.spec(tmp_path / "run", train=train)
    (outcome,) = run_processes([spec], act="late", rank=late)
    assert outcome.codes == [1, 143], outcome.said
    (error,) = outcome.errors
    assert f"step 2 (micro-batch 1, text): text is nan. Nothing is saved after it; {kept}" in error


BREAKS = [
    # what happens, to which process, where, the step that is kept
    ("kill", 1, "terms 0", 0),
    ("kill", 0, "dev 1", 2),  # step 4 is done, and not scored yet
    ("fail", 1, "gather 2", 4),
    ("fail", 0, "add 1", 4),
    ("terminate", 1, "terms 0", 5),
]


@pytest.mark.slow
def test_a_run_that_is_broken_again_and_again_ends_as_an_unbroken_one(
    world, outcomes, root, tmp_path
):
    out, before = tmp_path / "run", 0
    spec = world.spec(out, "mcse", train=TRAIN)
    for act, rank, at, step in BREAKS:
        (broken,) = run_processes([spec], act=act, rank=rank, at=at)
        assert (f"resuming after step {before}" in broken.said[0]) == (before > 0)
        if act == "terminate":
            assert broken.codes == [143, 143], broken.said
            (line,) = broken.errors
            assert f"stopped by SIGTERM: mcse: step {step} of 6 is kept" in line
        else:  # the launcher says what was killed, and the other one nothing
            code = -9 if act == "kill" else 1
            assert (broken.codes[rank], broken.codes[1 - rank]) == (code, 143), broken.said
            assert broken.errors == ["error: no space left"] * (act == "fail")
        assert kept_step(out) == step
        before = step
    (resumed,) = run_processes([spec])
    assert resumed.codes == [0, 0], resumed.said
    assert_equal(weights_of(out), weights_of(root / "unbroken"))
    found, expected = RunSummary.read(out), RunSummary.read(root / "unbroken")
    for key in ("dev_history", "best_step", "steps", "sentences"):
        assert getattr(found, key) == getattr(expected, key), key
    assert curves_of(found) == curves_of(expected)


def test_survivors_without_a_launcher_say_what_happened_and_one_process_resumes_the_run_of_three(
    features, tmp_path
):
    alone, out = tmp_path / "alone", tmp_path / "run"
    case = case_of(features, "mcseo")
    told = {"max_steps": 6, "learning_rate": 1e-3, "eval_steps": 99, "save_steps": 2}
    spec = case.spec(out, **told)
    (broken,) = run_processes([spec], 3, act="kill", rank=0, at="terms 3", launcher=False)
    assert broken.codes == [-9, 1, 1], broken.said
    assert len(broken.errors) == 2
    assert all("another process of this run has ended" in error for error in broken.errors)
    assert all("rerun the same command to resume from the" in error for error in broken.errors)
    assert kept_step(out) == 2
    found, expected = (train_run(case.spec(each, **told), say=silent) for each in (out, alone))
    assert (found.processes, expected.processes) == ((3, 1), (1,))
    assert found.spec_digest == expected.spec_digest
    for name, tensor in weights_of(alone).items():
        torch.testing.assert_close(weights_of(out)[name], tensor, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("count", "started", "message"),
    [(3, [0, 2], "waiting for clients"), (2, [1], "127.0.0.1")],
)
def test_processes_that_never_start_are_missed_by_those_that_did(
    world, tmp_path, count, started, message
):
    spec = world.spec(tmp_path / "run")
    (outcome,) = run_processes([spec], count, started=started, limit=2.0)
    assert outcome.codes == [1, 143][: len(started)]
    (error,) = outcome.errors
    assert "error: the processes of this run did not meet within 2 s" in error
    assert message in error
    assert f"start all {count} with torchrun" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RANK", "", "RANK is not set and WORLD_SIZE is 2, expected two numbers"),
        ("RANK", "two", "RANK is two and WORLD_SIZE is 2, expected two numbers"),
        ("RANK", "2", "RANK is 2 and WORLD_SIZE is 2, expected two numbers, the first one smaller"),
        ("MASTER_ADDR", "", "MASTER_ADDR expected, but not set"),
    ],
)
def test_an_incomplete_launcher_environment_is_refused(
    world, tmp_path, monkeypatch, name, value, message
):
    told = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    for each, given in {**told, name: value}.items():
        monkeypatch.setenv(each, given)
    with pytest.raises(SightlineError, match=message):
        train_run(world.spec(tmp_path / "run"))


# ---- the real launcher ---------------------------------------------------------------------------

TORCHRUN = """
import os, pickle, sys
from pathlib import Path
from pipeline import cli
from pipeline.cli import commands
from process_runs import break_at
from train.train_run import train_run

spec, act, rank = pickle.loads(Path(sys.argv[1]).read_bytes())
if os.environ["RANK"] == str(rank):
    break_at(act, "terms 3")
commands.app = lambda: train_run(spec)
cli.console()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("act", "rank"), [("fail", 1), ("kill", 0)])
def test_under_torchrun_the_message_of_the_process_that_failed_is_our_last(
    world, tmp_path, act, rank
):
    (tmp_path / "run.py").write_text(TORCHRUN)
    spec = world.spec(tmp_path / "run", train=TRAIN)
    (tmp_path / "spec").write_bytes(pickle.dumps((spec, act, rank)))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launcher += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    ended = subprocess.run(
        [*launcher, tmp_path / "run.py", tmp_path / "spec"],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 1
    ours = [line for line in ended.stderr.splitlines() if line.startswith(("simcse: ", "error: "))]
    assert ours[-1].startswith("error: no space left" if act == "fail" else "simcse: step ")
    assert sum(line.startswith(("error: ", "stopped")) for line in ours) == (act == "fail")
    assert kept_step(tmp_path / "run") == 2
