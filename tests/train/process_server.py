"""A process that forks the processes of a training run, so that many runs cost one import.

Each line on stdin is a request (JSON, `Request`), each line on stdout its outcome (`Outcome`).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

LIMIT = 120.0
"""Seconds after which what still runs is killed."""


@dataclass(frozen=True)
class Request:
    """Some runs, one after the other, in the same processes.

    Attributes:
        specs: `RunSpec`s; a list for each process, or one for all.
        count: processes.
        started: which of them are started; None starts all.
        act: what happens ``at`` a point in process ``rank``: ``kill``, ``terminate``, or "".
        at: ``terms K``, ``gather K`` or ``add K`` (of micro-batch K), ``dev K`` (the Kth score).
        launcher: seconds after the first end of a process after which the others get SIGTERM, as
            from `torchrun`; None sends none.
        limit: seconds that processes wait for those that have not started.
        gradients: keep every step's gradients in ``<out>.pt``, in float64 if `double`.
    """

    specs: list[Any]
    count: int = 1
    started: list[int] | None = None
    act: str = ""
    rank: int = 0
    at: str = ""
    launcher: float | None = None
    limit: float = 60.0
    gradients: bool = False
    double: bool = False


@dataclass(frozen=True)
class Outcome:
    """The outcome of the processes, by rank: exit codes (minus a signal's number), and output."""

    codes: list[int]
    said: list[str]
    seconds: float

    @property
    def errors(self) -> list[str]:
        """Every line that some process ended with."""
        lines = [line for text in self.said for line in text.splitlines()]
        return [line for line in lines if line.startswith(("error:", "stopped", "Traceback"))]


class ProcessServer:
    """The test's side: starts the server, sends requests, and ends it."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, specs: Sequence[Any], **request: Any) -> Outcome:
        """The outcome of the runs of some specs (see `Request`)."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        told = [_dumped(each) for each in specs]
        self._server.stdin.write(json.dumps(asdict(Request(told, **request))) + "\n")
        self._server.stdin.flush()
        return Outcome(**json.loads(self._server.stdout.readline()))

    def close(self) -> None:
        self._server.communicate()


def _dumped(spec: Any) -> Any:
    if isinstance(spec, list):
        return [_dumped(each) for each in spec]
    return json.loads(spec.model_dump_json())


# ---- in a process of a run ----------------------------------------------------------------------


def _work(request: Request, rank: int) -> None:
    import torch

    from pipeline import cli
    from pipeline.cli import commands
    from train import distributed
    from train import train_run as training
    from train.run_spec import RunSpec

    torch.set_num_threads(1)
    distributed.ARRIVAL_LIMIT = request.limit
    if request.act and rank == request.rank:
        _break_at(request)
    if request.double:
        _features_in_double()
    specs = request.specs[rank] if isinstance(request.specs[0], list) else request.specs

    def runs() -> None:
        for body in specs:
            spec = RunSpec.model_validate(body)
            callbacks = [_gradients(spec, rank, request.double)] if request.gradients else []
            summary = training.train_run(spec, callbacks=callbacks)
            print(f"process {rank}: {summary.steps} steps, processes {list(summary.processes)}")

    commands.app = runs
    cli.main()


def _gradients(spec: Any, rank: int, double: bool) -> Any:
    """A callback that writes the gradients of every step into a file."""
    import torch

    from train.loop import Callback

    class Gradients(Callback):
        def begin(self, state: Any, model: Any) -> None:
            self.model = model.double() if double else model
            self.steps: list[dict[str, Any]] = []

        def step(self, state: Any) -> None:
            found = self.model.named_parameters()
            self.steps.append({n: p.grad.clone() for n, p in found if p.grad is not None})

        def end(self, state: Any) -> None:
            torch.save(self.steps, f"{spec.out}-{rank}.pt")

    return Gradients()


def _features_in_double() -> None:
    from dataclasses import replace

    from train.data import TrainingData

    item = TrainingData.__getitem__

    def in_double(self: Any, k: int) -> Any:
        batch = item(self, k)
        features = {feature: rows.double() for feature, rows in batch.features.items()}
        return replace(batch, features=features)

    TrainingData.__getitem__ = in_double


def _break_at(request: Request) -> None:
    """End or signal this process when it reaches the point."""
    from train import train_run as training
    from train.distributed import Processes
    from train.model import GroundedModel

    point, number = request.at.split()
    number = int(number)
    calls: dict[str, int] = {}

    def reached(name: str) -> None:
        calls[name] = calls.get(name, -1) + 1
        if (name, calls[name]) == (point, number):
            os.kill(os.getpid(), signal.SIGKILL if request.act == "kill" else signal.SIGTERM)

    def watched(owner: Any, name: str, point: str) -> None:
        real = getattr(owner, name)

        def watching(*given: Any, **named: Any) -> Any:
            reached(point)
            return real(*given, **named)

        setattr(owner, name, watching)

    watched(GroundedModel, "terms", "terms")
    watched(Processes, "gathered", "gather")
    watched(Processes, "add_gradients", "add")
    watched(training, "dev_score", "dev")


# ---- the server ---------------------------------------------------------------------------------


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _begin(request: Request, rank: int, port: int, said: int) -> int:
    process = os.fork()
    if process:
        return process
    code = 99
    try:
        os.dup2(said, 1)
        os.dup2(said, 2)
        if request.count > 1:
            os.environ.update(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(request.count),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
            )
        _work(request, rank)
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve(request: Request) -> Outcome:
    ranks = list(range(request.count)) if request.started is None else request.started
    port, start = _free_port(), time.monotonic()
    words = {rank: tempfile.TemporaryFile() for rank in ranks}  # noqa: SIM115
    running = {_begin(request, rank, port, words[rank].fileno()): rank for rank in ranks}
    codes: dict[int, int] = {}
    first_end: float | None = None
    while running:
        process, status = os.waitpid(-1, os.WNOHANG)
        now = time.monotonic()
        if process:
            codes[running.pop(process)] = os.waitstatus_to_exitcode(status)
            first_end = first_end or now
            continue
        if request.launcher is not None and first_end and now - first_end > request.launcher:
            request = Request(**{**asdict(request), "launcher": None})
            _signal(running, signal.SIGTERM)
        if now - start > LIMIT:
            _signal(running, signal.SIGKILL)
        time.sleep(0.01)
    said = []
    for rank in ranks:
        words[rank].seek(0)
        said.append(words[rank].read().decode(errors="replace"))
        words[rank].close()
    return Outcome([codes[rank] for rank in ranks], said, time.monotonic() - start)


def _signal(running: Mapping[int, int], number: int) -> None:
    for process in running:
        os.kill(process, number)


def main() -> None:
    """Serve until stdin ends."""
    from transformers import BertModel, BertTokenizerFast  # noqa: F401, what takes long

    import train.progress
    import train.train_run  # noqa: F401
    from pipeline.cli import commands  # noqa: F401

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a test in the background hands down "ignored"
    for line in sys.stdin:
        outcome = _serve(Request(**json.loads(line)))
        print(json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    main()
