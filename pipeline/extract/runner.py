"""Fill a set, whatever its rows are: plan, compute, write, publish, and say what was done."""

from __future__ import annotations

import errno
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.extract.code_change import changed_code, keep_if_equal
from pipeline.extract.failed_rows import check_failures, named_failures
from pipeline.extract.run_options import RunOptions
from pipeline.extract.services import Service
from pipeline.machine import Machine
from sightline.cache.keys import Keys
from sightline.cache.parts import Failure, part_names
from sightline.cache.plan import Batch, Plan
from sightline.cache.record import FeatureSpec, SetRecord, Spec, set_output
from sightline.cache.shards import Numbers, format_of
from sightline.cache.writer import SetWriter
from sightline.devices import (
    allow_open_files,
    device_name,
    pick_device,
    threads_here,
    using_threads,
)
from sightline.errors import BusyError, SightlineError, Transient
from sightline.files.output import run_folder_of
from sightline.files.storage import StorageError
from sightline.machine.hardware import cpu_warning, versions
from sightline.machine.out_of_memory import HalvingCalls
from sightline.machine.progress import progress, to_stderr
from sightline.machine.signals import Stopped
from sightline.wording import in_bytes

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class BatchResult(NamedTuple):
    """The result of a batch.

    Attributes:
        batch: batch of the plan.
        rows: those that did not fail, in order, as the set's writer accepts them.
        failed: key → code, path and reason of each failed row.
    """

    batch: Batch
    rows: Any
    failed: dict[bytes, Failure]


def good_rows(batch: Batch, failed: Mapping[bytes, Failure]) -> list[bool]:
    """Which rows of a batch did not fail."""
    return [key.tobytes() not in failed for key in batch.keys]


Advance = Callable[[int], None]
Compute = Callable[[Iterator[Batch], Advance], Iterable[BatchResult]]
"""Batches, pulled on demand, and a progress callback for finished rows → results."""


@dataclass(frozen=True)
class Job:
    """What a run computes.

    Attributes:
        out: folder of the set.
        spec: what determines its content.
        inputs: files and folders that the rows are computed from; the set must not touch them.
        unit: name of the rows, in the plural.
        keys, batch_size, groups, lengths: as `SetWriter.plan` takes them.
        compute: computes batches.
        describe: the content of a published set in words, then further remarks on it.
        calls: calls of the models.
        options: how the models are run where that changes the last bits of a row; part of the plan
            and of the record.
        cut: number of rows whose texts are longer than the model takes.
        name_of: what a key stands for, such as a file, for a row that cannot be stored.
        needs_device: whether a model computes on this machine.
        service: makes the calls of a model behind an API; each batch is then a block.
    """

    out: Path
    spec: Spec
    inputs: Sequence[Path]
    unit: str
    keys: Keys
    batch_size: int
    compute: Compute
    describe: Callable[[Any], Sequence[str]]
    groups: Keys | None = None
    lengths: np.ndarray | None = None
    calls: Sequence[HalvingCalls] = ()
    options: Sequence[str] = ()
    cut: int | None = None
    name_of: Callable[[bytes], str] = lambda key: ""
    needs_device: bool = True
    service: Service | None = None

    @property
    def halved_to(self) -> dict[str, int]:
        """The reduced number of each model that ran out of memory."""
        return {call.part: call.halved_to for call in self.calls if call.halved_to is not None}


@dataclass(frozen=True)
class SetSummary:
    """What a run did, and the resulting set.

    Attributes:
        folder: folder of the set.
        unit: name of the rows, in the plural.
        record: the published commit point; None while other workers are still active (the last one
            publishes it), and of a dry run.
        holds: description of the set's content.
        computed: rows computed by this run.
        copied: rows copied from another set, or from rows this one had dropped.
        resumed: rows reused from an interrupted run or from other workers.
        failed: failed rows in the whole set.
        seconds: wall time, model loading excluded.
        halved_to: items per call by model (``""`` if there is one), after halving for lack of
            memory.
        remarks: further remarks on the set.
        failures: lines that name some of the failed rows, with their reasons, and the list of all.
        to_do: rows to compute, of a dry run; None: a run.
        bytes_to_write: of a dry run; None: not known.
    """

    folder: Path
    unit: str
    record: SetRecord | None = None
    holds: str = ""
    computed: int = 0
    copied: int = 0
    resumed: int = 0
    failed: int = 0
    seconds: float = 0.0
    halved_to: Mapping[str, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    to_do: int | None = None
    bytes_to_write: int | None = None

    def body(self) -> dict[str, Any]:
        """The summary as a JSON object; of a dry run, what there is to do."""
        body: dict[str, Any] = {"out": self.folder.as_posix(), "copied": self.copied}
        if self.to_do is not None:
            return body | {"to_do": self.to_do, "bytes_to_write": self.bytes_to_write}
        body |= {
            "published": self.record is not None,
            "computed": self.computed,
            "resumed": self.resumed,
            "failed": self.failed,
            "halved_to": self.halved_to,
            "seconds": round(self.seconds, 3),
        }
        if self.record is not None:
            body |= {
                "rows": self.record.rows,
                "fingerprint": self.record.fingerprint,
                "content_digest": self.record.content_digest,
            }
            if isinstance(self.record.spec, FeatureSpec):
                body["untrained"] = self.record.spec.encoder.untrained
        return body

    def __str__(self) -> str:
        parts = [self.holds] if self.holds else []
        if self.to_do is not None:
            parts.append(f"{self.to_do:,} to compute")
            if self.bytes_to_write:
                parts.append(f"{in_bytes(self.bytes_to_write)} to write")
        elif self.computed:
            rate = self.computed / max(self.seconds, 1e-9)
            shown = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
            parts.append(
                f"{self.computed:,} computed in {self.seconds:.1f} s ({shown} {self.unit}/s)"
            )
        else:
            parts.append("nothing to compute")
        if self.copied:
            copied = "copied" if self.to_do is None else "to copy"
            parts.append(f"{self.copied:,} {copied} from disk")
        if self.resumed:
            parts.append(f"{self.resumed:,} reused from an interrupted run or other workers")
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        if self.halved_to:
            sizes = ", ".join(f"{name} {size}".strip() for name, size in self.halved_to.items())
            parts.append(f"batches halved for memory: {sizes}")
        parts += self.remarks
        if self.record is None and self.to_do is None:
            parts.append("other workers are still active; the last one publishes the set")
        return "\n".join([" · ".join(parts), *self.failures])


def run(
    job: Job,
    max_failed: float,
    machine: Machine = Machine(),  # noqa: B008  (frozen)
    options: RunOptions = RunOptions(),  # noqa: B008  (frozen)
    *,
    shard_rows: int | None = None,
) -> SetSummary:
    """Compute what a set lacks, and publish it.

    A worker first computes blocks alongside the others. Then it tries to take over alone: the
    last active worker succeeds, computes what dead workers left, and publishes.

    Args:
        max_failed: fraction of the rows that may fail.
        machine: the device that the models are on, and the CPU threads.
        shard_rows: as `SetWriter.plan` takes them.

    Raises:
        SightlineError: more rows failed than ``max_failed`` allows (good rows are published
            first), no disk space, another plan of other workers, or a service left rows to do.
        BusyError: another run is writing there.
    """
    allow_open_files()
    worker = options.worker
    if record := changed_code(job):
        if options.dry_run:  # as if the rows that are encoded first were equal
            job = replace(job, spec=record.spec)
        else:
            to_stderr(keep_if_equal(job, record, partial(run, max_failed=1.0, machine=machine)))
    writer = SetWriter(job.out, job.spec, job.inputs, worker and worker.pair)
    planned = {
        "lengths": job.lengths,
        "groups": job.groups,
        "batch_size": job.batch_size,
        "rows_per_block": 1 if job.service else None,
        "shard_rows": shard_rows,
        "retry_failed": options.retry_failed,
        "copy_from": options.copy_from,
        "threads": machine.threads or threads_here(),
        "code": ", ".join([code_version(), *job.options]),
    }
    if options.dry_run:
        set_output(job.out, job.inputs, kind=job.spec.kind).check_place()
        return _to_do(job, writer.preview(job.keys, **planned))

    def compute() -> int:
        writer.plan(job.keys, **planned)
        return _compute(job, writer, machine.device if job.needs_device else "cpu")

    start, beside = time.monotonic(), 0
    with _saying_what_is_kept(writer, job.unit), ExitStack() as stack:
        if worker is not None:
            with writer.beside_others():
                beside = compute()
        try:
            stack.enter_context(writer)
        except BusyError:
            if worker is None:
                raise
            return SetSummary(
                writer.folder,
                job.unit,
                holds=str(worker),
                computed=beside,
                seconds=time.monotonic() - start,
                halved_to=job.halved_to,
            )
        computed = beside + compute()
        if job.service is not None and job.service.abandoned is not None:
            raise job.service.abandoned
        counts = writer.counts
        record = writer.publish(cut=job.cut)
    holds, *remarks = job.describe(record)
    summary = SetSummary(
        writer.folder,
        job.unit,
        record,
        holds,
        computed=computed,
        copied=counts.copied,
        resumed=max(counts.resumed - beside, 0),
        failed=record.failed,
        seconds=time.monotonic() - start,
        halved_to=job.halved_to,
        remarks=tuple(remarks),
        failures=named_failures(writer),
    )
    codes = {failure["code"] for failure in writer.failures.values()}
    check_failures(summary, counts.total, max_failed, codes, of_service=job.service is not None)
    return summary


def _to_do(job: Job, plan: Plan) -> SetSummary:
    """What a run would compute, beside any run that is writing there."""
    done = plan.done(part_names(run_folder_of(plan.folder)))
    left = plan.stored.rows - plan.rows_of(done)
    sizes = plan.bytes_to_write(left)
    remarks = [f"recomputing everything because {why}" for why in plan.found_set.replaces]
    return SetSummary(
        plan.folder,
        job.unit,
        holds=f"{len(plan.keys) - left - plan.copied:,} {job.unit} there",
        copied=plan.copied,
        remarks=(*remarks, *plan.lines),
        to_do=left,
        bytes_to_write=sizes and sizes[1],
    )


def _compute(job: Job, writer: SetWriter, device: str) -> int:
    """Compute what is left, or a worker's part of it; returns the number of rows.

    Results are written by a separate thread, at most a few batches behind.
    """
    count, plan = 0, writer.current
    if plan.found_set.replaces:  # said before hours of work
        to_stderr(f"{writer.folder}: recomputing everything because")
    for line in [*plan.found_set.replaces, *writer.repaired]:
        to_stderr(f"  {line}")
    if not writer.rows_left:
        return 0
    for calls in job.calls:
        calls.begin(plan.shape.batch_size, writer.computed_before())
    device = str(pick_device(device))
    if job.needs_device and (warning := cpu_warning(device)):
        to_stderr(f"{writer.folder}: warning: {warning}")
    about = {**described(device), "threads": plan.shape.threads}
    if job.options:
        about["options"] = ", ".join(job.options)
    about["batch_size"] = job.calls[0].begun_with if job.calls else 1
    pending: deque[Future[None]] = deque()
    ahead = 4 if isinstance(format_of(job.spec), Numbers) else 0  # a table's result is a block
    with (
        using_threads(plan.shape.threads),
        progress(
            writer.folder.as_posix(),
            writer.counts.planned,
            job.unit,
            writer.counts.resumed,
            # how long it takes together with others is not known
            str(about["device"]) if writer.worker is None else "",
        ) as advance,
        ThreadPoolExecutor(max_workers=1) as pool,
    ):

        def keep(batch: Batch, rows: Any, failed: dict[bytes, Failure]) -> int:
            halved = job.halved_to
            computed = {**about, "halved_to": halved.get("", halved)} if halved else about
            pending.append(pool.submit(writer.add, batch, rows, failed, computed, job.name_of))
            while len(pending) > ahead:
                pending.popleft().result()
            return len(batch.keys)

        try:
            for result in job.compute(writer.claim(advance), advance):
                count += keep(*result)
        except BaseException:
            for result in job.service.drain() if job.service else ():
                keep(*result)
            raise
        for future in pending:
            future.result()
    return count


def code_version() -> str:
    """Code versions; workers with different ones do not fill one set."""
    installed = versions()  # a clone may run without an installation
    packages = ("sightline", "torch")
    return ", ".join(f"{package} {installed.get(package, 'not installed')}" for package in packages)


def described(device: str) -> dict[str, str | int]:
    """Device and library version, for the record; not part of the fingerprint."""
    import torch

    return {"device": device_name(torch.device(device)), "torch": torch.__version__}


@contextmanager
def _saying_what_is_kept(writer: SetWriter, unit: str) -> Iterator[None]:
    """Report progress and how to resume when a signal, a disk or a service ends the run."""

    def kept() -> str:
        counts = writer.counts
        if not counts.planned:
            return f"{writer.folder}: nothing was started"
        done = f"{counts.durable:,} of {counts.planned:,}"
        return f"{writer.folder}: {done} {unit} are done and kept"

    try:
        yield
    except Stopped as stop:
        stop.add_note(f"{kept()}; rerun the same command to resume")
        raise
    except Transient as error:
        raise SightlineError(
            f"{kept()}, and {writer.rows_left:,} are left to do, since calls were given up: "
            f"{error}. Rerun the same command to ask for those that are left"
        ) from error
    except StorageError as error:
        raise SightlineError(
            f"{kept()}, then: {error}. Once the server answers, rerun the same command to resume"
        ) from error
    except OSError as error:
        remedy = "free some space" if error.errno in _DISK_FULL else "fix this"
        raise SightlineError(
            f"{kept()}, then: {error.strerror or error}. What was published before is intact; "
            f"{remedy} and rerun the same command to resume"
        ) from error
