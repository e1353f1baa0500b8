"""Workers that share a folder leave the files of a single run, whichever of them is killed."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from engine_work import StubWork
from fault_layer import ends_and_middle_of_each
from interrupted import AFTER, BEFORE, KILLED, boundaries, files, some_of
from stage_server import StageServer
from waiting import wait_until

from sightline.cache import FeatureSet, verify

LEFT = "other workers are still active; the last one publishes the set"


@pytest.fixture(scope="module")
def other():
    """A second server, so that two workers can run at once."""
    server = StageServer()
    yield server
    server.close()


@pytest.fixture
def both(world, other):
    """Runs two workers in a folder, the first of them broken somehow; how they ended."""

    def run(folder, **broken):
        world.server.begin(folder, texts=AFTER, worker="0/2", **broken)
        other.begin(folder, texts=AFTER, worker="1/2")
        return world.server.outcome(), other.outcome()

    return run


@pytest.fixture
def waiting(world, tmp_path):
    """Starts a worker that waits at a point: where it writes, and the file that holds it there."""

    def start(at, worker="0/2"):
        found = SimpleNamespace(folder=world.copy(tmp_path / "one"), gate=tmp_path / "gate")
        broken = {"act": "wait", "at": at, "file": str(found.gate)}
        world.server.begin(found.folder, texts=AFTER, worker=worker, **broken)
        wait_until(found.gate.exists)
        return found

    return start


def test_two_workers_leave_the_files_of_one_run(world, both, tmp_path):
    for i in range(5):
        folder = world.copy(tmp_path / str(i))
        ends = both(folder)
        assert [each.code for each in ends] == [0, 0], [each.said for each in ends]
        assert files(folder) == world.expected
        assert sum(each.encoded for each in ends) == AFTER - BEFORE
        assert sum(LEFT in each.said for each in ends) <= 1
        assert not folder.with_name("set.run").joinpath("parts").exists()


def test_one_worker_computes_while_another_works_on_its_block(world, other, waiting):
    held = waiting("encode 2")
    second = other.run(held.folder, texts=AFTER, worker="1/2")
    assert (second.code, LEFT in second.said) == (0, True), second.said
    assert second.encoded == AFTER - BEFORE - 32  # all but the block that the first one is at
    world.check_readers(held.folder)
    held.gate.unlink()
    first = world.server.outcome()
    assert first.code == 0, first.said
    assert first.encoded == 32
    assert "reused from an interrupted run or other workers" in first.said
    assert files(held.folder) == world.expected


@pytest.mark.parametrize("at_work", ["0/2", ""])
def test_a_single_run_and_a_worker_exclude_each_other(world, other, waiting, at_work):
    held = waiting("encode 2", at_work)
    refused = other.run(held.folder, texts=AFTER, worker="" if at_work else "1/2")
    assert refused.code != 0
    holder = "worker 0/2, process" if at_work else "process"
    assert f"another run is writing here ({holder}" in refused.said
    held.gate.unlink()
    assert world.server.outcome().code == 0
    assert files(held.folder) == world.expected


def test_a_worker_that_starts_while_another_publishes_finds_everything_done(world, other, waiting):
    held = waiting("before rename record 1")
    other.begin(held.folder, texts=AFTER, worker="1/2")
    time.sleep(0.3)  # it waits for the first one
    world.check_readers(held.folder)
    held.gate.unlink()
    first, second = world.server.outcome(), other.outcome()
    assert (first.code, second.code, second.encoded) == (0, 0, 0), first.said + second.said
    assert files(held.folder) == world.expected


def test_a_single_run_completes_what_a_dead_worker_left(world, tmp_path):
    folder = world.copy(tmp_path / "one")
    dead = world.server.run(folder, texts=AFTER, worker="0/2", act="kill", at="encode 12")
    assert dead.code == KILLED
    world.go_on(folder, dead)


def kill_one(world, both, folder, **broken):
    """Kill the first of two workers; returns whether it was hit before it ended."""
    folder = world.copy(folder)
    first, second = both(folder, **broken)
    assert first.code in (KILLED, 0), first.said
    assert second.code == 0, second.said
    world.check_readers(folder)
    last = world.server.run(folder, texts=AFTER)
    assert last.code == 0, last.said
    assert files(folder) == world.expected, broken
    return first.code == KILLED


@pytest.fixture
def points(world, tmp_path):
    """Every point that a sole worker passes."""
    folder = world.copy(tmp_path / "alone")
    outcome = world.server.run(folder, texts=AFTER, worker="0/2")
    assert outcome.code == 0, outcome.said
    assert files(folder) == world.expected
    return outcome.points


def test_one_worker_killed_at_every_write_boundary_while_the_other_continues(
    world, both, points, tmp_path
):
    names = boundaries(points, "before sync")
    assert len(names) > 15
    for point in some_of(names):
        kill_one(world, both, tmp_path / point, act="kill", at=point)


@pytest.mark.slow
def test_one_worker_killed_at_every_kind_of_point_and_at_random(world, both, points, tmp_path):
    """At the first, the middle and the last point of every name, and 40 times at random."""
    hits, folder, duration = 0, tmp_path / "some", world.unbroken.seconds
    points = ends_and_middle_of_each(point for point in points if "encode" not in point)
    for point in points:
        hits += kill_one(world, both, folder, act="kill", at=point)
        shutil.rmtree(folder)
    rng = random.Random(2)
    for _ in range(40):
        hits += kill_one(world, both, folder, kill_after=rng.uniform(0, 1.2) * duration)
        shutil.rmtree(folder)
    assert hits >= (len(points) + 40) // 2


# --- a stage whose DVC was killed


DVC = [sys.executable, "-m", "dvc"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "DVC_NO_ANALYTICS": "1"}


def stages_in(folder):
    """Processes that run the stage there."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
            if b"engine_work" in command and (process / "cwd").readlink() == folder:
                found.append(int(process.name))
        except OSError:
            continue  # it has ended in the meantime
    return found


@pytest.mark.slow
def test_dvc_respects_the_orphan_of_a_killed_one_and_reuses_its_work(tmp_path):
    def start(*words):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen([*words, "-q"], cwd=tmp_path, env=ENVIRONMENT, **pipes)

    log, features = tmp_path / "log", tmp_path / "features"
    log.mkdir()
    (tmp_path / "input").touch()
    work = StubWork(Path("features"), log=log, meet=2)  # it waits until another one has begun
    outs = [{"features": {"persist": True}}]
    stage = {"cmd": shlex.join(work.command()), "deps": ["input"], "outs": outs}
    (tmp_path / "dvc.yaml").write_text(json.dumps({"stages": {"features": stage}}))
    assert start("git", "init").wait() == start(*DVC, "init").wait() == 0
    dvc = start(*DVC, "repro")
    try:
        wait_until(lambda: list(log.iterdir()))
        dvc.kill()
        dvc.wait()
        (orphan,) = stages_in(tmp_path)
        refused = start(*DVC, "repro")
        assert f"another run is writing here (process {orphan}" in refused.communicate()[0]
        assert refused.returncode != 0
        assert stages_in(tmp_path) == [orphan]
        os.kill(orphan, signal.SIGTERM)
        wait_until(lambda: not stages_in(tmp_path))
        assert start(*DVC, "repro").wait() == 0
    finally:
        for process in stages_in(tmp_path):
            os.kill(process, signal.SIGKILL)
    assert verify(features) == []
    assert len(FeatureSet.open(features)) == 237
    assert not (tmp_path / "features.run" / "parts").exists()
