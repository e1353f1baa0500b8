"""The files of one process from a cluster that loses a node or its head."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_work import StubWork
from interrupted import wait_until
from ray_nodes import RayNodes
from test_engines import command, numbers, without_lock

from pipeline.extract.settings import RunSettings

pytestmark = pytest.mark.slow
HOW = RunSettings(threads=2)
TEXTS = 960


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("one") / "set"
    StubWork(out, texts=TEXTS)(HOW)
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


def computing(work: StubWork) -> list[int]:
    """The workers that still run."""
    assert work.log is not None
    started = [int(path.name.split("-")[1]) for path in work.log.iterdir()]
    return [process for process in started if Path(f"/proc/{process}").exists()]


def batches(work: StubWork) -> int:
    assert work.log is not None
    return sum(path.stat().st_size for path in work.log.iterdir())


def on_ray(work: StubWork, address: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(work, f"engine='ray@{address}'", 2),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_cluster_that_loses_a_node(tmp_path, expected, nodes) -> None:
    work = slow_work(tmp_path)
    run = on_ray(work, nodes.address)
    wait_until(lambda: batches(work) > 15)
    nodes.kill(2)
    _, errors = run.communicate(timeout=200)
    assert run.returncode == 0, errors
    assert without_lock(work.out) == expected
    assert numbers(tmp_path / "log")[0] == "0"
    assert {path.name.split("-")[2] for path in (tmp_path / "log").iterdir()} == {"2"}


def test_a_head_that_dies_costs_no_row(tmp_path, expected, nodes) -> None:
    work = slow_work(tmp_path, pause=0.5)
    run = on_ray(work, nodes.address)
    wait_until(lambda: batches(work) > 15)
    nodes.kill(0)  # Ray ends the command after a minute; its workers may be done before
    run.communicate(timeout=200)
    wait_until(lambda: not computing(work))
    StubWork(work.out, texts=TEXTS)(HOW)
    assert without_lock(work.out) == expected
