"""A process that forks one run of a stage per request, so that hundreds can be broken in seconds.

Importing the libraries takes seconds, a run of a stub encoder a twentieth of a second. What a run
imports beyond them, the process imports before the next one. Each line on stdin is a request (JSON,
`Request`), each line on stdout its outcome (`Outcome`). With ``--torch`` it runs the command line
with real encoders as well; ``--import=NAME`` imports more beforehand.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from fault_layer import FaultLayer

from sightline.files import storage
from sightline.settings import installed_entry_points

DIM, BATCH, BLOCK = 6, 8, 32
SHARD_ROWS = 40


@dataclass(frozen=True)
class Request:
    """One run.

    Attributes:
        out: the feature set.
        texts: run the stub over this many texts …
        worker, batch, threads: … as this worker, with this batch size and as many threads …
        words: … or the command line with these words.
        act: what happens ``at`` a point: ``kill``, ``raise``, ``signal`` or ``wait`` (until
            ``file``, which appears then, is gone); or "" (only trace).
        at: name of a point of the fault layer, or ``encode N`` or ``decode N``: the Nth batch.
        number: of the error that is raised or the signal that is sent.
        group: the signal goes to the whole process group.
        kill_after: seconds after which the run is killed, whatever it does.
        file: to wait for.
        folder: to run the command line in.
    """

    out: str
    texts: int = 0
    worker: str = ""
    batch: int = BATCH
    threads: int | None = None
    words: list[str] = field(default_factory=list)
    act: str = ""
    at: str = ""
    number: int = 0
    group: bool = False
    kill_after: float | None = None
    file: str = ""
    folder: str = ""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        code: exit code, or minus the signal that killed it.
        said: what it wrote to stdout and stderr.
        points: every point that it reached, in order.
        encoded: rows that were given to the encoder.
        seconds: it took.
    """

    code: int
    said: str
    points: list[str]
    encoded: int
    seconds: float


class StageServer:
    """The test's side: starts the process, sends requests, and ends it."""

    def __init__(self, *options: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, out: Path, **request: Any) -> None:
        """Start a run, and do not wait for it."""
        assert self._process.stdin is not None
        line = json.dumps(asdict(Request(str(out), **request)))
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def run(self, out: Path, **request: Any) -> Outcome:
        """The outcome of a run."""
        self.begin(out, **request)
        return self.outcome()

    def outcome(self) -> Outcome:
        """The outcome of the run that was started."""
        assert self._process.stdout is not None
        return Outcome(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate()

    def kill(self) -> None:
        """End the server, and leave the run that it started running."""
        self._process.kill()
        self._process.wait()


class _Rows(np.ndarray):
    """An array that can pass for a tensor."""

    def cpu(self) -> _Rows:
        return self

    def numpy(self) -> np.ndarray:
        return np.asarray(self)


def stub_rows(texts: Sequence[str], length: int) -> Any:
    """Rows that are drawn from their texts; some are not finite."""
    rows = np.array([[hash_of(text) / (i + length) for i in range(DIM)] for text in texts])
    rows[[text.endswith("13") for text in texts]] = np.nan
    return rows.astype(np.float32).view(_Rows)


def stub_encoder(encode: Any = stub_rows, weights: str = "0") -> Any:
    """A text encoder without a model."""
    from pipeline.encoders.encoder import TextEncoder
    from sightline.cache import EncoderRecord

    digest = weights * 64
    return TextEncoder(
        EncoderRecord(name="stub", source="random:0", weights_sha256=digest, untrained=True),
        DIM,
        {"lengths": "by thirds"},
        lengths=lambda texts: [len(text) % 3 + 1 for text in texts],
        encode=encode,
    )


def hash_of(text: str) -> float:
    """A number between 0 and 255 that only ``text`` decides."""
    from sightline.cache import key_of_text

    return float(key_of_text(text)[0])


def without_torch() -> None:
    """Let a run say what it computes with, and not import PyTorch for it, which takes seconds."""
    from pipeline.extract import runner

    runner.threads_here = lambda: 1
    runner.pick_device = lambda name: name
    runner.cpu_warning = lambda device: ""
    runner.using_threads = lambda count: contextlib.nullcontext()
    runner.code_version = lambda: "stub"
    runner.described = lambda device: {"device": device}


def _child(request: Request, trace: int, counter: int) -> int:
    """One run, in the forked process; the exit code."""
    os.setpgid(0, 0)
    stage = os.getpid()

    def reached(point: str) -> None:
        os.write(trace, f"{point}\n".encode())
        if point == request.at:
            _break(request, stage)

    FaultLayer(reached).install()
    if request.words:
        from pipeline import cli

        if "--torch" in _OPTIONS:
            _watch_batches(reached)
        if request.folder:
            os.chdir(request.folder)
        sys.argv = ["sightline", *request.words]
        try:
            cli.main()
        except SystemExit as end:
            return int(end.code or 0)
        return 0
    return _stub_stage(request, reached, counter)


def _stub_stage(request: Request, reached: Any, counter: int) -> int:
    from pipeline import cli
    from pipeline.cli import commands
    from pipeline.extract.encode_missing import feature_job
    from pipeline.extract.inputs import Entries, FeatureInputs
    from pipeline.extract.run_options import RunOptions
    from pipeline.extract.runner import run
    from pipeline.extract.settings import ExtractSettings
    from pipeline.extract.worker_number import WorkerNumber
    from pipeline.machine import Machine
    from sightline.cache import keys_of_texts, writer

    without_torch()
    preloaded = "torch" in sys.modules
    writer.block_rows = lambda spec: BLOCK
    calls: list[int] = []

    def counting(texts: Sequence[str], length: int) -> np.ndarray:
        calls.append(length)
        reached(f"encode {len(calls)}")
        os.write(counter, b"." * sum(text != "" for text in texts))
        return stub_rows(texts, length)

    encoder = stub_encoder(counting)
    worker = WorkerNumber.parse(request.worker) if request.worker else None
    settings, machine = ExtractSettings(batch_size=request.batch), Machine(threads=request.threads)
    texts = [f"text {i}" for i in range(request.texts)]
    inputs = FeatureInputs("text", Entries.of(keys_of_texts(texts), texts))

    def stage() -> None:
        job = feature_job(inputs, encoder, Path(request.out), settings)
        print(run(job, 0.2, machine, RunOptions(worker), shard_rows=SHARD_ROWS))

    commands.app = stage
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    assert preloaded or "torch" not in sys.modules, "a stub run imported PyTorch"
    return 0


def _watch_batches(reached: Any) -> None:
    """Make points of the batches that a real image encoder is given and that workers decode."""
    from pipeline.encoders.frozen_model import FrozenModel
    from pipeline.extract import decode_batches

    encode, decode = FrozenModel.__call__, decode_batches.decode_batch
    encoded: list[int] = []

    def encoding(self: Any, images: Any) -> Any:
        encoded.append(1)
        reached(f"encode {len(encoded)}")
        return encode(self, images)

    decoded: list[int] = []

    def decoding(*arguments: Any) -> Any:
        decoded.append(1)
        reached(f"decode {len(decoded)}")
        return decode(*arguments)

    FrozenModel.__call__ = encoding
    decode_batches.decode_batch = decoding


def _break(request: Request, stage: int) -> None:
    if request.act == "kill":
        os.kill(stage, signal.SIGKILL)
    elif request.act == "raise":
        raise OSError(request.number, os.strerror(request.number))
    elif request.act == "wait":
        Path(request.file).touch()
        end = time.monotonic() + 60  # a test that was ended itself leaves nobody waiting
        while Path(request.file).exists() and time.monotonic() < end:
            time.sleep(0.01)
    elif request.act == "signal" and request.group:
        os.killpg(stage, request.number)
    elif request.act == "signal":
        os.kill(stage, request.number)


def _serve(request: Request) -> Outcome:
    with (
        tempfile.TemporaryFile() as said,
        tempfile.TemporaryFile() as trace,
        tempfile.TemporaryFile() as counter,
        tempfile.TemporaryFile() as imported,
    ):
        start = time.monotonic()
        process = os.fork()
        if process == 0:
            code = 99
            try:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                code = _child(request, trace.fileno(), counter.fileno())
            except BaseException:
                traceback.print_exc()
            finally:
                if request.words:
                    atexit._run_exitfuncs()  # as Python does, which ends decode workers
                os.write(imported.fileno(), "\n".join(sys.modules).encode())
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        if request.kill_after is not None:
            time.sleep(request.kill_after)
            os.kill(process, signal.SIGKILL)  # an ended process exists until it is waited for
        _, status = os.waitpid(process, 0)
        seconds = time.monotonic() - start
        for file in (said, trace, counter, imported):
            file.seek(0)
        for name in set(imported.read().decode().split()) - sys.modules.keys():
            with contextlib.suppress(ImportError):  # made while a module was imported
                importlib.import_module(name)
        return Outcome(
            os.waitstatus_to_exitcode(status),
            said.read().decode(errors="replace"),
            trace.read().decode().splitlines(),
            len(counter.read()),
            seconds,
        )


_OPTIONS = sys.argv[1:]
LIBRARIES = ["numpy.ma", "pyarrow.compute", "pyarrow.parquet"]
LIBRARIES += [
    "pipeline.cli.commands",
    "pipeline.encoders.encoder",
    "pipeline.extract.encode_missing",
]
WITH_TORCH = ["torch", "torchvision.io", "open_clip", "pipeline.encoders.frozen_model"]


def main() -> None:
    """Serve until stdin ends."""
    more = [option.removeprefix("--import=") for option in _OPTIONS if "=" in option]
    for name in LIBRARIES + more + (WITH_TORCH if "--torch" in _OPTIONS else []):
        importlib.import_module(name)
    installed_entry_points()
    storage._SETTLED = 0  # what is remembered of a file does not depend on the time of a run
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a test in the background hands down "ignored"
    for line in sys.stdin:
        print(json.dumps(asdict(_serve(Request(**json.loads(line))))), flush=True)


if __name__ == "__main__":
    main()
