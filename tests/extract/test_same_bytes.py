"""The same files from every engine, with a node or the head of a cluster killed, and from a mix."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_work import StubWork
from ray_nodes import RayNodes
from test_engines import TWO, command, numbers, wait_until, without_lock

from pipeline.cache.worker import Worker
from pipeline.extract.engine import Engine, run_work
from pipeline.extract.runner import Invocation

pytestmark = pytest.mark.slow
HOW = Invocation(threads=2)
TEXTS = 960


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("one") / "set"
    run_work(StubWork(out, texts=TEXTS), HOW, Engine())
    return without_lock(out)


@pytest.fixture
def nodes() -> Iterator[RayNodes]:
    pytest.importorskip("ray")
    found = RayNodes(3, cpus=2)
    yield found
    found.close()


def slow_work(folder: Path, pause: float = 0.1) -> StubWork:
    (folder / "log").mkdir(exist_ok=True)
    return StubWork(folder / "set", texts=TEXTS, pause=pause, log=folder / "log")


def batches(work: StubWork) -> int:
    assert work.log is not None
    return sum(path.stat().st_size for path in work.log.iterdir())


def on_ray(work: StubWork, address: str) -> subprocess.Popen[str]:
    line = command(work, f"name='ray', ray_address={address!r}")
    return subprocess.Popen(
        [word.replace("threads=1", "threads=2") for word in line],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_three_workers(tmp_path, expected) -> None:
    line = command(slow_work(tmp_path), "")
    runs = [
        subprocess.Popen(
            [word.replace("threads=1", f"threads=2, worker=Worker({i}, 3)") for word in line[:2]]
            + [
                "from pipeline.cache.worker import Worker; "
                + line[2].replace("threads=1", f"threads=2, worker=Worker({i}, 3)")
            ]
        )
        for i in range(3)
    ]
    assert [run.wait() for run in runs] == [0, 0, 0]
    assert without_lock(tmp_path / "set") == expected


def test_two_devices(tmp_path, expected) -> None:
    run_work(slow_work(tmp_path), HOW, TWO)
    assert without_lock(tmp_path / "set") == expected


def test_a_cluster_that_loses_a_node(tmp_path, expected, nodes) -> None:
    work = slow_work(tmp_path)
    run = on_ray(work, nodes.address)
    wait_until(lambda: batches(work) > 15)
    nodes.kill(2)
    said, errors = run.communicate(timeout=200)
    assert run.returncode == 0, errors
    assert f"{TEXTS:,} computed" in said or "computed" in said
    assert without_lock(work.out) == expected
    assert numbers(tmp_path / "log")[0] == "0"
    assert {path.name.split("-")[2] for path in (tmp_path / "log").iterdir()} == {"2"}


def test_a_mix_of_engines_that_are_all_killed(tmp_path, expected, nodes) -> None:
    work = slow_work(tmp_path)
    first = subprocess.Popen(
        [w.replace("threads=1", "threads=2") for w in command(work, "devices='cpu,cpu'")]
    )
    wait_until(lambda: batches(work) > 15)
    first.kill()
    first.wait()
    before = batches(work)
    second = on_ray(work, nodes.address)
    wait_until(lambda: batches(work) > before + 15)
    nodes.kill(0)  # the head, and with it the job
    _, errors = second.communicate(timeout=200)
    assert second.returncode == 1
    assert "no longer answers. " in errors
    assert "are done and kept; rerun the same command to resume" in errors
    assert "Traceback" not in errors
    time.sleep(1)
    third = StubWork(work.out, texts=TEXTS)
    alone = Invocation(threads=2, worker=Worker(1, 3))  # orphans of the cluster may still compute
    assert run_work(third, alone, Engine()).computed < TEXTS
    other = RayNodes(2, cpus=2)
    try:
        last = on_ray(third, other.address)
        said, errors = last.communicate(timeout=200)
        assert last.returncode == 0, errors
    finally:
        other.close()
    assert without_lock(work.out) == expected
