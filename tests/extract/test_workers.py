"""Workers that share a folder leave the files of a single run, whichever of them is killed."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from interrupted import AFTER, BEFORE, KILLED, World, boundaries, files, wait_until
from stage_server import Outcome, StageServer

from sightline.cache.plan import Worker
from sightline.errors import SightlineError

LEFT = "other workers are still active; the last one publishes the set"


@dataclass(frozen=True)
class Pair:
    """Two servers, so that two workers can run at once."""

    world: World
    other: StageServer

    def begin(self, folder: Path, **broken: object) -> None:
        """Start both workers, the first of them with ``broken``."""
        self.world.server.begin(folder, texts=AFTER, worker="0/2", **broken)
        self.other.begin(folder, texts=AFTER, worker="1/2")

    def end(self) -> tuple[Outcome, Outcome]:
        return self.world.server.outcome(), self.other.outcome()


@pytest.fixture(scope="module")
def pair(world: World) -> Iterator[Pair]:
    other = StageServer()
    yield Pair(world, other)
    other.close()


def test_two_workers_leave_the_files_of_one_run(pair: Pair, tmp_path: Path) -> None:
    for i in range(5):
        folder = pair.world.copy(tmp_path / str(i))
        pair.begin(folder)
        ends = pair.end()
        assert [each.code for each in ends] == [0, 0], [each.said for each in ends]
        assert files(folder) == pair.world.expected
        assert sum(each.encoded for each in ends) == AFTER - BEFORE
        assert sum(LEFT in each.said for each in ends) <= 1
        assert not folder.with_name("set.run").joinpath("parts").exists()


def test_one_worker_computes_while_another_works_on_its_block(pair: Pair, tmp_path: Path) -> None:
    folder, gate = pair.world.copy(tmp_path / "one"), tmp_path / "gate"
    pair.world.server.begin(
        folder, texts=AFTER, worker="0/2", act="wait", at="encode 2", file=str(gate)
    )
    wait_until(gate.exists)
    second = pair.other.run(folder, texts=AFTER, worker="1/2")
    assert (second.code, LEFT in second.said) == (0, True), second.said
    assert second.encoded == AFTER - BEFORE - 32  # all but the block that the first one is at
    pair.world.check_readers(folder)
    gate.unlink()
    first = pair.world.server.outcome()
    assert first.code == 0, first.said
    assert first.encoded == 32
    assert "reused from an interrupted run or other workers" in first.said
    assert files(folder) == pair.world.expected


@pytest.mark.parametrize("at_work", ["0/2", ""])
def test_a_single_run_and_a_worker_exclude_each_other(
    pair: Pair, tmp_path: Path, at_work: str
) -> None:
    folder, gate = pair.world.copy(tmp_path / "one"), tmp_path / "gate"
    pair.world.server.begin(
        folder, texts=AFTER, worker=at_work, act="wait", at="encode 2", file=str(gate)
    )
    wait_until(gate.exists)
    refused = pair.other.run(folder, texts=AFTER, worker="" if at_work else "1/2")
    assert refused.code != 0
    holder = "worker 0/2, process" if at_work else "process"
    assert f"another run is writing here ({holder}" in refused.said
    gate.unlink()
    assert pair.world.server.outcome().code == 0
    assert files(folder) == pair.world.expected


def test_a_worker_that_starts_while_another_publishes_waits_and_finds_everything_done(
    pair: Pair, tmp_path: Path
) -> None:
    folder, gate = pair.world.copy(tmp_path / "one"), tmp_path / "gate"
    pair.world.server.begin(
        folder, texts=AFTER, worker="0/2", act="wait", at="before rename record 1", file=str(gate)
    )
    wait_until(gate.exists)
    pair.other.begin(folder, texts=AFTER, worker="1/2")
    time.sleep(0.3)
    pair.world.check_readers(folder)
    gate.unlink()
    first, second = pair.end()
    assert (first.code, second.code, second.encoded) == (0, 0, 0), first.said + second.said
    assert files(folder) == pair.world.expected


def test_a_single_run_completes_what_a_dead_worker_left(pair: Pair, tmp_path: Path) -> None:
    folder = pair.world.copy(tmp_path / "one")
    dead = pair.world.server.run(folder, texts=AFTER, worker="0/2", act="kill", at="encode 12")
    assert dead.code == KILLED
    pair.world.go_on(folder, dead)


def kill_one(pair: Pair, folder: Path, **broken: object) -> bool:
    """Kill the first of two workers; returns whether it was hit before it ended."""
    folder = pair.world.copy(folder)
    pair.begin(folder, **broken)
    first, second = pair.end()
    assert first.code in (KILLED, 0), first.said
    assert second.code == 0, second.said
    pair.world.check_readers(folder)
    last = pair.world.server.run(folder, texts=AFTER)
    assert last.code == 0, last.said
    assert files(folder) == pair.world.expected, broken
    return first.code == KILLED


def points_of_a_worker(pair: Pair, folder: Path) -> list[str]:
    """Every point that a sole worker passes."""
    outcome = pair.world.server.run(pair.world.copy(folder), texts=AFTER, worker="0/2")
    assert outcome.code == 0, outcome.said
    assert files(folder / "set") == pair.world.expected
    return outcome.points


def test_one_worker_killed_at_every_write_boundary_while_the_other_continues(
    pair: Pair, tmp_path: Path
) -> None:
    points = boundaries(points_of_a_worker(pair, tmp_path / "alone"))
    assert len(points) > 20
    for point in points[::3]:
        kill_one(pair, tmp_path / point, act="kill", at=point)


@pytest.mark.slow
def test_one_worker_killed_at_every_point_and_at_random(pair: Pair, tmp_path: Path) -> None:
    points = [p for p in points_of_a_worker(pair, tmp_path / "alone") if "encode" not in p]
    hits = 0
    for point in points:
        hits += kill_one(pair, tmp_path / "some", act="kill", at=point)
        shutil.rmtree(tmp_path / "some")
    rng = random.Random(2)
    for _ in range(max(60, 320 - len(points))):
        delay = rng.uniform(0, 1.2 * pair.world.unbroken.seconds)
        hits += kill_one(pair, tmp_path / "some", kill_after=delay)
        shutil.rmtree(tmp_path / "some")
    assert hits >= 150


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("5/4", r"worker '5/4': expected i/n with i from 0 to n - 1"),
        ("2/2", r"worker '2/2': expected i/n with i from 0 to n - 1"),
        ("0/0", r"worker '0/0': expected i/n with i from 0 to n - 1"),
        ("a/b", r"worker 'a/b': expected i/n with i from 0 to n - 1"),
        ("-1/2", r"expected i/n"),
        ("1", r"expected i/n"),
        ("1/2/3", r"expected i/n"),
    ],
)
def test_an_invalid_worker_is_refused(text: str, said: str) -> None:
    with pytest.raises(SightlineError, match=said):
        Worker.parse(text)
    assert str(Worker.parse("0/1")) == "worker 0/1"
