"""What the benchmarks share: options, drawn inputs, sides that take turns, medians, and a report.

Absolute times are those of one machine at one moment. What a benchmark claims is a ratio: its sides
take turns in one run, so that other work on the machine slows them all, and medians count. Results
are rows, printed as Markdown tables; after each, ``--json FILE`` writes all of them as
``{"machine": …, "rows": [{column: value}]}``, which `bench/gpu.py` reads.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from sightline.cache import EncoderRecord, FeatureSpec, SetWriter
from sightline.cache.keys import Keys
from sightline.devices import device_name, pick_device


def options_of(doc: str | None, *, rounds: int | None = None) -> argparse.ArgumentParser:
    """The options of every benchmark; ``doc`` is its module's docstring.

    Args:
        rounds: the default number of timed rounds; None: it times one, always.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if rounds is not None:
        help_text = "timed rounds (default: %(default)s)"
        parser.add_argument("--rounds", type=int, default=rounds, help=help_text)
    parser.add_argument("--json", type=Path, help="write the results there, too")
    return parser


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the options of a benchmark that computes with PyTorch in its own process."""
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    parser.add_argument("--threads", type=int, help="CPU threads (default: all cores)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see it work")


def device_of(options: argparse.Namespace) -> torch.device:
    """The device that was asked for; sets the number of threads."""
    if options.threads:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)  # of processes started from here
        torch.set_num_threads(options.threads)
    return pick_device(options.device)


def photographs(
    folder: Path, count: int, first: int = 0, size: tuple[int, int] = (500, 375)
) -> list[Path]:
    """JPEGs of soft patches of colour under noise, about 80 kB each at 500 × 375."""
    folder.mkdir(parents=True, exist_ok=True)

    def draw(number: int) -> Path:
        rng = np.random.default_rng(number)
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        picture = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC), np.float32)
        picture = picture + 12 * rng.standard_normal(picture.shape, np.float32)
        path = folder / f"{number:06}.jpg"
        Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8)).save(path, quality=90)
        return path

    with ThreadPoolExecutor() as pool:
        return list(pool.map(draw, range(first, first + count)))


def feature_set(
    folder: Path, kind: Any, keys: Keys, dim: int, shard_rows: int | None = None
) -> None:
    """Write random rows of float16 under ``keys``."""
    encoder = EncoderRecord(name="bench/noise", source="random:0", weights_sha256="0" * 64)
    spec = FeatureSpec(
        kind=kind, encoder=encoder, preprocessing={}, precision="fp32", dim=dim, dtype="float16"
    )
    rng = np.random.default_rng(1)
    with SetWriter(folder, spec) as writer:
        for batch in writer.plan(keys, batch_size=4096, shard_rows=shard_rows):
            writer.add(batch, rng.standard_normal((len(batch.keys), dim), np.float32))
        writer.publish()


class Cost(NamedTuple):
    """Seconds of one run: by the clock, and of processors, ended child processes included."""

    wall: float
    cpu: float


class OutOfTime(Exception):
    """The deadline passed before any round could be timed."""


def timed(run: Callable[[], object], device: torch.device | None = None) -> Cost:
    """What one run costs: what it says, if it measured itself in another process.

    A GPU is waited for before and after.
    """
    gc.collect()
    _wait(device)
    wall, cpu = time.perf_counter(), _cpu_seconds()
    measured = run()
    _wait(device)
    if isinstance(measured, Cost):
        return measured
    return Cost(time.perf_counter() - wall, _cpu_seconds() - cpu)


def take_turns(
    sides: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warm_up: bool = True,
    device: torch.device | None = None,
    deadline: float = math.inf,
) -> dict[str, Cost]:
    """The median cost of each side; the sides alternate, in reverse order every other round.

    Args:
        warm_up: run each side once before, untimed.
        deadline: begin no further round once `time.monotonic` is past it.

    Raises:
        OutOfTime: it passed while the sides warmed up.
    """
    for run in sides.values() if warm_up else ():
        if time.monotonic() > deadline:
            raise OutOfTime
        timed(run, device)
    costs: dict[str, list[Cost]] = {name: [] for name in sides}
    for number in range(rounds):
        if number and time.monotonic() > deadline:
            break
        for name in list(sides) if number % 2 else list(sides)[::-1]:
            costs[name].append(timed(sides[name], device))
    return {name: median(some) for name, some in costs.items()}


def median(costs: Sequence[Cost]) -> Cost:
    """The medians of both clocks."""
    return Cost(*(statistics.median(each) for each in zip(*costs, strict=True)))


def _wait(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def _cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Report:
    """Rows of results, printed as they come and kept in a file that is whole at any time.

    Args:
        options: of the command, with ``json``.
        device: what computes; None: this machine's CPU.
        about: what was measured, in words.
    """

    def __init__(
        self, options: argparse.Namespace, about: str = "", device: torch.device | None = None
    ) -> None:
        self._file: Path | None = options.json
        self.rows: list[dict[str, Any]] = []
        self._machine = "; ".join(filter(None, [machine(device), about]))
        self._columns: list[str] = []
        print(self._machine, flush=True)

    def add(self, **row: str | float) -> None:
        """Add a row; other columns than those of the last one begin a table."""
        self.rows.append(row)
        if list(row) != self._columns:
            self._columns = list(row)
            print(f"\n| {' | '.join(row)} |\n|{' --- |' * len(row)}")
        print(f"| {' | '.join(map(shown, row.values()))} |", flush=True)
        if self._file is not None:
            write_json(self._file, {"machine": self._machine, "rows": self.rows})

    def ratio(
        self,
        what: str,
        value: float,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        **figures: float,
    ) -> None:
        """Add a row for one ratio with its target, and the ``figures`` that it is from."""
        target, met = "", True
        if at_least is not None:
            target, met = f"at least {at_least:g}", value >= at_least
        if at_most is not None:
            target, met = f"at most {at_most:g}", value <= at_most
        self.add(what=what, value=value, target=target if met else f"{target}: missed", **figures)


def machine(device: torch.device | None = None) -> str:
    """The device in words, with what bears on its times."""
    device = device or torch.device("cpu")
    vectors = torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else ""
    busy = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"
    threads = f"{torch.get_num_threads()} threads"
    parts = [device_name(device), vectors, threads, busy, f"torch {torch.__version__}"]
    return ", ".join(filter(None, parts))


def shown(value: str | float) -> str:
    """A cell: numbers with two or three digits that count."""
    if isinstance(value, str | int):
        return f"{value:,}" if isinstance(value, int) else value
    digits = 3 if abs(value) < 1 else 2 if abs(value) < 100 else 0
    return f"{value:,.{digits}f}"


def write_json(path: Path, body: object) -> None:
    """Write or replace a file as a whole."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    part.replace(path)
