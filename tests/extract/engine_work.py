"""Work that any engine can start: a stub encoder over numbered texts, which can break.

`python -m engine_work WORK --worker I/N …` does it as the `sightline` command would.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path, PosixPath
from typing import Any
from unittest.mock import patch

from stage_server import BATCH, BLOCK, stub_encoder, stub_rows

from pipeline.extract import runner, workers
from pipeline.extract.encode_missing import feature_job
from pipeline.extract.inputs import Entries, FeatureInputs
from pipeline.extract.run_options import RunOptions
from pipeline.extract.runner import SetSummary
from pipeline.extract.settings import ExtractSettings
from pipeline.extract.worker_number import WorkerNumber
from pipeline.machine import Machine
from sightline.cache import keys_of_texts, writer
from sightline.errors import SightlineError


@dataclass(frozen=True)
class StubWork:
    """Fills ``out`` with the rows of so many texts.

    Attributes:
        pause: seconds that a batch takes.
        batch: rows per batch.
        weights: of the encoder; another digit is another encoder.
        broken: worker number → what happens there at its third batch: ``kill`` (unless ``once``
            exists already, which it makes), ``error`` or ``bug``.
        once: file that lets only the first process with this number be killed.
        log: folder for a file per process, with a dot per batch; its name is the worker, the
            process and the number of threads that it was told to use.
        meet: no process goes beyond its third batch before so many have begun, as ``log`` shows.
    """

    out: Path
    texts: int = 240
    pause: float = 0.0
    batch: int = BATCH
    weights: str = "0"
    broken: dict[int, str] = field(default_factory=dict)
    once: Path | None = None
    log: Path | None = None
    meet: int = 0

    def start(self, machine: Machine, worker: WorkerNumber | None = None) -> str:
        """Do it with the workers of ``machine``; returns what the last of them printed."""
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        defaults = {"threads": machine.threads or 1, "devices": machine.devices or ("cpu",)}
        machine = machine.model_copy(update=defaults)
        with patch.object(workers, "_MODULE", "engine_work"):
            return workers.run_workers([repr(self)], machine, [self.out], worker=worker)

    def command(self, *options: str) -> list[str]:
        """A command that does it as `sightline` does, alone or as an engine's ``options`` say."""
        words = [sys.executable, "-m", "engine_work", repr(self), "--threads", "1"]
        return [*words, *(options or ("--devices", "cpu"))]

    def process(self, *options: str, **more: Any) -> subprocess.Popen[str]:
        """A process of that command, with pipes."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(self.command(*options), env=environment, **pipes, **more)

    def __call__(self, threads: int = 1, worker: WorkerNumber | None = None) -> SetSummary:
        writer.block_rows = lambda spec: BLOCK
        settings, machine = ExtractSettings(batch_size=self.batch), Machine(threads=threads)
        texts = [f"text {i}" for i in range(self.texts)]
        inputs = FeatureInputs("text", Entries.of(keys_of_texts(texts), texts))
        broken = _Broken(self, worker)
        # without PyTorch, which takes seconds to import
        with patch.multiple(
            runner,
            pick_device=lambda name: "cpu",
            cpu_warning=lambda device: "",
            described=lambda device: {"device": device},
            using_threads=broken.using_threads,
        ):
            job = feature_job(inputs, stub_encoder(broken, self.weights), self.out, settings)
            return runner.run(job, 0.2, machine, RunOptions(worker))


class _Broken:
    def __init__(self, work: StubWork, worker: WorkerNumber | None) -> None:
        self._work, self._batches, self._threads = work, 0, 0
        self._index = worker.index if worker else 0

    def using_threads(self, count: int) -> AbstractContextManager[None]:
        self._threads = count
        return nullcontext()

    def __call__(self, texts: Sequence[str], length: int) -> Any:
        work = self._work
        self._batches += 1
        time.sleep(work.pause)
        if work.log is not None:
            name = f"{self._index}-{os.getpid()}-{self._threads}"
            with (work.log / name).open("a") as file:
                file.write(".")
            while self._batches > 3 and len(list(work.log.iterdir())) < work.meet:
                time.sleep(0.01)
        if self._batches == 3:
            self._break(work.broken.get(self._index))
        return stub_rows(texts, length)

    def _break(self, how: str | None) -> None:
        once = self._work.once
        if how == "kill" and not (once and once.exists()):
            if once:
                once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "error":
            raise SightlineError("the third batch is cursed; lift the curse")
        if how == "bug":
            raise KeyError("a bug")


def main() -> None:
    """Do the work of the command line."""
    from pipeline import cli
    from pipeline.cli import commands

    parser = argparse.ArgumentParser()
    for name in ("work", "--worker", "--threads", "--devices", "--engine"):
        parser.add_argument(name, default=argparse.SUPPRESS)
    given = vars(parser.parse_args())
    work = eval(given.pop("work"), {"StubWork": StubWork, "PosixPath": PosixPath})
    worker = WorkerNumber.parse(given.pop("worker")) if "worker" in given else None
    machine = Machine.model_validate({**given, "threads": int(given["threads"])})
    commands.app = lambda: print(
        work.start(machine, worker)
        if machine.starts_workers
        else work(int(given["threads"]), worker)
    )
    cli.console()


if __name__ == "__main__":
    main()
