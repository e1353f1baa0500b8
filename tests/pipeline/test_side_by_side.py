"""Processes beside each other: what they send, how they fail, and that none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from pipeline.side_by_side import (
    JOBS,
    VISIBLE,
    Send,
    gpu_of,
    jobs_here,
    side_by_side,
    visible_gpus,
)
from sightline.errors import SightlineError
from sightline.machine import hardware
from sightline.machine.hardware import Memory, Processor


def test_calls_run_at_once_and_values_come_with_the_name_of_the_call(tmp_path):
    def meet(me: str, other: str, send: Send) -> None:
        (tmp_path / me).touch()
        while not (tmp_path / other).exists():
            time.sleep(0.01)
        send(me)
        send(f"{me} met {other}")

    found = list(side_by_side({"1": partial(meet, "a", "b"), "2": partial(meet, "b", "a")}))
    assert sorted(found) == [("1", "a"), ("1", "a met b"), ("2", "b"), ("2", "b met a")]


def test_errors_are_raised_together_after_the_others_have_ended(tmp_path):
    def refuse(send: Send) -> None:
        raise SightlineError("this input is missing")

    def die(send: Send) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def work(send: Send) -> None:
        time.sleep(0.5)
        (tmp_path / "done").touch()

    with pytest.raises(SightlineError) as caught:
        list(side_by_side({call.__name__: call for call in (refuse, die, work)}))
    first, second = str(caught.value).splitlines()
    assert first == "this input is missing"
    assert second.startswith("die was killed by SIGKILL, perhaps for lack of memory")
    assert (tmp_path / "done").exists()


SCRIPT = """
import os, sys, time
from pathlib import Path
from functools import partial
from pipeline.side_by_side import side_by_side
from sightline.machine.signals import stop_on_signals

def work(name, send):
    Path(name).write_text(str(os.getpid()))
    time.sleep(600)

stop_on_signals()
list(side_by_side({name: partial(work, name) for name in ("a", "b")}))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_processes_end_with_the_one_that_started_them(tmp_path, number):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", SCRIPT]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    files = [tmp_path / name for name in ("a", "b")]
    wait_for(lambda: all(file.exists() and file.read_text() for file in files))
    process.send_signal(number)
    process.wait(timeout=60)
    wait_for(lambda: not any(alive(int(file.read_text())) for file in files))


def test_a_call_that_ignores_the_signal_is_killed(monkeypatch):
    def work(send: Send) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        send(os.getpid())
        time.sleep(600)

    monkeypatch.setattr("pipeline.side_by_side._LEAVE", 0.2)
    calls = side_by_side({"work": work})
    _, process = next(calls)
    calls.close()
    assert not alive(process)


def alive(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def wait_for(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("usable", "quota", "free", "threads", "expected"),
    [
        (8, None, 99 << 30, None, 8),
        (8, 3.0, 99 << 30, None, 3),
        (8, None, 9 << 30, None, 4),  # two gigabytes each
        (8, None, 1 << 30, None, 1),
        (8, None, 99 << 30, 4, 2),
        (2, None, 99 << 30, 4, 1),
    ],
)
def test_without_gpus_there_are_as_many_jobs_as_cores_and_memory(
    monkeypatch, usable, quota, free, threads, expected
):
    monkeypatch.delenv(JOBS, raising=False)
    monkeypatch.setattr(hardware, "processor", lambda: Processor("", usable, quota))
    monkeypatch.setattr(hardware, "memory", lambda: Memory(free, free, None))
    assert jobs_here([], threads) == expected
    assert jobs_here(["0", "5"], threads) == 2
    monkeypatch.setenv(JOBS, "7")
    assert jobs_here([], threads) == 7


def test_gpus_are_those_that_may_be_seen(monkeypatch):
    monkeypatch.delenv(VISIBLE, raising=False)
    monkeypatch.setattr(hardware, "driver_gpus", lambda: ("550", ["H200", "H200"]))
    assert visible_gpus() == ["0", "1"]
    for given, expected in {"3, 1": ["3", "1"], "": [], "-1": [], "GPU-a": ["GPU-a"]}.items():
        monkeypatch.setenv(VISIBLE, given)
        assert visible_gpus() == expected
    found = [gpu_of(["3", "1"], job)[VISIBLE] for job in range(3)]
    assert found == ["3", "1", "3"]
    assert gpu_of([], 0) == {}
