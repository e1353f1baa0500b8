"""`sightline repro`: runs the stages of the graph that are ready side by side, each as DVC runs it.

A stage that changed is run by a `dvc repro --single-item` of its own, with one device or its share
of the cores, once its inputs are ready and a job is free; the longest chains of stages go first.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pipeline.dvc_project import Options, Project
from sightline.devices import OMP
from sightline.errors import BusyError, SightlineError
from sightline.files.lock import WriterLock
from sightline.machine.signals import Stopped, end_processes
from sightline.wording import counted

_LEAVE = 30.0  # seconds that stopped stages have for saving
_LAST_LINES = 0.1  # seconds in which the last lines of stopped stages arrive
_WHOLE = -1  # in place of a job's index: the whole machine
_KEPT = 60  # last lines of a stage that are shown on a terminal if it fails
_OF_DVC = re.compile(
    r"Running stage '.*':$|> |(Generating|Updating) lock file "
    r"|To (track the changes with git|enable auto staging), run:$|\t(git add|dvc config) "
    r"|Use `dvc push` to send your updates"
)
"""Lines that DVC prints about every stage alike."""


@dataclass(frozen=True)
class Jobs:
    """How many stages run at once, and where.

    Attributes:
        slots: variables of the environment, for each of the stages that run at once.
        whole: those of a stage that runs alone, since it divides the machine among its own workers.
        alone: whether a stage with this command does so.
        cores: what stages share by the graph, so that their rows, which depend on the number of
            threads, do not depend on what happens to run; 0: the slots say it.
        computes: whether a stage with this command keeps cores busy.
    """

    slots: Sequence[Mapping[str, str]]
    whole: Mapping[str, str] = field(default_factory=dict)
    alone: Callable[[str], bool] = lambda command: False
    cores: int = 0
    computes: Callable[[str], bool] = lambda command: True

    def variables(self, slot: int, beside: Sequence[str]) -> Mapping[str, str]:
        """The variables of a stage in a slot.

        Args:
            slot: its index, or `_WHOLE`.
            beside: the commands of the stages that may run at the same time.
        """
        if slot == _WHOLE:
            return self.whole
        if not self.cores:
            return self.slots[slot]
        computing = sum(map(self.computes, beside))
        threads = self.cores // min(len(self.slots), 1 + computing)
        return {**self.slots[slot], OMP: str(max(1, threads))}


def repro(targets: Sequence[str], jobs: Jobs, options: Options | None = None) -> None:
    """Bring ``targets`` and what they need up to date, in the current folder's DVC project.

    Args:
        targets: as for `dvc repro`, also patterns of names; none: the whole graph.

    Raises:
        SightlineError: DVC refuses the graph or a target; inputs that no stage makes are missing;
            or stages failed, after all that do not need them have run: names those, and what was
            not tried.
        Stopped: by a signal, after the running stages have saved and ended.
    """
    with _the_only_one(Path(".dvc/tmp/sightline-repro")):
        project = Project(targets, options or Options())
        project.require_inputs()
        _Run(project, jobs).run()


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
    """One `sightline repro`: the main thread decides what runs, and a thread runs each stage."""

    def __init__(self, project: Project, jobs: Jobs) -> None:
        self._project, self._jobs = project, jobs
        self._waiting = self._by_length()
        self._ready: list[tuple[str, list[list[str]]]] = []
        self._running: dict[str, int] = {}  # name → index of its job
        self._done: set[str] = set()
        self._failed: dict[str, str] = {}
        self._seconds: dict[str, float] = {}  # of what ran
        self._ended: SimpleQueue[tuple[str, str, float]] = SimpleQueue()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._starting, self._stopped = Lock(), False
        self._lines = _Lines()

    def _by_length(self) -> list[str]:
        """The stages, those with the longest chain of others behind them first."""
        length = dict.fromkeys(self._project.stages, 0)
        for name in reversed(self._project.stages):
            for needed in self._project.needs[name]:
                length[needed] = max(length[needed], length[name] + 1)
        return sorted(length, key=lambda name: -length[name])

    def run(self) -> None:
        began = time.monotonic()
        with self._lines:
            try:
                self._start_what_is_ready()
                while self._running:
                    self._take(*self._ended.get())
                    self._start_what_is_ready()
            except BaseException as error:
                number = error.number if isinstance(error, Stopped) else signal.SIGTERM
                self._stop(number)
                if isinstance(error, Stopped):
                    error.add_note(self._kept())
                raise
        if self._failed:
            raise SightlineError(self._what_failed())
        count, same = len(self._seconds), len(self._done) - len(self._seconds)
        seconds = time.monotonic() - began
        if not count:
            print(f"nothing to do: {counted(same, 'stage')} up to date")
            return
        print(f"{counted(count, 'stage')} done in {seconds:,.0f} s, {same} up to date")
        print(f"most of the time: {_longest(self._seconds)}")

    def _start_what_is_ready(self) -> None:
        project = self._project
        while names := [n for n in self._waiting if self._done.issuperset(project.needs[n])]:
            for name in names:
                self._waiting.remove(name)
                try:
                    commands = project.commands(name)
                except SightlineError as error:  # such as: another DVC process runs this stage
                    self._fail(name, str(error))
                    continue
                if commands:
                    self._ready.append((name, commands))
                else:
                    self._done.add(name)
        while self._ready:
            name, commands = self._ready[0]
            slot = self._free_slot(self._jobs.alone(str(project.stages[name].cmd)))
            if slot is None:
                return
            del self._ready[0]
            self._running[name] = slot
            variables = self._jobs.variables(slot, project.beside[name])
            Thread(target=self._bring, args=(name, commands, variables), daemon=True).start()

    def _free_slot(self, alone: bool) -> int | None:
        """Index of a free job, or `_WHOLE` for what runs alone; None if there is none yet."""
        used = set(self._running.values())
        if alone:
            return None if used else _WHOLE
        free = set(range(len(self._jobs.slots))) - used
        return None if _WHOLE in used else min(free, default=None)

    def _bring(
        self, name: str, commands: Sequence[Sequence[str]], variables: Mapping[str, str]
    ) -> None:
        """Bring a stage up to date, in a thread of its own; the main thread hears what failed."""
        began, fault = time.monotonic(), ""
        for command in commands:
            try:
                fault = self._call(name, command, variables)
            except OSError as error:  # no process can be started
                fault = str(error.strerror)
            if fault:
                break
        self._ended.put((name, fault, time.monotonic() - began))

    def _call(self, name: str, command: Sequence[str], variables: Mapping[str, str]) -> str:
        """Run one command; how it failed, empty if it did not."""
        with self._starting:
            if self._stopped:
                return "not started"
            process = self._processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **variables, "PATH": _path_with_sightline()},
                process_group=0,
            )
        read = Thread(target=self._lines.read, args=(name, process.stdout), daemon=True)
        read.start()
        status = process.wait()
        read.join(1.0)  # a process that outlives its stage may hold the pipe open
        if status < 0:
            return f"killed by {signal.Signals(-status).name}"
        return f"exit status {status}" if status else ""

    def _take(self, name: str, fault: str, seconds: float) -> None:
        """Go on after a stage has ended."""
        del self._running[name]
        if fault:
            self._fail(name, f"failed after {seconds:,.0f} s ({fault})")
            return
        self._seconds[name] = seconds
        self._done.add(name)
        self._lines.done(name, f"done in {seconds:,.0f} s")

    def _fail(self, name: str, how: str) -> None:
        reason = self._lines.failed(name, how)
        self._failed[name] = f"{how}\n  {reason}" if reason else how

    def _stop(self, number: int) -> None:
        """Signal all processes of the running stages, so that each can save.

        SIGTERM would end DVC at once, with its locks in place and its command running: DVC gets
        SIGINT, on which it waits for its command.
        """
        with self._starting:
            self._stopped = True
        stages = [self._processes[name].pid for name in self._running if name in self._processes]
        end_processes(stages, number, _LEAVE, to_leaders=signal.SIGINT)
        time.sleep(_LAST_LINES)

    def _kept(self) -> str:
        left = len(self._project.stages) - len(self._done)
        return (
            f"{counted(len(self._done), 'stage')} up to date, {left} left; rerun the same command"
        )

    def _what_failed(self) -> str:
        lines = [f"{name}: {how}" for name, how in self._failed.items()]
        if held := [name for name in self._project.stages if name in self._waiting]:
            lines.append(f"not tried, since they need what failed: {', '.join(held)}")
        return "\n".join([*lines, "what is done is kept; rerun the same command"])


def _longest(seconds: Mapping[str, float], count: int = 3) -> str:
    """The stages that took longest, all of one kind together: ``train-mcse (5) 40 s``."""
    of_kind: dict[str, list[float]] = {}
    for name, took in seconds.items():
        of_kind.setdefault(name.partition("@")[0], []).append(took)
    longest = sorted(of_kind.items(), key=lambda item: -sum(item[1]))[:count]
    return ", ".join(
        f"{kind}{f' ({len(took)})' if len(took) > 1 else ''} {sum(took):,.0f} s"
        for kind, took in longest
    )


def _path_with_sightline() -> str:
    """A PATH on which a stage finds this `sightline`, in an environment that is not activated."""
    path, command = os.environ.get("PATH", os.defpath), Path(sys.argv[0])
    if command.name == "sightline":
        return os.pathsep.join([str(command.resolve().parent), path])
    return os.pathsep.join([path, sysconfig.get_path("scripts")])


class _Lines:
    """Prints lines of several stages; on a terminal, their last ones in place of each other."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._last: dict[str, deque[str]] = {}
        console = Console(file=sys.stdout, highlight=False, markup=False)
        self._live = (
            Live(console=console, transient=True, get_renderable=self._status)
            if console.is_terminal
            else None
        )

    def __enter__(self) -> None:
        if self._live:
            self._live.start()

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def read(self, name: str, output: IO[bytes]) -> None:
        """Take what a stage says, until it ends, and what it left behind says later."""
        with self._lock:
            last = self._last[name] = deque(maxlen=_KEPT)
        for raw in output:
            line = raw.decode(errors="replace").rstrip()
            if line and not _OF_DVC.match(line):
                with self._lock:
                    last.append(line)
                    if self._live is None:
                        self._print(f"{name}: {line}")

    def done(self, name: str, how: str) -> None:
        """A stage has ended well."""
        with self._lock:
            last = self._last.pop(name, None)
            self._print(f"{name}: {how}" + (f": {last[-1]}" if self._live and last else ""))

    def failed(self, name: str, how: str) -> str:
        """A stage has failed; on a terminal its last lines have not been seen together yet.

        Returns:
            Our last error, all lines of it, or DVC's; it may have scrolled past. Empty without one.
        """
        with self._lock:
            last = self._last.pop(name, deque())
            for line in last if self._live else ():
                self._print(f"{name}: {line}")
            self._print(f"{name}: {how}")
        lines = [*last]
        of_dvc = [at for at, line in enumerate(lines) if line.startswith("ERROR: ")]
        ours = [at for at, line in enumerate(lines) if line.startswith("error: ")]
        if not ours:
            return lines[of_dvc[-1]] if of_dvc else ""
        end = next((at for at in of_dvc if at > ours[-1]), len(lines))
        return "\n  ".join(lines[ours[-1] : end])

    def _print(self, line: str) -> None:
        if self._live is None:
            print(line, flush=True)
            return
        self._live.console.print(Text(line), soft_wrap=True)

    def _status(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for name, lines in list(self._last.items()):
            table.add_row(name, lines[-1] if lines else "")
        return table
