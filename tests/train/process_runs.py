"""The processes of a training run, forked from one that has imported the libraries."""

from __future__ import annotations

import multiprocessing
import os
import re
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

from sightline.errors import SightlineError
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
    """The outcome of a run, by rank: exit codes (minus a killing signal's number), and output."""

    codes: list[int]
    said: list[str]

    @property
    def errors(self) -> list[str]:
        """Every line that some process ended with."""
        lines = [line for text in self.said for line in text.splitlines()]
        return [line for line in lines if line.startswith(("error:", "stopped", "Traceback"))]


def run_processes(
    specs: Sequence[RunSpec | tuple[RunSpec, ...]],
    count: int = 2,
    *,
    started: Sequence[int] | None = None,
    act: str = "",
    rank: int = 0,
    at: str = "",
    launcher: bool = True,
    limit: float = 60.0,
    gradients: bool = False,
    track: Sequence[str] = (),
) -> list[Outcome]:
    """Train some runs, one after the other, in the same processes, which end after a failure.

    Args:
        specs: one for all processes, or a tuple of one for each.
        started: which of ``count`` processes are started; None starts all.
        act: what happens ``at`` a point in process ``rank``: ``kill``, ``terminate``, ``fail``,
            or ""; or ``late``: by its clock a checkpoint is always due; or ``count``: it says
            after each step how often it has exchanged something.
        at: ``terms K``, ``gather K`` or ``add K`` (of the Kth micro-batch), ``dev K`` (score).
        launcher: ends the others with SIGTERM once one has failed, as `torchrun` does; without,
            those that lost a process wait a second for it.
        limit: seconds that processes wait for those that have not started.
        gradients: compute in float64, and keep every step's gradients in ``<out>-<rank>.pt``.
        track: see `train_run`.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    told = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = list(range(count) if started is None else started)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, str(number)) for number in ranks]
        processes = []
        for number, file in zip(ranks, files, strict=True):
            own = [each[number] if isinstance(each, tuple) else each for each in specs]
            environment = {**told, "RANK": str(number), "LOCAL_RANK": str(number)}
            breaks = (act, at) if number == rank else ("", "")
            patience = None if launcher else 1.0
            given = (number, own, file, environment, limit, patience, breaks, gradients, track)
            processes.append(_forks.Process(target=_train, args=given))
        for process in processes:
            process.start()
        _await(processes, launcher)
        ends = [_ends(*of) for of in zip(files, processes, strict=True)]
    of_runs = zip(*ends, strict=True)
    return [Outcome([code for _, code in run], [said for said, _ in run]) for run in of_runs]


def _await(processes: Sequence[Any], launcher: bool) -> None:
    """Wait for all to end, as the launcher would."""
    end, left = time.monotonic() + LIMIT, list(processes)
    while left and wait([process.sentinel for process in left], end - time.monotonic()):
        left = [process for process in left if process.is_alive()]
        if launcher and any(process.exitcode for process in processes):
            time.sleep(0.1)
            for process in left:
                process.terminate()
            break
    for process in processes:
        process.join(LIMIT)
        process.kill()
        process.join()


def _ends(file: Path, process: Any) -> list[tuple[str, int]]:
    """Output and exit code of every run of a process, also of one in which it was killed."""
    *ended, rest = re.split(r"^ended (\d+)\n", file.read_text(errors="replace"), flags=re.M)
    ends = [(said, int(code)) for said, code in zip(ended[::2], ended[1::2], strict=True)]
    return ends + ([(rest, process.exitcode)] if process.exitcode < 0 else [])


# ---- in a process of a run ----------------------------------------------------------------------


def _train(
    rank: int,
    specs: list[RunSpec],
    said: Path,
    environment: dict[str, str],
    limit: float,
    patience: float | None,
    breaks: tuple[str, str],
    gradients: bool,
    track: Sequence[str],
) -> None:
    import pytest
    import torch

    from pipeline import cli
    from pipeline.cli import commands
    from sightline.machine import signals
    from train import distributed
    from train import train_run as training

    with said.open("wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(environment)
    torch.set_num_threads(1)
    distributed.ARRIVAL_LIMIT = limit
    if patience is not None:
        signals._LOST = patience
    break_at(*breaks)
    if gradients:
        features_in_double(pytest.MonkeyPatch())
    for spec in specs:
        callbacks = [gradients_of(Path(f"{spec.out}-{rank}.pt"))] if gradients else []

        def run(spec: RunSpec = spec, callbacks: list[Any] = callbacks) -> None:
            summary = training.train_run(spec, callbacks=callbacks, track=track)
            counts = list(summary.processes)
            print(f"process {rank}: {summary.steps} steps, processes {counts}")

        commands.app = run
        code: Any = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
        print(f"ended {code}", flush=True)
        sys.stderr.flush()
        if code:
            sys.exit(code)


def features_in_double(patch: Any) -> None:
    from train.data import TrainingData

    read = TrainingData.__getitem__

    def in_double(data: Any, k: int) -> Any:
        batch = read(data, k)
        features = {feature: rows.double() for feature, rows in batch.features.items()}
        return replace(batch, features=features)

    patch.setattr(TrainingData, "__getitem__", in_double)


def gradients_of(file: Path) -> Any:
    """A callback that trains in float64 and writes the gradients of every step into ``file``."""
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
            torch.save(self.steps, file)

    return Gradients()


def count_exchanges() -> None:
    import torch.distributed as dist

    from train.loop import Loop

    calls: list[str] = []

    def counting(exchange: Any) -> Any:
        def counted(*given: Any, **named: Any) -> Any:
            calls.append(exchange.__name__)
            return exchange(*given, **named)

        return counted

    for name in ("all_reduce", "broadcast", "all_gather"):
        setattr(dist, name, counting(getattr(dist, name)))
    step = Loop._step

    def stepped(loop: Any) -> None:
        step(loop)
        print(f"exchanges: {len(calls)}", flush=True)

    Loop._step = stepped


def break_at(act: str, at: str) -> None:
    """End or signal this process when it reaches the point."""
    from train import loop
    from train import train_run as training
    from train.distributed import Processes
    from train.model import Student

    if act == "late":
        loop.SAVE_SECONDS = 0.0
    if act == "count":
        count_exchanges()
    if act in ("", "late", "count"):
        return
    name, number = at.split()
    owner, method = {
        "terms": (Student, "terms"),
        "gather": (Processes, "gather_blocks"),
        "add": (Processes, "add_gradients"),
        "dev": (training, "dev_score"),
    }[name]
    real, calls = getattr(owner, method), []

    def watching(*given: Any, **named: Any) -> Any:
        if len(calls) == int(number) and act == "fail":
            raise SightlineError("no space left")
        if len(calls) == int(number):
            os.kill(os.getpid(), signal.SIGKILL if act == "kill" else signal.SIGTERM)
        calls.append(number)
        return real(*given, **named)

    setattr(owner, method, watching)
