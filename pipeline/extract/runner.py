"""The runner of features, groundings and cut-outs: plan, compute, write, publish."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.extract import machine
from pipeline.extract.account import SetSummary, account, check_failures, named_failures, say_why
from pipeline.extract.memory import HalvingCalls, halved_to
from sightline.cache.failures import Failure
from sightline.cache.keys import Keys
from sightline.cache.plan import Batch
from sightline.cache.record import FeatureSetRecord, TableSetRecord
from sightline.cache.set_writer import SetWriter
from sightline.cache.worker import Worker
from sightline.devices import threads_here, using_threads
from sightline.errors import BusyError
from sightline.hardware import cpu_warning
from sightline.progress import progress, to_stderr

Failures = dict[bytes, Failure]
"""Key → code, path and reason of a failed row."""


class Computed(NamedTuple):
    """The result of a batch.

    Attributes:
        batch: batch of the plan.
        keys: uint8 [n, 32] of the computed rows.
        rows: the results, as the set's writer accepts them.
        failed: the failed rows.
    """

    batch: Batch
    keys: Keys
    rows: Any
    failed: Failures


Advance = Callable[[int], None]
Compute = Callable[[Iterator[Batch], Advance], Iterable[Computed]]
"""Batches, pulled on demand, and a progress callback for finished rows → results."""


@dataclass(frozen=True)
class Invocation:
    """Settings of one command invocation, beyond the shared parameters.

    Attributes:
        retry_failed: recompute failed rows.
        threads: CPU threads; None: PyTorch's default.
        worker: this worker among several that share the output; None: the only one.
        device: device of the models; None: as configured.
        dry_run: only say what there is to do; write nothing.
    """

    retry_failed: bool = False
    threads: int | None = None
    worker: Worker | None = None
    device: str | None = None
    dry_run: bool = False


@dataclass(frozen=True)
class RunSettings(Invocation):
    """How to run, as opposed to what to compute.

    Attributes:
        max_failed: fraction of rows that may fail before the run ends with an error.
        device: device of the models, for the record.
        inputs: files and folders that the run reads; its output must not touch them.
    """

    device: str = "cpu"
    max_failed: float = 0.01
    inputs: tuple[Path, ...] = ()

    @property
    def shape(self) -> dict[str, Any]:
        """Threads and code version, for the plan."""
        return {
            "threads": self.threads or threads_here(),
            "code": machine.code_version(),
        }


class Contents(NamedTuple):
    """The content of a published set.

    Attributes:
        words: readable description.
        failed, total: number of failed rows, and of all rows.
        remarks: further remarks.
    """

    words: str
    failed: int
    total: int
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """The parts of one run.

    Attributes:
        writer: writer of the set.
        plan: returns the batches left to compute.
        compute: computes batches.
        calls: calls of the models.
        batch_size: items per call, for the record.
        contents: describes the set of a record.
        unit: name of the rows, in the plural.
        about: how the models are run, for the record.
    """

    writer: SetWriter
    plan: Callable[[], list[Batch]]
    compute: Compute
    calls: Sequence[HalvingCalls]
    batch_size: Callable[[], int]
    contents: Callable[[Any], Contents]
    unit: str
    about: Mapping[str, str] = field(default_factory=dict)


def run(job: Job, settings: RunSettings) -> SetSummary:
    """Compute what a set lacks, and publish it.

    A worker first computes blocks alongside the others. Then it tries to take over alone: the
    last active worker succeeds, computes what dead workers left, and publishes.

    Raises:
        SightlineError: more rows failed than ``settings.max_failed`` allows (good rows are
            published first), no disk space, or workers with a different plan.
        BusyError: another run is writing there.
    """
    if settings.dry_run:
        return _to_do(job)
    start = time.monotonic()
    writer, unit, count = job.writer, job.unit, 0
    with account(writer, unit), ExitStack() as stack:
        if settings.worker is not None:
            with writer.joined():
                count = _compute(job, settings)
            try:
                stack.enter_context(writer)
            except BusyError:
                seconds = time.monotonic() - start
                return SetSummary(
                    writer.folder,
                    None,
                    str(settings.worker),
                    count,
                    0,
                    0,
                    0,
                    seconds,
                    unit,
                    halved_to(job.calls),
                )
        else:
            stack.enter_context(writer)
        beside = count
        count += _compute(job, settings)
        record: FeatureSetRecord | TableSetRecord = writer.publish()
    words, failed, total, remarks = job.contents(record)
    summary = SetSummary(
        writer.folder,
        record,
        words,
        count,
        writer.copied_rows,
        max(writer.resumed_rows - beside, 0),
        failed,
        time.monotonic() - start,
        unit,
        halved_to(job.calls),
        remarks,
        named_failures(writer.failures),
    )
    check_failures(writer.folder, writer.failures, failed, total, unit, settings.max_failed)
    return summary


def _to_do(job: Job) -> SetSummary:
    """What a run would compute, beside any run that is writing there; writes nothing."""
    writer = job.writer
    with writer.looked_at():
        left = sum(len(batch.keys) for batch in job.plan())
        new_bytes = writer.bytes_of(left + writer.copied_rows)
        remarks = [f"recomputing everything because {why}" for why in writer.replaces]
        return SetSummary(
            writer.folder,
            None,
            f"{writer.wanted_rows - left - writer.copied_rows:,} {job.unit} there",
            0,
            writer.copied_rows,
            0,
            0,
            0.0,
            job.unit,
            {},
            (*remarks, *writer.repaired),
            to_do=left,
            bytes_to_write=new_bytes and new_bytes[0],
        )


def _compute(job: Job, settings: RunSettings) -> int:
    """Compute what is left, or a worker's part of it; returns the number of rows."""
    writer, count = job.writer, 0
    batches = job.plan()
    say_why(writer)
    if not batches:
        return 0
    if warning := cpu_warning(settings.device):
        to_stderr(f"{writer.folder}: warning: {warning}")
    threads = writer.shape.threads
    about = {**machine.described(settings.device), "threads": threads, **job.about}
    about["batch_size"] = job.batch_size()
    with (
        using_threads(threads),
        progress(
            writer.folder.as_posix(),
            writer.planned_rows,
            job.unit,
            writer.resumed_rows,
            # how long it takes together with others is not known
            str(about["device"]) if settings.worker is None else "",
        ) as advance,
        _writing_behind(writer) as write,
    ):
        for done in job.compute(writer.mine(batches, advance), advance):
            halved = halved_to(job.calls)
            computed = {**about, "halved_to": halved.get("", halved)} if halved else about
            write(done, computed)
            count += len(done.batch.keys)
        write.wait()
        writer.flush()
    return count


class _Writing:
    """Passes results to the writer in a separate thread, at most a few batches behind."""

    def __init__(self, writer: SetWriter, pool: ThreadPoolExecutor) -> None:
        self._writer, self._pool = writer, pool
        self._pending: list[Future[None]] = []

    def __call__(self, done: Computed, computed: dict[str, Any]) -> None:
        arguments = done.keys, done.rows, done.failed, computed, done.batch.block
        self._pending.append(self._pool.submit(self._writer.add, *arguments))
        while len(self._pending) > self._writer.ahead:
            self._pending.pop(0).result()

    def wait(self) -> None:
        for future in self._pending:
            future.result()


@contextmanager
def _writing_behind(writer: SetWriter) -> Iterator[_Writing]:
    with ThreadPoolExecutor(max_workers=1) as pool:
        yield _Writing(writer, pool)
