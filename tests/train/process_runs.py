"""The processes of a training run, forked from one that has imported the libraries."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from train.run_spec import RunSpec

LIMIT = 300.0
"""Seconds after which what still runs is killed."""

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(
    [
        "pytest",
        "transformers.models.bert",
        "train.progress",
        "train.train_run",
        "pipeline.cli.commands",
    ]
)


@dataclass(frozen=True)
class Outcome:
    """The outcome of the processes, by rank: exit codes (minus a signal's number), and output."""

    codes: list[int]
    said: list[str]

    @property
    def errors(self) -> list[str]:
        """Every line that some process ended with."""
        lines = [line for text in self.said for line in text.splitlines()]
        return [line for line in lines if line.startswith(("error:", "stopped", "Traceback"))]


@dataclass(frozen=True)
class _Work:
    """What one process does, as `run_processes` has it."""

    rank: int
    specs: list[RunSpec]
    said: Path
    environment: dict[str, str]
    limit: float
    act: str
    at: str
    gradients: bool

    def __call__(self) -> None:
        import torch

        from pipeline import cli
        from pipeline.cli import commands
        from train import distributed
        from train import train_run as training

        with self.said.open("wb", buffering=0) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.environ.update(self.environment)
        torch.set_num_threads(1)
        distributed.ARRIVAL_LIMIT = self.limit
        if self.act:
            _break_at(self.act, self.at)
        if self.gradients:
            _features_in_double()

        def runs() -> None:
            for spec in self.specs:
                callbacks = [_gradients(spec, self.rank)] if self.gradients else []
                summary = training.train_run(spec, callbacks=callbacks)
                counts = list(summary.processes)
                print(f"process {self.rank}: {summary.steps} steps, processes {counts}")

        commands.app = runs
        try:
            cli.main()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()


def run_processes(
    specs: Sequence[Any],
    count: int = 1,
    *,
    started: Sequence[int] | None = None,
    act: str = "",
    rank: int = 0,
    at: str = "",
    launcher: float | None = None,
    limit: float = 60.0,
    gradients: bool = False,
) -> Outcome:
    """Train some runs, one after the other, in the same processes.

    Args:
        specs: `RunSpec`s; a list for each process, or one for all.
        started: which of ``count`` processes are started; None starts all.
        act: what happens ``at`` a point in process ``rank``: ``kill``, ``terminate``, or "".
        at: ``terms K``, ``gather K`` or ``add K`` (of micro-batch K), ``dev K`` (the Kth score).
        launcher: seconds after the first end of a process after which the others get SIGTERM, as
            from `torchrun`; None sends none.
        limit: seconds that processes wait for those that have not started.
        gradients: compute in float64, and keep every step's gradients in ``<out>-<rank>.pt``.
    """
    with socket.socket() as found, tempfile.TemporaryDirectory() as folder:
        found.bind(("127.0.0.1", 0))
        told = {"WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1"}
        told["MASTER_PORT"] = found.getsockname()[1]
        found.close()
        works = []
        for number in range(count) if started is None else started:
            own = specs[number] if isinstance(specs[0], list) else list(specs)
            numbers = {"RANK": number, "LOCAL_RANK": number} if count > 1 else {}
            environment = {k: str(v) for k, v in ({**told, **numbers} if numbers else {}).items()}
            acts = act if number == rank else ""
            said = Path(folder, str(number))
            works.append(_Work(number, own, said, environment, limit, acts, at, gradients))
        processes = [_forks.Process(target=work) for work in works]
        for process in processes:
            process.start()
        _await(processes, launcher)
        texts = [work.said.read_text(errors="replace") for work in works]
        return Outcome([process.exitcode or 0 for process in processes], texts)


def _await(processes: Sequence[Any], launcher: float | None) -> None:
    """Wait for all to end, as the launcher would."""
    wait([process.sentinel for process in processes], LIMIT)
    if launcher is not None:
        time.sleep(launcher)
        for process in processes:
            if process.is_alive():
                process.terminate()
    for process in processes:
        process.join(LIMIT)
        process.kill()
        process.join()


# ---- in a process of a run ----------------------------------------------------------------------


def _gradients(spec: RunSpec, rank: int) -> Any:
    """A callback that writes the gradients of every step into a file."""
    import torch

    from train.loop import Callback

    class Gradients(Callback):
        def begin(self, state: Any, model: Any) -> None:
            self.model = model.double()
            self.steps: list[dict[str, Any]] = []

        def step(self, state: Any) -> None:
            found = self.model.named_parameters()
            self.steps.append({n: p.grad.clone() for n, p in found if p.grad is not None})

        def end(self, state: Any) -> None:
            torch.save(self.steps, f"{spec.out}-{rank}.pt")

    return Gradients()


def _features_in_double() -> None:
    from train.data import TrainingData

    item = TrainingData.__getitem__

    def in_double(self: Any, k: int) -> Any:
        batch = item(self, k)
        features = {feature: rows.double() for feature, rows in batch.features.items()}
        return replace(batch, features=features)

    TrainingData.__getitem__ = in_double


def _break_at(act: str, at: str) -> None:
    """End or signal this process when it reaches the point."""
    from train import train_run as training
    from train.distributed import Processes
    from train.model import GroundedModel

    name, number = at.split()
    owner, method = {
        "terms": (GroundedModel, "terms"),
        "gather": (Processes, "gathered"),
        "add": (Processes, "add_gradients"),
        "dev": (training, "dev_score"),
    }[name]
    real, calls = getattr(owner, method), []

    def watching(*given: Any, **named: Any) -> Any:
        if len(calls) == int(number):
            os.kill(os.getpid(), signal.SIGKILL if act == "kill" else signal.SIGTERM)
        calls.append(number)
        return real(*given, **named)

    setattr(owner, method, watching)
