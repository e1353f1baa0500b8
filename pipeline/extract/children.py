"""Processes of workers on one machine: started, started again, heard and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.extract.worker_number import WorkerNumber
from sightline.machine.progress import SILENT, to_stderr
from sightline.machine.signals import end_processes, killed_by

DEATHS = 5
"""Times that a worker is started again after it was killed."""
_LONG = 600.0  # seconds; a worker that lived longer counts as new
LEAVE = 60.0
"""Seconds that stopped workers have for saving."""
_ERROR = "error: "


@dataclass(frozen=True)
class Ended:
    """How a worker ended.

    Attributes:
        name: such as ``worker 0/2 on cpu``.
        status: of its process; negative: the signal that killed it.
        printed, stderr: what it wrote to standard output and to standard error.
        when: it last wrote to standard output, in seconds since the epoch.
    """

    name: str
    status: int
    printed: str
    stderr: str
    when: float = 0.0

    @property
    def error(self) -> str:
        """What went wrong; empty if nothing did."""
        if self.status == 0:
            return ""
        if self.status < 0:
            return f"{self.name} {killed_by(-self.status)}"
        _, marker, message = f"\n{self.stderr}".partition(f"\n{_ERROR}")
        return message.strip() if marker else f"{self.name}: {self.stderr.strip() or self.status}"


def of_worker(command: Sequence[str], worker: WorkerNumber, device: str) -> list[str]:
    """The command of one worker, on one device."""
    numbered = f"{worker.index}/{worker.count}"
    return [*command, "--worker", numbered, "--engine", "local", "--devices", device]


class Child:
    """A worker process of this machine, which ends when this process does.

    Args:
        name: such as ``worker 0/2 on cpu``.
        command: a module and its arguments.
        written: its output goes to files of this name with ``.out`` and ``.err``.
    """

    def __init__(self, name: str, command: Sequence[str], stem: Path) -> None:
        self._name, self._command = name, command
        self._output, self._errors = stem.with_suffix(".out"), stem.with_suffix(".err")
        self._deaths = 0
        self.start()

    def start(self) -> None:
        """Start its process, for the first time or again."""
        with self._output.open("wb") as out, self._errors.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pipeline.ends_with_parent", *self._command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                env={**os.environ, SILENT: "1"},
                process_group=0,
            )
        self._read, self._began = 0, time.monotonic()

    def lines(self) -> Iterator[str]:
        """What it has said since the last time, up to an error."""
        with self._errors.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n") or line.startswith(_ERROR.encode()):
                    break
                self._read += len(line)
                yield line.decode(errors="replace").rstrip()

    def ended(self) -> Ended:
        """How its process has ended."""
        texts = (path.read_text(errors="replace") for path in (self._output, self._errors))
        return Ended(self._name, self.process.returncode, *texts, when=self._output.stat().st_mtime)

    def restarts(self) -> bool:
        """Start its process again if it was killed, unless it is killed again and again."""
        lived = time.monotonic() - self._began
        self._deaths = 1 if lived > _LONG else self._deaths + 1
        if self.process.returncode >= 0 or self._deaths > DEATHS:
            return False
        to_stderr(f"{self.ended().error}; started again")
        self.start()
        return True


def stop(children: Sequence[Child]) -> None:
    """End the workers that still run, and wait until they have saved; a kill loses their blocks."""
    processes = [child.process for child in children if child.process.poll() is None]
    end_processes([process.pid for process in processes], signal.SIGTERM, LEAVE)
    for process in processes:
        process.wait()
