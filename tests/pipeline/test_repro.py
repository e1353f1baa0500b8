"""`sightline repro` on small graphs: what runs at once, what DVC decides, and how it is stopped."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import typer
import yaml
from demo_params import demo_params, demo_params_text
from dvc.repo import Repo

from pipeline.cli.repro import _jobs as jobs_here
from pipeline.dvc_project import Options, stages_due
from pipeline.params import validate_params
from pipeline.repro import Jobs, repro
from pipeline.side_by_side import JOBS, VISIBLE
from pipeline.stages import load_here, to_do
from sightline.devices import OMP
from sightline.errors import SightlineError
from sightline.machine import hardware
from sightline.machine.hardware import Memory, Processor

ROOT = Path(__file__).parents[2]
DRIVER = """
import sys
from pipeline import cli, repro
from pipeline.cli import commands
repro._LEAVE = float(sys.argv.pop())
commands.app = lambda: repro.repro([], repro.Jobs([{}, {}]))
cli.main()
"""


class Project:
    """A DVC repository without Git and with a small dvc.yaml; `said` is what its last run said."""

    def __init__(self, folder: Path, more: str = "") -> None:
        self.folder, self.said = folder.resolve(), ""
        (folder / ".dvc").mkdir(parents=True)
        (folder / ".dvc/config").write_text(f"[core]\nanalytics = false\nno_scm = true\n{more}")

    def graph(self, **stages: dict) -> None:
        self.write("dvc.yaml", yaml.safe_dump({"stages": stages}, sort_keys=False))

    def repro(
        self, *targets: str, slots=({}, {}), whole=None, cores: int = 0, **options: bool
    ) -> str:
        jobs = Jobs(slots, whole or {}, lambda command: "> all" in command, cores)
        out = io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(out):
            try:
                repro(targets, jobs, Options(**options))
            finally:
                self.said = out.getvalue()
        return self.said

    def start(self, leave: float = 30.0) -> subprocess.Popen[str]:
        """The same as a command."""
        return subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(leave)],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def calls(self) -> list[str]:
        """The stages that ran since the last time."""
        file = self.folder / "calls"
        names = file.read_text().split() if file.exists() else []
        file.unlink(missing_ok=True)
        return names

    def write(self, name: str, text: str = "") -> None:
        (self.folder / name).write_text(text)

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def processes(self) -> list[int]:
        """The living processes whose working folder this is."""
        every = psutil.process_iter(["cwd", "status"])
        here = [each for each in every if each.info["cwd"] == str(self.folder)]
        return [each.pid for each in here if each.info["status"] != psutil.STATUS_ZOMBIE]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def wait_for(condition) -> None:
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


def test_inputs_that_no_stage_makes_are_asked_for_before_anything_runs(project):
    project.graph(
        a=writing("a", "photos"), b=writing("b", "a", "dev.tsv"), c=writing("c", "dev.tsv")
    )
    with pytest.raises(SightlineError) as caught:
        project.repro()
    assert str(caught.value).splitlines() == [
        "photos: is not here; a needs it",
        "dev.tsv: is not here; b and 1 more need it",
        "put it there, or give its place in params.yaml; nothing was run",
    ]
    assert project.calls() == []
    project.graph(bird=writing("bird"), b=writing("b", "birds"))
    with pytest.raises(
        SightlineError, match=r"^birds: is not here \(the graph makes 'bird' beside"
    ):
        project.repro()
    project.graph(a=writing("a", "photos"), b=writing("b", "a", "dev.tsv"))
    project.write("photos")
    project.repro("a")
    assert project.calls() == ["a"]


def test_what_dvc_says_of_a_failed_stage_is_told_at_the_end(project):
    project.graph(a={"cmd": "true", "outs": ["never-made"]})
    with pytest.raises(SightlineError, match=r"(?s)a: failed .*ERROR: .*never-made"):
        project.repro()


def test_what_changed_runs_and_starts_no_other_process(project):
    project.graph(a=writing("a", "input"), b=writing("b", "a"), c=writing("c", "b"))
    project.write("input", "1")
    said = project.repro("b")
    assert "2 stages done" in said
    assert "most of the time: " in said
    assert project.calls() == ["a", "b"]
    project.repro("[cd]")
    assert project.calls() == ["c"]
    assert project.repro() == "nothing to do: 3 stages up to date\n"
    project.write("input", "2")
    project.repro()
    assert project.calls() == ["a"], "b needs what did not change"
    project.write("b", "edited")
    assert "b: Stage 'b' is cached - skipping run" in project.repro()  # from DVC's run cache
    assert project.text("b") == "b\n"
    assert project.calls() == []
    with contextlib.chdir(project.folder):
        assert Repo().status() == {}
    project.repro("b", force=True)
    assert project.calls() == ["a", "b"]


def test_each_job_has_its_own_environment_and_a_stage_may_have_the_whole_machine(project):
    def working(name: str, seconds: float, first: str) -> dict:
        own = f"mkdir job$DEVICE && sleep {seconds} && rmdir job$DEVICE && echo $DEVICE > {name}"
        return {"cmd": f"{first} && {own}", "outs": [name]}

    alone = 'sleep 1; test -z "$(ls -d job? 2>&-)" && echo $DEVICE > all'
    project.graph(  # in this order
        a=working("a", 2, "true"),
        alone={"cmd": alone, "outs": ["all"]},
        **{name: working(name, 0.5, "test -e all") for name in "bcd"},
    )
    project.repro(slots=[{"DEVICE": "0"}, {"DEVICE": "1"}], whole={"DEVICE": "0,1"})
    assert {project.text(name).strip() for name in "bcd"} == {"0", "1"}, "two run at once"
    assert project.text("all") == "0,1\n"


@pytest.mark.slow
def test_dvc_lock_has_the_entries_that_dvc_repro_leaves(project, tmp_path):
    other = Project(tmp_path / "other")
    for each in (project, other):
        each.graph(
            a=writing("a"),
            of={"foreach": ["slow", "fast"], "do": writing("${item}", "a")},
            cells={"matrix": {"k": [1, 2]}, **writing("m${item.k}", "a", persist=True)},
            last=writing("last", "slow", "fast", "m1", persist=True),
        )
    project.repro()
    with contextlib.chdir(other.folder):
        Repo().reproduce()
    entries, expected = (yaml.safe_load(each.text("dvc.lock")) for each in (project, other))
    assert entries == expected


@pytest.mark.slow
def test_git_gets_what_stages_changed_if_dvc_stages_by_itself(tmp_path):
    project = Project(tmp_path / "project", "autostage = true\n")
    project.write(".dvc/config", project.text(".dvc/config").replace("no_scm = true\n", ""))
    git = ["git", "-C", str(project.folder)]
    subprocess.run([*git, "init", "-q"], check=True)
    project.graph(**{name: writing(name) for name in "abcd"})
    project.repro(slots=[{}] * 4)
    staged = subprocess.check_output([*git, "diff", "--cached", "--name-only"], text=True)
    assert {".gitignore", "dvc.lock"} <= set(staged.split())
    index = subprocess.check_output([*git, "show", ":dvc.lock"], text=True)
    assert index == project.text("dvc.lock")


def test_a_failure_holds_back_what_needs_it_and_nothing_else(project):
    project.graph(
        bad=writing(
            "bad",
            first="echo this went wrong; echo error: no dog >&2; echo '  but' >&2; test -e mended",
        ),
        after=writing("after", "bad"),
        last=writing("last", "after", "good"),
        good=writing("good", first="sleep 1"),
    )
    with pytest.raises(SightlineError) as caught:
        project.repro()
    assert "bad: this went wrong\n" in project.said
    assert "bad: failed after" in project.said
    assert "not tried, since they need what failed: after, last" in str(caught.value)
    # the reason may have scrolled past, so it is said once more
    assert "(exit status 255)\n  error: no dog\n    but\n" in str(caught.value)
    assert project.calls() == ["good"]
    project.write("mended")
    project.repro()
    assert sorted(project.calls()) == ["after", "bad", "last"]


def test_what_a_stage_left_behind_may_speak_after_its_end(project):
    later = "(sleep 2.5; echo late) & true"
    project.graph(a=writing("a", first=later), b=writing("b", "a", first="sleep 3"))
    assert "a: late\n" in project.repro()


def test_a_process_that_cannot_be_started_is_a_failed_stage(project, monkeypatch):
    def no_more(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    project.graph(a=writing("a"), b=writing("b", "a"))
    monkeypatch.setattr("pipeline.repro.subprocess.Popen", no_more)
    with pytest.raises(SightlineError, match=r"a: failed .*Resource temporarily unavailable") as e:
        project.repro()
    assert "not tried, since they need what failed: b" in str(e.value)


def test_stages_find_the_command_in_an_environment_that_is_not_activated(project):
    project.graph(a={"cmd": "sightline --help > help", "outs": ["help"]})
    project.write("params.yaml", demo_params_text())
    command = [Path(sys.executable).with_name("sightline"), "repro"]
    environment = {**os.environ, "PATH": "/usr/bin:/bin"}
    subprocess.run(command, cwd=project.folder, env=environment, check=True)
    assert "Usage: sightline" in project.text("help")


def test_a_graph_that_dvc_refuses_is_one_error(project):
    project.graph(a=writing("a", "b"), b=writing("b", "a"))
    with pytest.raises(SightlineError, match=r"^DVC: "):
        project.repro()
    project.graph(a=writing("a"))
    project.write("dvc.lock", "<<<<<<< HEAD\nschema: '2.0'\n=======\nstages: {}\n>>>>>>> theirs\n")
    with pytest.raises(SightlineError, match=r"dvc\.lock.*line 2.*mend it, or delete a dvc\.lock"):
        project.repro()
    (project.folder / "dvc.lock").unlink()
    project.repro()


@pytest.mark.parametrize("target", ["train-mine@*", "none", "", "other"])
def test_a_target_without_a_stage_does_not_run_the_whole_graph(project, target, capfd):
    project.graph(a=writing("a"), none={"foreach": [], "do": writing("${item}")})
    for targets in ([target], ["a", target]):
        said = rf"^dvc\.yaml, .*: unknown stage '{re.escape(target)}'.*\(available: a\)$"
        with pytest.raises(SightlineError, match=said):
            project.repro(*targets)
        with contextlib.chdir(project.folder), pytest.raises(SightlineError, match=said):
            stages_due(targets, Options())
    assert (project.calls(), capfd.readouterr().out) == ([], "")


def test_a_dry_run_lists_what_would_run_and_runs_nothing(project):
    project.graph(a=writing("a"))
    project.write("params.yaml", demo_params_text())
    command = [sys.executable, "-m", "pipeline.cli", "repro", "--dry"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def dry(target: str) -> subprocess.CompletedProcess[str]:
        words = [*command, target]
        return subprocess.run(
            words, cwd=project.folder, env=environment, capture_output=True, text=True
        )

    runs = dry("a")
    assert (runs.returncode, runs.stderr) == (0, "")
    assert runs.stdout == "a\n1 stage to run\n"
    assert not project.has("a")
    refused = dry("other")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "unknown stage 'other'" in refused.stderr


@pytest.mark.slow
def test_a_dry_run_goes_on_where_inputs_are_not_made_yet(project):
    """A stage that always runs makes nothing due that has its digest."""
    inputs = {
        "cmd": "echo 1 > digest",
        "outs": [{"digest": {"persist": True}}],
        "always_changed": True,
    }
    last = {"cmd": "cat digest > c", "deps": ["digest"], "outs": ["c"]}
    project.graph(a=writing("a"), b=writing("b", "a"), inputs=inputs, c=last)
    with contextlib.chdir(project.folder):
        assert [due.name for due in stages_due([], Options())] == ["a", "b", "inputs", "c"]
        assert [due.needs for due in stages_due(["b"], Options())] == [[], ["a"]]
    project.repro()
    with contextlib.chdir(project.folder):
        assert [due.name for due in stages_due([], Options())] == ["inputs"]
        changed = [Path("digest")]
        assert [due.name for due in stages_due([], Options(), changed)] == ["inputs", "c"]


def test_a_dry_run_says_how_much_each_stage_would_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    params = validate_params(demo_params(), "params.yaml")
    features = "sightline stage image-features scenes clip"
    assert to_do(params, features, ["inputs", "prepare@scenes"]) == "unknown until prepare@scenes"
    assert "no prepared data set here" in to_do(params, features, ["inputs"])
    assert to_do(params, "sightline stage tokens", []) == to_do(params, "echo a", []) == ""
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_signal_reaches_the_stages_and_leaves_nothing_behind(project, number):
    project.write("slow.py", SLOW)
    project.graph(
        slow={"cmd": f"{sys.executable} slow.py", "outs": ["out"]}, next=writing("n", "out")
    )
    process = project.start()
    wait_for(lambda: project.has("began"))
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert project.text("told") == number.name
    assert "slow: half is kept; run it again\n" in said
    assert f"stopped by {number.name}: 0 stages up to date, 2 left; rerun the same command" in said
    assert project.processes() == []
    files_in_use = project.folder / ".dvc/tmp/rwlock"
    assert not (files_in_use.exists() and any(json.loads(files_in_use.read_text()).values()))


def test_what_does_not_end_is_killed(project):
    project.write("slow.py", SLOW)
    project.graph(slow={"cmd": f"{sys.executable} slow.py deaf", "outs": ["out"]})
    process = project.start(leave=0.5)
    wait_for(lambda: project.has("began"))
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    wait_for(lambda: project.processes() == [])


HELD = "touch began; while [ ! -e go ]; do sleep 0.05; done"


@pytest.mark.slow
def test_a_second_repro_says_who_runs_and_waits(project):
    project.graph(a=writing("a", first=HELD))
    first = project.start()
    wait_for(lambda: project.has("began"))
    second = project.start()
    assert second.stdout is not None
    line = second.stdout.readline()
    assert line.startswith("waiting for another `sightline repro` of this project")
    assert f"(process {first.pid} " in line
    project.write("go")
    assert "1 stage done" in first.communicate(timeout=60)[0]
    assert "nothing to do: 1 stage up to date" in second.communicate(timeout=60)[0]
    assert project.calls() == ["a"]


def test_a_stage_that_another_dvc_process_runs_fails_alone_and_says_who_runs_it(project):
    project.graph(a=writing("a", first=HELD), b=writing("b"))
    command = [sys.executable, "-m", "dvc", "repro", "-q", "a"]
    other = subprocess.Popen(command, cwd=project.folder)
    wait_for(lambda: project.has("began"))
    with pytest.raises(SightlineError, match=rf"\(PID {other.pid}\)"):
        project.repro()
    assert "b: done" in project.said
    project.write("go")
    assert other.wait(timeout=60) == 0
    assert "nothing to do" in project.repro()


BIG = writing("big", "input")


@pytest.fixture(scope="module")
def pushed(tmp_path_factory):
    """A project whose data are in a remote and no longer in the folder or the cache."""
    place = tmp_path_factory.mktemp("shared")
    remote = f"remote = team\n['remote \"team\"']\nurl = {place / 'remote'}\n"
    project = Project(place / "project", remote)
    project.graph(big=BIG, small=writing("small", "big"), run=writing("run", "small"))
    project.write("input", "1")
    project.repro()
    Repo(str(project.folder)).push()
    forget(project, "big", "small", "run", "calls")
    return project


def forget(project: Project, *names: str) -> None:
    """Remove files and DVC's cache of them."""
    for name in names:
        (project.folder / name).unlink()
    shutil.rmtree(project.folder / ".dvc/cache")


@pytest.fixture
def shared(pushed, project):
    """A copy of `pushed`."""
    shutil.copytree(pushed.folder, project.folder, dirs_exist_ok=True)
    return project


def test_a_target_that_others_pushed_is_there_and_without_allow_missing_all_it_needs(shared):
    shared.repro("run", pull=True, allow_missing=True)
    assert shared.text("run") == "run\n"
    assert not any(map(shared.has, ("big", "small")))
    said = shared.repro("run", pull=True, allow_missing=True)
    assert said == "nothing to do: 3 stages up to date\n"
    shared.repro("small", pull=True)
    assert shared.text("big") + shared.text("small") == "big\nsmall\n"
    assert shared.calls() == []


def test_what_the_remote_lacks_is_computed(shared):
    shared.write(".dvc/config", shared.text(".dvc/config").replace("/remote\n", "/empty\n"))
    shared.repro("big", pull=True, allow_missing=True)
    assert shared.calls() == ["big"]


def test_a_changed_stage_gets_what_it_needs_and_only_that(shared):
    edited = writing("run", "small", first="echo edited")
    shared.graph(big=BIG, small=writing("small", "big"), run=edited)
    shared.repro("run", pull=True, allow_missing=True)
    assert shared.calls() == ["run"]
    assert (shared.has("small"), shared.has("big")) == (True, False)


def test_what_others_ran_with_these_inputs_is_fetched_though_the_lock_does_not_name_it(shared):
    locked = shared.text("dvc.lock")
    shared.write("input", "2")
    shared.repro("big")
    Repo(str(shared.folder)).push(run_cache=True)
    shared.write("dvc.lock", locked)
    forget(shared, "big", "calls")
    shared.repro("big", pull=True)
    assert shared.text("big") == "big\n"
    assert shared.calls() == []


FOLDER = "mkdir -p folder && touch folder/one folder/other"


@pytest.mark.slow
def test_of_a_folder_with_what_a_changed_stage_needs_all_is_fetched(project, tmp_path):
    """DVC fetches the one file that is needed, and then finds a changed folder."""
    remote = f"remote = team\n['remote \"team\"']\nurl = {tmp_path / 'remote'}\n"
    project.write(".dvc/config", project.text(".dvc/config") + remote)
    folder = {"cmd": FOLDER, "deps": ["input"], "outs": [{"folder": {"persist": True}}]}
    project.graph(folder=folder, user=writing("user", "folder/one"))
    project.write("input", "1")
    project.repro()
    Repo(str(project.folder)).push()
    shutil.rmtree(project.folder / "folder")
    (project.folder / "input").unlink()
    project.graph(folder=folder, user=writing("user", "folder/one", first="echo edited"))
    project.repro("user", pull=True, allow_missing=True)
    assert project.has("folder/other")
    assert "2 stages up to date" in project.repro("user", pull=True, allow_missing=True)


def test_a_stage_runs_again_if_others_pushed_new_inputs_that_are_not_here(shared):
    """DVC sees it by the stages before it, which a `--single-item` does not look at."""
    old = yaml.safe_load(shared.text("dvc.lock"))["stages"]
    newer = {"cmd": "echo newer > small", "deps": ["big"], "outs": ["small"]}
    shared.graph(big=BIG, small=newer, run=writing("run", "small"))
    shared.repro("small", pull=True)
    Repo(str(shared.folder)).push()
    new = yaml.safe_load(shared.text("dvc.lock"))
    new["stages"]["run"] = old["run"]
    shared.write("dvc.lock", yaml.safe_dump(new, sort_keys=False))
    forget(shared, "big", "small")
    shared.repro("run", pull=True, allow_missing=True)
    assert shared.text("small") == "newer\n"
    assert shared.calls() == ["run"]
    assert not shared.has("big")


def jobs_of(monkeypatch, machine=None, gpus=0, given=None, devices=None, told="") -> Jobs:
    """The jobs of eight cores, for the demo's parameters with another section `machine`."""
    for name in (VISIBLE, JOBS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(OMP, told)
    monkeypatch.setattr(hardware, "driver_gpus", lambda: ("550", ["H200"] * gpus))
    monkeypatch.setattr(hardware, "processor", lambda: Processor("", 8, None))
    monkeypatch.setattr(hardware, "memory", lambda: Memory(64 << 30, 64 << 30, None))
    params = demo_params()
    params["machine"] |= machine or {}
    return jobs_here(validate_params(params, "params.yaml"), given, devices)


def test_a_job_gets_one_gpu_or_its_share_of_the_cores(monkeypatch):
    free = {"threads": None}
    assert jobs_of(monkeypatch).variables(0, []) == {OMP: "1", JOBS: "1"}
    assert jobs_of(monkeypatch, free, given=3).variables(2, ["a"] * 3) == {OMP: "2", JOBS: "1"}
    jobs = jobs_of(monkeypatch, free, gpus=2)
    two = [{OMP: "4", JOBS: "1", VISIBLE: name} for name in ("0", "1")]
    assert [jobs.variables(slot, ["a", "b"]) for slot in (0, 1)] == two
    found = jobs_of(monkeypatch, free, gpus=4, devices="3,1")
    assert [slot[VISIBLE] for slot in found.slots] == ["3", "1"]
    assert found.whole == {JOBS: "2", VISIBLE: "3,1"}
    with pytest.raises(SightlineError, match="cuda:2: no such GPU here; there are 2"):
        jobs_of(monkeypatch, free, gpus=2, devices="0,2")
    with pytest.raises(typer.BadParameter, match="--devices: cuda:0 appears twice"):
        jobs_of(monkeypatch, free, gpus=2, devices="0,0")


@pytest.mark.parametrize(("devices", "gpus"), [("cpu", 2), ("mps", 2), ("cuda", 0), ("cpu,cpu", 2)])
def test_devices_that_are_no_gpus_are_refused(monkeypatch, devices, gpus):
    """A stage would take a GPU nevertheless: its job says only which it sees."""
    with pytest.raises(typer.BadParameter, match=r"expected GPUs .* `devices: \[cpu\]`"):
        jobs_of(monkeypatch, gpus=gpus, devices=devices)
    assert VISIBLE not in jobs_of(monkeypatch, devices="auto").whole


@pytest.mark.parametrize(("told", "threads"), [("4,2", "4"), ("many", "8"), ("", "8")])
def test_threads_that_openmp_takes_or_ignores_are_no_error(monkeypatch, told, threads):
    jobs = jobs_of(monkeypatch, {"threads": None}, told=told)
    assert jobs.variables(0, [])[OMP] == threads


def test_a_stage_beside_which_nothing_can_compute_gets_all_cores(monkeypatch):
    jobs = jobs_of(monkeypatch, {"threads": None})
    light = [
        "sightline stage tokens",
        "sightline stage inputs",
        "sightline stage evaluation-data sts",
    ]
    training = "sightline stage train mcse 0"
    assert jobs.variables(0, [])[OMP] == jobs.variables(0, light)[OMP] == "8"
    assert jobs.variables(1, [*light, training])[OMP] == "4"
    assert jobs.variables(1, [training] * 20)[OMP] == "1"


@pytest.mark.slow
def test_the_share_of_a_stage_follows_from_the_graph_and_not_from_the_targets(project):
    """b and c may run at once, a and d may not, whatever is asked for."""
    told = {name: {"cmd": f"echo $OMP_NUM_THREADS > {name}", "outs": [name]} for name in "abcd"}
    told["b"]["deps"] = told["c"]["deps"] = ["a"]
    told["d"]["deps"] = ["b", "c"]
    project.graph(**told)
    project.repro("b", cores=8)
    assert [project.text(name) for name in "ab"] == ["8\n", "4\n"]
    project.repro(cores=8)
    assert [project.text(name) for name in "cd"] == ["4\n", "8\n"]


def test_a_stage_computes_on_the_gpu_that_its_job_got(tmp_path, monkeypatch):
    """``cuda:3`` is the name in params.yaml; a process that sees only this GPU calls it cuda:0."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".dvc").mkdir()
    machine = {"devices": [1, 3]}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(demo_params() | {"machine": machine}))
    jobs = jobs_of(monkeypatch, machine, gpus=4)
    assert [slot[VISIBLE] for slot in jobs.slots] == ["1", "3"]
    for variables, devices in (
        (jobs.slots[0], ("cuda:0",)),
        (jobs.slots[1], ("cuda:0",)),
        (jobs.whole, ("cuda:0", "cuda:1")),
        ({}, ("cuda:1", "cuda:3")),
    ):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            assert load_here().machine.devices == devices


def test_stages_that_divide_the_machine_run_alone(monkeypatch):
    alone = jobs_of(monkeypatch).alone
    assert alone("sightline stage evaluate")
    assert not alone("sightline stage ground scenes")
    divided = jobs_of(monkeypatch, {"devices": [0, 1]}, gpus=2).alone
    assert divided("sightline stage ground scenes")
    assert divided("sightline stage image-features scenes clip")
    assert not divided("sightline stage train dalr 0")
