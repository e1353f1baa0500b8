"""What a run would compute, write and take: its own plan, and a probe of a few of its batches."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.cache.plan import Batch
from pipeline.cache.table_writer import TableSetWriter
from pipeline.extract import machine
from pipeline.extract.account import SetSummary
from pipeline.extract.memory import halved_to
from pipeline.extract.runner import Job, RunSettings
from sightline.files import free_bytes
from sightline.hardware import cpu_warning
from sightline.planning import (
    PROBE_PIECES,
    Planned,
    Planning,
    Timing,
    WorkPlan,
    in_bytes,
    measure,
    spread,
)
from sightline.threads import using_threads

_CALLS = 4
"""Calls of a model in a batch of a probe, where a batch of the plan is more than one."""


def plan_job(job: Job, settings: RunSettings, planning: Planning) -> SetSummary:
    """Add the plan of a run to ``planning``, without writing anything.

    Returns:
        The summary of a run with nothing to do, so that what follows it can be planned too.

    Raises:
        Planned: there is something to do.
        SightlineError: as `pipeline.extract.runner.run` before it computes.
    """
    writer = job.writer
    with writer.looked_at():
        batches = job.plan()
        left = sum(len(batch.keys) for batch in batches)
        timing, rows, remarks = None, [], []
        if planning.probes(writer.folder, left):
            timing, rows = _probe(job, batches, planning)
            if halved := halved_to(job.calls):
                remarks.append(f"out of memory, so at most {min(halved.values())} at a time")
        if writer.replaces:
            remarks.append(f"everything is recomputed: {'; '.join(writer.replaces)}")
        remarks += writer.repaired
        if writer.copied_rows:
            remarks.append(f"{writer.copied_rows:,} are copied from disk")
        if settings.worker is not None:
            remarks.append(f"shared by {settings.worker.count} workers")
        if left and (warning := cpu_warning(settings.device)):
            remarks.append(f"warning: {warning}")
        added = left + writer.copied_rows
        sizes = writer.bytes_of(added) or _like(rows, added)
        if sizes and sizes[1] > (free := free_bytes(writer.run_folder)):
            remarks.append(
                f"warning: the disk needs {in_bytes(sizes[1])} and has {in_bytes(free)} free"
            )
        record = writer.published
        done = not added and record is not None and not writer.resumed_rows
        planning.found.append(
            WorkPlan(
                out=writer.folder.as_posix(),
                unit=job.unit,
                there=writer.wanted_rows - added,
                left=left,
                write_bytes=sizes[0] if sizes else None,
                room_bytes=sizes[1] if sizes else None,
                device=str(machine.described(settings.device)["device"]),
                seconds=_seconds(job, batches, timing, settings),
                remarks=tuple(remarks),
            )
        )
    if not done:
        raise Planned
    words, failed, _, more = job.contents(record)
    return SetSummary(job.writer.folder, record, words, 0, 0, 0, failed, 0.0, job.unit, {}, more)


def _probe(
    job: Job, batches: Sequence[Batch], planning: Planning
) -> tuple[Timing, list[Mapping[str, pa.Table]]]:
    """Compute a few batches and drop the results; returns the tables among them."""
    chosen = [_cut(job, batches[i]) for i in spread(len(batches), PROBE_PIECES)]
    tables: list[Mapping[str, pa.Table]] = []

    def pieces() -> Generator[float]:
        computed: Any = job.compute(iter(chosen), lambda _: None)
        with closing(computed):
            for done in computed:
                if _by_tables(job):
                    tables.append(done.rows)
                yield _weight(job, done.batch)

    with using_threads(job.writer.shape.threads), closing(pieces()) as work:
        return measure(work, clock=planning.clock), tables


def _by_tables(job: Job) -> bool:
    """Whether a batch is a block of tables, not the padded input of one call."""
    return isinstance(job.writer, TableSetWriter)


def _cut(job: Job, batch: Batch) -> Batch:
    """``batch``, with no more rows than a few calls take."""
    if not _by_tables(job):
        return batch
    return replace(batch, keys=batch.keys[: _CALLS * job.batch_size()])


def _weight(job: Job, batch: Batch) -> float:
    """What time is proportional to: rows of tables; else tokens of a padded batch, or batches."""
    return float(len(batch.keys) if _by_tables(job) else max(batch.length, 1))


def _seconds(
    job: Job, batches: Sequence[Batch], timing: Timing | None, settings: RunSettings
) -> float | None:
    """Seconds for ``batches``, which the workers share; 0 without any, None without a probe."""
    if not batches:
        return 0.0
    if timing is None:
        return None
    workers = 1 if settings.worker is None else settings.worker.count
    return timing.seconds(sum(_weight(job, batch) for batch in batches) / workers)


def _like(sample: Sequence[Mapping[str, pa.Table]], rows: int) -> tuple[int, int] | None:
    """Bytes of ``rows`` units like those of a probe, in the set and in the room; None without."""
    units = size = held = 0
    for tables in sample:
        units += next(iter(tables.values())).num_rows
        for table in tables.values():
            sink = pa.BufferOutputStream()
            pq.write_table(table, sink, compression="zstd")
            size, held = size + sink.getvalue().size, held + table.nbytes
    if not units:
        return None
    return round(size * rows / units), round((size + held) * rows / units)
