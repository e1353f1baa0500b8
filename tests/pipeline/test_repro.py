"""`sightline repro` on small graphs: what runs at once, what DVC decides, and how it is stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
import yaml
from demo_params import demo_params, demo_params_text

from pipeline.cli.repro import _jobs as jobs_here
from pipeline.params import validate_params
from pipeline.repro import Jobs
from pipeline.side_by_side import JOBS, VISIBLE
from sightline import hardware
from sightline.devices import OMP
from sightline.hardware import Memory, Processor

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "DVC_NO_ANALYTICS": "1",
    "PYTHONUNBUFFERED": "1",
}
DRIVER = """
import sys
from pipeline import cli, repro
from pipeline.cli import commands
repro._LEAVE = {leave}
jobs = repro.Jobs({slots}, {whole}, lambda command: "alone" in command)
options = repro.Options(**{options})
commands.app = lambda: repro.repro({targets}, jobs, options)
cli.main()
"""
MEET = "touch {me}.here; while [ ! -e {other}.here ]; do sleep 0.05; done; echo met > {me}.txt"


class Project:
    """A DVC repository without Git and with a small dvc.yaml."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.dvc("init", "-q", "--no-scm")

    def graph(self, **stages: dict) -> Project:
        (self.folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}, sort_keys=False))
        return self

    def dvc(self, *words: str) -> str:
        command = [sys.executable, "-m", "dvc", *words]
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, env=ENVIRONMENT
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(
        self,
        *targets: str,
        slots: list[dict[str, str]] | None = None,
        whole: dict[str, str] | None = None,
        leave: float = 30.0,
        **options: bool,
    ) -> subprocess.Popen[str]:
        script = DRIVER.format(
            targets=list(targets),
            slots=slots or [{}, {}],
            whole=whole or {},
            leave=leave,
            options=options,
        )
        return subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=self.folder,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def repro(self, *targets: str, code: int = 0, **how) -> str:
        process = self.start(*targets, **how)
        said, _ = process.communicate(timeout=120)
        assert process.returncode == code, said
        assert "Traceback" not in said
        return said

    @property
    def lock(self) -> bytes:
        return (self.folder / "dvc.lock").read_bytes()

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()

    def exists(self, name: str) -> Callable[[], bool]:
        return (self.folder / name).exists

    def processes(self) -> list[int]:
        """The living processes whose working folder this is."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                alive = "\nState:\tZ" not in (process / "status").read_text()
                if alive and (process / "cwd").readlink() == self.folder:
                    found.append(int(process.name))
            except OSError:
                continue  # it has ended in the meantime
        return found

    def locked(self) -> dict:
        """What DVC's list of files in use still names."""
        file = self.folder / ".dvc/tmp/rwlock"
        held = json.loads(file.read_text()) if file.exists() else {}
        return {mode: paths for mode, paths in held.items() if paths}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path.resolve() / "project")


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until it holds; at most a minute."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def writing(name: str, *deps: str, first: str = "true", persist: bool = False) -> dict:
    """A stage that notes that it ran, and writes the file ``name``."""
    command = f"{first} && echo {name} >> calls && echo {name} > {name}"
    out = {name: {"persist": True}} if persist else name
    return {"cmd": command, "deps": list(deps), "outs": [out]}


def test_stages_that_wait_for_each_other_end_because_they_run_at_once(project):
    meeting = {"do": {"cmd": MEET.format(me="${key}", other="${item}"), "outs": ["${key}.txt"]}}
    project.graph(meet={"foreach": {"one": "other", "other": "one"}, **meeting})
    said = project.repro()
    assert "meet@one: done" in said
    assert "meet@other: done" in said


def test_one_job_runs_one_stage_at_a_time(project):
    alone = "mkdir busy && sleep 0.3 && rmdir busy"
    project.graph(a=writing("a", first=alone), b=writing("b", first=alone))
    project.repro(slots=[{}])
    assert sorted(project.text("calls").split()) == ["a", "b"]


def test_what_is_up_to_date_starts_no_process(project):
    project.graph(a=writing("a"), b=writing("b", "a"), c=writing("c", "b"))
    assert "3 stages done" in project.repro()
    said = project.repro()
    assert said == "nothing to do: 3 stages up to date\n"
    (project.folder / "b").write_text("edited")
    assert "b: Stage 'b' is cached - skipping run" in project.repro()  # from DVC's run cache
    assert project.text("b") == "b\n"
    assert project.text("calls").split() == ["a", "b", "c"]
    assert project.dvc("status") == "Data and pipelines are up to date.\n"


def test_a_dependent_of_a_stage_that_ran_to_the_same_result_does_not_run(project):
    project.graph(a=writing("a", "input"), b=writing("b", "a"))
    (project.folder / "input").write_text("1")
    project.repro()
    (project.folder / "input").write_text("2")
    project.repro()
    assert project.text("calls").split() == ["a", "b", "a"]


def test_dvc_lock_has_the_bytes_that_dvc_repro_leaves(project, tmp_path):
    def graph(of: Project) -> Project:
        slow = "sleep ${item.wait}"
        (of.folder / "params.yaml").write_text("waits: {slow: 1.0, fast: 0.0}\nk: [1, 2]\n")
        cell = writing("m${item.k}", "a", persist=True)
        each = writing("${key}", "a", first=slow.replace("item.wait", "item"))
        return of.graph(
            a=writing("a"),
            of={"foreach": "${waits}", "do": each},
            cells={"matrix": {"k": "${k}"}, **cell},
            last=writing("last", "slow", "fast", "m1", "m2", persist=True),
        )

    graph(project).repro()
    other = graph(Project(tmp_path / "other"))
    other.dvc("repro", "-q")
    assert project.lock == other.lock
    ended = project.text("calls").split()
    assert ended.index("fast") < ended.index("slow")  # and not in the order of dvc.lock

    for each in (project, other):  # one entry more, between old ones in the graph
        (each.folder / "params.yaml").write_text(
            "waits: {slow: 1.0, new: 0.0, fast: 0.0}\nk: [1]\n"
        )
    project.repro()
    other.dvc("repro", "-q")
    assert project.lock == other.lock


def test_a_failure_holds_back_what_needs_it_and_nothing_else(project):
    project.graph(
        bad=writing("bad", first="echo this went wrong; test -e mended"),
        after=writing("after", "bad"),
        last=writing("last", "after", "good"),
        good=writing("good", first="sleep 1"),
    )
    said = project.repro(code=1)
    assert "bad: this went wrong\n" in said
    assert "bad: failed after" in said
    assert "not tried, since they need what failed: after, last" in said
    assert project.text("calls").split() == ["good"]
    (project.folder / "mended").touch()
    project.repro()
    assert sorted(project.text("calls").split()) == ["after", "bad", "good", "last"]


def test_stages_find_the_command_in_an_environment_that_is_not_activated(project):
    project.graph(a={"cmd": "sightline --help > help", "outs": ["help"]})
    (project.folder / "params.yaml").write_text(demo_params_text())
    command = [Path(sys.executable).with_name("sightline"), "repro"]
    environment = {**ENVIRONMENT, "PATH": "/usr/bin:/bin"}
    subprocess.run(command, cwd=project.folder, env=environment, check=True)
    assert "Usage: sightline" in project.text("help")


def test_a_graph_that_dvc_refuses_is_one_error(project):
    project.graph(a=writing("a", "b"), b=writing("b", "a"))
    assert project.repro(code=1).startswith("error: DVC: ")
    project.graph(a=writing("a"))
    assert "error: DVC: Stage 'other' not found" in project.repro("other", code=1)


def test_targets_are_run_with_what_they_need(project):
    project.graph(a=writing("a"), b=writing("b", "a"), c=writing("c"))
    project.repro("b")
    assert project.text("calls").split() == ["a", "b"]
    project.repro("[ac]")
    assert project.text("calls").split() == ["a", "b", "c"]


def test_force_runs_what_has_not_changed(project):
    project.graph(a=writing("a"), b=writing("b", "a"))
    project.repro()
    project.repro(force=True)
    assert project.text("calls").split() == ["a", "b", "a", "b"]


def test_each_job_has_its_own_environment_and_a_stage_may_have_the_whole_machine(project):
    say = "mkdir job$DEVICE && sleep 0.5 && rmdir job$DEVICE && echo $DEVICE >"
    names = "abcd"
    project.graph(
        alone={"cmd": 'test -z "$(ls -d job? 2>&-)" && echo alone $DEVICE > all', "outs": ["all"]},
        **{name: {"cmd": f"{say} {name}", "outs": [name]} for name in names},
    )
    project.repro(slots=[{"DEVICE": "0"}, {"DEVICE": "1"}], whole={"DEVICE": "0,1"})
    assert {project.text(name).strip() for name in names} == {"0", "1"}
    assert project.text("all") == "alone 0,1\n"


SLOW = """
import signal, subprocess, sys, time
from pathlib import Path

def stop(number, frame):
    Path("told").write_text(signal.Signals(number).name)
    print("half is kept; run it again", flush=True)
    sys.exit(128 + number)

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN if "deaf" in sys.argv else stop)
child = subprocess.Popen(["sleep", "600"])
Path("began").touch()
child.wait()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_stages_and_leaves_nothing_behind(project, number):
    (project.folder / "slow.py").write_text(SLOW)
    project.graph(
        slow={"cmd": f"{sys.executable} slow.py", "outs": ["out"]}, next=writing("n", "out")
    )
    process = project.start()
    wait_for(project.exists("began"))
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert project.text("told") == number.name
    assert "slow: half is kept; run it again\n" in said
    assert f"stopped by {number.name}: 0 stages up to date, 2 left; rerun the same command" in said
    assert project.processes() == []
    assert project.locked() == {}


def test_what_does_not_end_is_killed(project):
    (project.folder / "slow.py").write_text(SLOW)
    project.graph(slow={"cmd": f"{sys.executable} slow.py deaf", "outs": ["out"]})
    process = project.start(leave=0.5)
    wait_for(project.exists("began"))
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    wait_for(lambda: project.processes() == [])


def test_a_second_repro_says_who_runs_and_waits(project):
    project.graph(a=writing("a", first="touch began; while [ ! -e go ]; do sleep 0.05; done"))
    first = project.start()
    wait_for(project.exists("began"))
    second = project.start()
    assert second.stdout is not None
    line = second.stdout.readline()
    assert line.startswith(
        f"waiting for another `sightline repro` of this project (process {first.pid} "
    )
    (project.folder / "go").touch()
    assert "1 stage done" in first.communicate(timeout=60)[0]
    assert "nothing to do: 1 stage up to date" in second.communicate(timeout=60)[0]
    assert project.text("calls") == "a\n"


def test_a_stage_that_another_dvc_process_runs_fails_alone_and_says_who_runs_it(project):
    held = "touch began; while [ ! -e go ]; do sleep 0.05; done"
    project.graph(a=writing("a", first=held), b=writing("b"))
    command = [sys.executable, "-m", "dvc", "repro", "-q", "a"]
    other = subprocess.Popen(command, cwd=project.folder, env=ENVIRONMENT)
    wait_for(project.exists("began"))
    said = project.repro(code=1)
    assert f"(PID {other.pid})" in said
    assert "b: done" in said
    (project.folder / "go").touch()
    assert other.wait(timeout=60) == 0
    assert "nothing to do" in project.repro()


@pytest.fixture
def shared(project: Project) -> Project:
    """A project whose data are in a remote and no longer in the folder or the cache."""
    project.graph(
        big=writing("big", "input"), small=writing("small", "big"), run=writing("run", "small")
    )
    (project.folder / "input").write_text("1")
    project.dvc("remote", "add", "-q", "-d", "team", str(project.folder.with_name("remote")))
    project.repro()
    project.dvc("push", "-q")
    for name in ("big", "small", "run", "calls"):
        (project.folder / name).unlink()
    subprocess.run(["rm", "-r", ".dvc/cache"], cwd=project.folder, check=True)
    return project


def test_pull_fetches_instead_of_computing(shared):
    shared.repro(pull=True)
    assert not shared.exists("calls")()
    assert all(shared.exists(name)() for name in ("big", "small", "run"))


def test_a_target_that_others_pushed_is_there_and_nothing_else_is_fetched(shared):
    shared.repro("run", pull=True, allow_missing=True)
    assert shared.text("run") == "run\n"
    assert not any(shared.exists(name)() for name in ("calls", "big", "small"))
    said = shared.repro("run", pull=True, allow_missing=True)
    assert said == "nothing to do: 3 stages up to date\n"


def test_a_changed_stage_gets_what_it_needs_and_only_that(shared):
    shared.graph(
        big=writing("big", "input"),
        small=writing("small", "big"),
        run=writing("run", "small", first="echo edited"),
    )
    shared.repro("run", pull=True, allow_missing=True)
    assert shared.text("calls") == "run\n"
    assert shared.exists("small")()
    assert not shared.exists("big")()


def test_a_stage_runs_again_if_others_pushed_new_inputs_that_are_not_here(shared):
    """DVC sees it by the stages before it, which a `--single-item` does not look at."""
    old = yaml.safe_load(shared.lock)["stages"]
    shared.graph(
        big=writing("big", "input"),
        small={"cmd": "echo newer > small", "deps": ["big"], "outs": ["small"]},
        run=writing("run", "small"),
    )
    shared.dvc("repro", "-q", "--pull", "small")
    shared.dvc("push", "-q")
    new = yaml.safe_load(shared.lock)
    new["stages"]["run"] = old["run"]
    (shared.folder / "dvc.lock").write_text(yaml.safe_dump(new, sort_keys=False))
    for name in ("big", "small"):
        (shared.folder / name).unlink()
    subprocess.run(["rm", "-r", ".dvc/cache"], cwd=shared.folder, check=True)

    shared.repro("run", pull=True, allow_missing=True)
    assert shared.text("small") == "newer\n"
    assert shared.text("calls") == "run\n"
    assert not shared.exists("big")()


def jobs_of(monkeypatch, changes: dict, gpus: int = 0, **options) -> Jobs:
    """The jobs of a machine with eight cores, and the demo's parameters with ``changes``."""
    for name in ("OMP_NUM_THREADS", VISIBLE, JOBS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hardware, "driver_gpus", lambda: ("550", ["H200"] * gpus))
    monkeypatch.setattr(hardware, "processor", lambda: Processor("", 8, None))
    monkeypatch.setattr(hardware, "memory", lambda: Memory(64 << 30, 64 << 30, None))
    given = demo_params()
    for section, values in changes.items():
        given[section] = {**given.get(section, {}), **values}
    return jobs_here(
        validate_params(given, "params.yaml"), **{"given": None, "devices": None, **options}
    )


def test_a_job_gets_one_gpu_or_its_share_of_the_cores(monkeypatch):
    free = {"machine": {"threads": None}}
    assert jobs_of(monkeypatch, {}).slots == [{OMP: "1"}] * 8
    assert jobs_of(monkeypatch, free, given=3).slots == [{OMP: "2"}] * 3
    two = [{OMP: "4", VISIBLE: "0"}, {OMP: "4", VISIBLE: "1"}]
    assert jobs_of(monkeypatch, free, gpus=2).slots == two
    found = jobs_of(monkeypatch, free, gpus=4, devices="3,1")
    assert [slot[VISIBLE] for slot in found.slots] == ["3", "1"]
    assert found.whole == {JOBS: "2", VISIBLE: "3,1"}
    with pytest.raises(typer.BadParameter, match="expected GPUs of this machine, which has 2"):
        jobs_of(monkeypatch, free, gpus=2, devices="0,2")


def test_stages_that_divide_the_machine_run_alone(monkeypatch):
    alone = jobs_of(monkeypatch, {}).alone
    assert alone("sightline stage evaluate")
    assert not alone("sightline stage ground scenes")
    divided = jobs_of(monkeypatch, {"machine": {"devices": [0, 1]}}, gpus=2).alone
    assert divided("sightline stage ground scenes")
    assert divided("sightline stage image-features scenes clip")
    assert not divided("sightline stage train dalr 0")
