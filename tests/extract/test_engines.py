"""Engines start the same workers: the files are those of one process, whatever becomes of them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest
from command_line import sightline, unboxed
from engine_work import StubWork
from interrupted import files
from ray_nodes import RayNodes
from waiting import wait_until

from pipeline.extract import runner, workers
from pipeline.extract.worker_number import WorkerNumber
from pipeline.machine import Machine
from sightline.cache import verify
from sightline.errors import SightlineError

TWO = Machine(devices=("cpu", "cpu"))
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray")


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The files of one process."""
    out = tmp_path_factory.mktemp("one") / "set"
    assert StubWork(out)().computed == 240
    assert verify(out) == []
    return files(out)


@pytest.fixture
def log(tmp_path):
    (tmp_path / "log").mkdir()
    return tmp_path / "log"


def computing(log):
    """Process → the number of its worker, and of the threads that it was told to use."""
    names = [path.name.split("-") for path in log.iterdir()]
    return {int(process): (int(worker), int(threads)) for worker, process, threads in names}


def batches(log):
    """How many were computed, or have begun."""
    return sum(path.stat().st_size for path in log.iterdir())


# --- options


def test_devices_are_named_in_full():
    for given, devices in (
        ("0,1", ("cuda:0", "cuda:1")),
        ("cuda:3", ("cuda:3",)),
        ("cpu, cpu", ("cpu", "cpu")),
        ([0, 1], ("cuda:0", "cuda:1")),
        (2, ("cuda:2",)),
        ("mps", ("mps",)),
        ("cuda", ("cuda",)),
        ("cuda,1", ("cuda:0", "cuda:1")),
    ):
        assert Machine.model_validate({"devices": given}).devices == devices


@needs_ray
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--devices 0,cuda:0", "cuda:0 appears twice"),
        ("--devices 1,cuda,cuda:01", "cuda:1 appears twice"),
        ("--devices 0,cuda", "cuda:0 appears twice"),
        ("--devices 0,,1", "found '', expected auto, or devices such as 0,1"),
        ("--devices gpu", "found 'gpu'"),
        ("--devices 0 --engine ray", "devices: are those of one machine"),
        ("--engine spark", "--engine: found 'spark', expected local, ray"),
        ("--engine ray,0", "expected local, ray, ray@HOST:PORT"),
        ("--engine local@x:1", "expected local, ray, ray@HOST:PORT"),
        ("--worker env", "neither RANK and WORLD_SIZE nor SLURM_PROCID and SLURM_NTASKS"),
        ("--engine ray --worker 0/2", "worker 0/2: Ray numbers its own workers"),
        ("--devices 0,1", "device 'cuda:0' was requested, but "),
    ],
)
def test_options_that_make_no_engine_are_refused(tmp_path, capsys, words, said):
    (tmp_path / "texts.txt").write_text("a dog\n")
    options = ["--data", tmp_path / "texts.txt", "--encoder", tmp_path, "--out", tmp_path / "x"]
    assert sightline("extract", "teacher", *options, *words.split()) in (1, 2)
    assert said in unboxed(capsys.readouterr().err)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("text", ["2/2", "-1/2", "1/2/3"])
def test_an_invalid_worker_is_refused(text):
    with pytest.raises(SightlineError, match=f"worker '{text}': expected i/n with i from 0 to n"):
        WorkerNumber.parse(text)
    assert str(WorkerNumber.parse("0/1")) == "worker 0/1"


def test_a_worker_is_read_from_its_launcher():
    slurm = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4"}
    assert WorkerNumber.of_environment(slurm) == WorkerNumber(1, 4)
    torchrun = {"RANK": "2", "WORLD_SIZE": "8"}
    assert WorkerNumber.of_environment(torchrun) == WorkerNumber(2, 8)
    assert WorkerNumber.of_environment({**slurm, **torchrun}) == WorkerNumber(2, 8)
    assert WorkerNumber.of_environment({**slurm, "RANK": ""}) == WorkerNumber(1, 4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"RANK": "1"}, "RANK is 1 and WORLD_SIZE is not set"),
        ({"WORLD_SIZE": "2"}, "RANK is not set and WORLD_SIZE is 2, expected two"),
        ({"SLURM_NTASKS": "2"}, "SLURM_PROCID is not set and SLURM_NTASKS is 2"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2 and WORLD_SIZE is 2, .* the first one small"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK is one and WORLD_SIZE is 2, expected"),
        ({}, "neither RANK and WORLD_SIZE nor"),
    ],
)
def test_half_a_launcher_is_refused(given, said):
    with pytest.raises(SightlineError, match=said):
        WorkerNumber.of_environment(given)


def test_a_launcher_is_not_read_unless_asked(tmp_path, monkeypatch, expected):
    monkeypatch.setenv("RANK", "1")
    assert StubWork(tmp_path / "set")().record is not None
    assert files(tmp_path / "set") == expected


# --- processes of one machine


def test_two_devices_leave_the_files_of_one_process(tmp_path, log, capfd, expected):
    work = StubWork(tmp_path / "set", log=log, meet=2)
    assert re.match(r"237 rows · \d+ computed in .* untrained weights\n", work.start(TWO))
    assert files(work.out) == expected
    assert sorted(computing(log).values()) == [(0, 1), (1, 1)]
    assert batches(log) == 32  # each once
    assert "Traceback" not in capfd.readouterr().err
    assert "nothing to compute" in work.start(TWO)


def test_a_killed_child_is_started_again(tmp_path, log, capfd, expected):
    once = tmp_path / "once"
    work = StubWork(tmp_path / "set", pause=0.05, broken={1: "kill"}, once=once, log=log, meet=2)
    work.start(TWO)
    said = capfd.readouterr().err
    assert "worker 1/2 on cpu was killed by SIGKILL, perhaps for lack of memory; started" in said
    assert files(work.out) == expected


def test_a_child_that_always_dies_is_one_error_and_the_others_do_its_work(
    tmp_path, log, expected, monkeypatch
):
    monkeypatch.setattr("pipeline.extract.children.DEATHS", 1)
    work = StubWork(tmp_path / "set", broken={1: "kill"}, log=log, meet=3)
    with pytest.raises(SightlineError) as caught:
        work.start(TWO)
    found = str(caught.value)
    assert re.match(r"worker 1/2 on cpu was killed by SIGKILL, perhaps", found)
    assert "and the set is published" in found
    assert files(work.out) == expected


@pytest.mark.slow
def test_when_all_children_die_a_rerun_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.extract.children.DEATHS", 0)
    work = StubWork(tmp_path / "set", texts=240, broken={0: "kill", 1: "kill"}, batch=16)
    with pytest.raises(SightlineError) as caught:
        work.start(TWO)
    named = sorted(line[:17] for line in str(caught.value).splitlines())  # in the order of death
    assert named[-2:] == ["worker 0/2 on cpu", "worker 1/2 on cpu"]
    assert not (tmp_path / "set/set.json").exists()
    StubWork(tmp_path / "set").start(TWO)
    assert verify(tmp_path / "set") == []


def test_an_error_of_every_child_is_said_once(tmp_path):
    with pytest.raises(SightlineError) as caught:
        StubWork(tmp_path / "set", broken={0: "error", 1: "error"}).start(TWO)
    assert str(caught.value) == "the third batch is cursed; lift the curse"


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_the_result_is_that_of_the_worker_which_printed_last(tmp_path, monkeypatch, order):
    ends = [workers.Ended("worker 0/2", 0, "left to others", "", 1.0)]
    ends.append(workers.Ended("worker 1/2", 0, "published", "", 2.0))
    monkeypatch.setattr(workers, "_on_devices", lambda *_: (ends[i] for i in order))
    assert StubWork(tmp_path / "set").start(TWO) == "published"


def test_a_warning_is_not_mistaken_for_the_error():
    said = "a warning about error: rates\nerror: the third batch is cursed\n"
    assert workers.Ended("worker 0/2", 1, "", said).error == "the third batch is cursed"


def test_a_bug_is_reported_by_the_child_that_has_it(tmp_path, log):
    work = StubWork(tmp_path / "set", pause=0.05, broken={1: "bug"}, log=log, meet=2)
    with pytest.raises(SightlineError, match="KeyError: 'a bug'\" is a bug in Sightline") as caught:
        work.start(TWO)
    (file,) = re.findall(r"report it with (\S+),", str(caught.value))
    assert "_break" in Path(file).read_text()
    Path(file).unlink()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_all_children_and_keeps_their_work(tmp_path, log, number):
    work = StubWork(tmp_path / "set", batch=16, log=log, meet=3)
    run = work.process("--devices", "cpu,cpu", process_group=0)
    wait_until(lambda: batches(log) == 8)  # both are at their fourth one, with a block done
    os.kill(run.pid, number)
    _, said = run.communicate(timeout=60)
    if number == signal.SIGKILL:
        assert (run.returncode, said) == (-number, "")
    else:
        assert run.returncode == 128 + number
        line = rf"^stopped by {number.name}: \S+/set: \d+ of 240 rows are done"
        assert re.search(line, said, re.M)
    assert "Traceback" not in said
    wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in computing(log)))
    assert 0 < StubWork(work.out, batch=16)().computed < 240
    StubWork(tmp_path / "clean", batch=16)()
    assert files(work.out) == files(tmp_path / "clean")


def test_a_clone_that_is_not_installed_computes_and_says_so(monkeypatch):
    monkeypatch.setattr(runner, "versions", lambda: {"torch": "9"})
    assert runner.code_version() == "sightline not installed, torch 9"


@pytest.mark.slow
def test_workers_of_another_encoder_plan_or_code_are_refused(tmp_path, log, monkeypatch, expected):
    work = StubWork(tmp_path / "set", log=log, meet=3)
    run = work.process("--devices", "cpu,cpu")
    wait_until(lambda: len(computing(log)) == 2)

    def refused(stranger, named, threads=1):
        said = f"with a different plan than worker 2/3:\n  {named}"
        with pytest.raises(SightlineError, match=said):
            stranger(threads, WorkerNumber(2, 3))

    refused(StubWork(work.out, batch=4), "batch_size: 8 → 4")
    refused(StubWork(work.out, weights="1"), "fingerprint: ")
    refused(StubWork(work.out, texts=250), "rows: 240 → 250")
    refused(work, "threads: 1 → 3", threads=3)
    monkeypatch.setattr(runner, "code_version", lambda: "sightline 9, torch 9")
    refused(work, r"code: sightline .* → sightline 9, torch 9")
    (log / "a third process").touch()  # for which both have waited
    run.communicate()
    assert run.returncode == 0
    assert files(work.out) == expected


# --- Ray


def in_a_process(call):
    """What a ``call`` of this module says on standard error, in a process of its own.

    A process that has loaded Ray can no longer fork (`side_by_side`): its threads crash the child.
    """
    code = f"from pathlib import PosixPath; import test_engines; test_engines.{call}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("RAY_ADDRESS", None)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


@needs_ray
def test_a_head_that_does_not_answer_is_one_error(tmp_path):
    in_a_process(f"ask_a_head_that_does_not_answer({tmp_path!r})")
    assert not (tmp_path / "set").exists()


def ask_a_head_that_does_not_answer(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    work = StubWork(folder / "set")
    for wrong in ("ray://x:1", "head"):
        with pytest.raises(SightlineError, match="expected the head's host:port"):
            work.start(Machine(engine=f"ray@{wrong}"))
    with pytest.raises(SightlineError, match=f"no Ray cluster answers at {address}: no connection"):
        work.start(Machine(engine=f"ray@{address}"))
    os.environ["RAY_ADDRESS"] = address
    with pytest.raises(SightlineError, match=f"no Ray cluster answers at {address}"):
        work.start(Machine(engine="ray"))


@needs_ray
def test_ray_leaves_the_files_of_one_process_though_a_worker_is_killed(tmp_path, log, expected):
    once = tmp_path / "killed"
    work = StubWork(tmp_path / "set", pause=0.05, broken={0: "kill"}, once=once, log=log, meet=2)
    said = in_a_process(f"work_on_ray(test_engines.{work!r})")
    assert said.startswith("starting Ray on this machine, ")
    assert files(work.out) == expected
    assert once.exists()
    assert {threads for _, threads in computing(log).values()} == {1}


def work_on_ray(work):
    import ray

    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    work.start(Machine(engine="ray,2"))
    assert not ray.is_initialized()
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize(("node", "pause"), [(2, 0.1), (0, 0.5)], ids=["a node", "the head"])
def test_a_cluster_that_loses_a_node_or_its_head_loses_no_row(tmp_path, log, node, pause):
    alone = StubWork(tmp_path / "alone", texts=960)
    alone(threads=2)
    work = StubWork(tmp_path / "set", texts=960, pause=pause, log=log)
    with closing(RayNodes()) as nodes:
        run = work.process("--engine", f"ray@{nodes.address}", "--threads", "2")
        wait_until(lambda: batches(log) > 15)
        nodes.kill(node)
        _, errors = run.communicate(timeout=200)
        if node:
            assert run.returncode == 0, errors
            found = computing(log).values()
            assert min(found)[0] == 0
            assert {threads for _, threads in found} == {2}
        else:  # Ray ends the command after a minute; its workers may be done before
            wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in computing(log)))
            StubWork(work.out, texts=960)(threads=2)
    assert verify(work.out) == []
    assert files(work.out) == files(alone.out)
