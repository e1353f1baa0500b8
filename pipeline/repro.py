"""`sightline repro`: runs the stages of the graph that are ready side by side, each as DVC runs it.

A stage that changed is run by a `dvc repro --single-item` of its own, with one device or its share
of the cores, once its inputs are ready and a job is free; the longest chains of stages go first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from pipeline.dvc_project import Options, Project
from pipeline.repro_lines import Lines
from sightline.errors import BusyError, SightlineError
from sightline.lock import WriterLock
from sightline.signals import Stopped
from sightline.wording import counted

_LEAVE = 30.0  # seconds that stopped stages have for saving
_POLL = 0.1  # seconds between two looks at the stages that are being stopped


@dataclass(frozen=True)
class Jobs:
    """How many stages run at once, and where.

    Attributes:
        slots: variables of the environment, for each of the stages that run at once.
        whole: those of a stage that runs alone, since it divides the machine among its own workers.
        alone: whether a stage with this command does so.
    """

    slots: Sequence[Mapping[str, str]]
    whole: Mapping[str, str] = field(default_factory=dict)
    alone: Callable[[str], bool] = lambda command: False


@dataclass
class _Child:
    """A stage that is being run.

    Attributes:
        commands: what is still to be run, the first of them now.
        instead: what to run if the first one fails; None: then the stage has failed.
        slot: index of its job; None: it runs alone.
    """

    name: str
    commands: list[list[str]]
    instead: list[list[str]] | None
    slot: int | None
    began: float
    process: subprocess.Popen[bytes]


def repro(targets: Sequence[str], jobs: Jobs, options: Options | None = None) -> None:
    """Bring ``targets`` and what they need up to date, in the current folder's DVC project.

    Args:
        targets: as for `dvc repro`, also patterns of names; none: the whole graph.

    Raises:
        SightlineError: DVC refuses the graph or a target; or stages failed, after all that do not
            need them have run: names those, and what was not tried.
        Stopped: by a signal, after the running stages have saved and ended.
    """
    with _the_only_one(Path(".dvc/tmp/sightline-repro")):
        _Run(Project(targets, options or Options()), jobs).run()


@contextlib.contextmanager
def _the_only_one(folder: Path) -> Iterator[None]:
    """Wait until no other `sightline repro` runs in this project, saying which one does."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(WriterLock(folder))
        except BusyError:
            holder = (folder / "lock").read_text(errors="replace").partition("\n")[0]
            print(f"waiting for another `sightline repro` of this project ({holder})", flush=True)
            stack.enter_context(WriterLock(folder, patience=float("inf")))
        yield


class _Run:
    """One `sightline repro`."""

    def __init__(self, project: Project, jobs: Jobs) -> None:
        self._project, self._jobs = project, jobs
        self._waiting = dict.fromkeys(self._by_length())
        self._ready: dict[str, tuple[list[list[str]], list[list[str]] | None]] = {}
        self._running: dict[str, _Child] = {}
        self._done: set[str] = set()
        self._failed: dict[str, str] = {}
        self._ran = 0
        self._ended: SimpleQueue[str] = SimpleQueue()
        self._lines = Lines()

    def _by_length(self) -> list[str]:
        """The stages, those with the longest chain of others behind them first."""
        length = dict.fromkeys(self._project.stages, 0)
        for name in reversed(self._project.stages):
            for other in self._project.needs[name]:
                length[other] = max(length[other], length[name] + 1)
        return sorted(length, key=lambda name: -length[name])

    def run(self) -> None:
        began = time.monotonic()
        with self._lines:
            try:
                self._start_what_is_ready()
                while self._running:
                    with contextlib.suppress(Empty):
                        self._take(self._ended.get(timeout=1.0))
                    self._start_what_is_ready()
            except BaseException as error:
                number = error.number if isinstance(error, Stopped) else signal.SIGTERM
                self._stop(number)
                if isinstance(error, Stopped):
                    error.add_note(self._kept())
                raise
        if self._ran:
            self._project.order_lock_files()
        if self._failed:
            raise SightlineError(self._what_failed())
        count, same = self._ran, len(self._done) - self._ran
        seconds = time.monotonic() - began
        ran = f"{counted(count, 'stage')} done in {seconds:,.0f} s, {same} up to date"
        print(ran if count else f"nothing to do: {counted(same, 'stage')} up to date")

    def _start_what_is_ready(self) -> None:
        project = self._project
        while True:
            asked = [n for n in self._waiting if self._done.issuperset(project.needs[n])]
            for name in asked:
                del self._waiting[name]
                try:
                    commands, instead = project.commands(name)
                except SightlineError as error:  # such as: another DVC process runs this stage
                    self._failed[name] = str(error)
                    self._lines.failed(name, str(error))
                    continue
                if commands:
                    self._ready[name] = commands, instead
                else:
                    self._done.add(name)
            if not asked:
                break
        for name in list(self._ready):
            slot = self._free_slot(self._jobs.alone(str(project.stages[name].cmd)))
            if slot is None:
                break
            commands, instead = self._ready.pop(name)
            self._start(name, commands, instead, slot if slot >= 0 else None)

    def _free_slot(self, alone: bool) -> int | None:
        """Index of a free job, -1 for the whole machine, None if there is neither."""
        used = {child.slot for child in self._running.values()}
        if alone:
            return None if used else -1
        free = set(range(len(self._jobs.slots))) - used
        return min(free, default=None) if None not in used else None

    def _start(
        self,
        name: str,
        commands: list[list[str]],
        instead: list[list[str]] | None,
        slot: int | None,
    ) -> None:
        given = self._jobs.whole if slot is None else self._jobs.slots[slot]
        process = subprocess.Popen(
            commands[0],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **given, "PATH": _path_with_sightline()},
            process_group=0,
        )
        before = self._running.get(name)
        began = before.began if before else time.monotonic()
        self._running[name] = _Child(name, commands, instead, slot, began, process)
        reader = Thread(target=self._lines.read, args=(name, process.stdout), daemon=True)
        reader.start()
        Thread(target=self._wait, args=(name, process, reader), daemon=True).start()

    def _wait(self, name: str, process: subprocess.Popen[bytes], reader: Thread) -> None:
        process.wait()
        reader.join(1.0)  # a process that outlives its stage may hold the pipe open
        self._ended.put(name)

    def _take(self, name: str) -> None:
        """Go on after a command of a stage has ended."""
        child = self._running[name]
        status = child.process.returncode
        if status == 0 and child.commands[1:]:
            self._start(name, child.commands[1:], None, child.slot)
            return
        if status != 0 and child.instead:
            self._start(name, child.instead, None, child.slot)
            return
        del self._running[name]
        seconds = time.monotonic() - child.began
        if status == 0:
            self._ran += 1
            self._done.add(name)
            self._lines.done(name, f"done in {seconds:,.0f} s")
        else:
            self._failed[name] = f"failed after {seconds:,.0f} s ({_ending(status)})"
            self._lines.failed(name, self._failed[name])

    def _stop(self, number: int) -> None:
        """Signal all running stages, and end what has not ended after half a minute."""
        groups = [child.process.pid for child in self._running.values()]
        end = time.monotonic() + _LEAVE
        for group in groups:
            _signal_group(group, number)
        while (left := [g for g in groups if _members(g)]) and time.monotonic() < end:
            time.sleep(_POLL)
        for group in left:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        time.sleep(_POLL)  # the last lines are on their way

    def _kept(self) -> str:
        left = len(self._project.stages) - len(self._done)
        return (
            f"{counted(len(self._done), 'stage')} up to date, {left} left; rerun the same command"
        )

    def _what_failed(self) -> str:
        lines = [f"{name}: {how}" for name, how in self._failed.items()]
        held = [name for name in self._project.stages if name in self._waiting]
        if held:
            lines.append(f"not tried, since they need what failed: {', '.join(held)}")
        return "\n".join([*lines, "what is done is kept; rerun the same command"])


def _ending(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _signal_group(group: int, number: int) -> None:
    """Pass a signal on to a stage's processes, so that each can save.

    SIGTERM would end DVC at once, with its locks in place and its command running: DVC gets SIGINT,
    on which it waits for its command.
    """
    for process in _members(group):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGINT if process == group else number)


def _members(group: int) -> list[int]:
    """The living processes of a process group."""
    import psutil

    members = []
    for process in psutil.process_iter(["status"]):
        with contextlib.suppress(ProcessLookupError):
            status: Any = process.info["status"]
            if os.getpgid(process.pid) == group and status != psutil.STATUS_ZOMBIE:
                members.append(process.pid)
    return members


def _path_with_sightline() -> str:
    """A PATH on which a stage finds this `sightline`, in an environment that is not activated."""
    path, command = os.environ.get("PATH", os.defpath), Path(sys.argv[0])
    if command.name == "sightline":
        return os.pathsep.join([str(command.resolve().parent), path])
    return os.pathsep.join([path, sysconfig.get_path("scripts")])
