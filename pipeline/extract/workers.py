"""Workers of one command: a process on each device of this machine, or tasks of a Ray cluster.

Each of them runs the same command with its own `--worker I/N`. Nothing is sent between them: they
share the blocks of one plan through the run folder (`sightline.cache.writer`), where this
process counts what is done.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.extract.children import Child, Ended, of_worker, stop
from pipeline.extract.worker_number import WorkerNumber
from pipeline.machine import Machine
from sightline.cache.plan import rows_done
from sightline.devices import threads_here
from sightline.errors import SightlineError
from sightline.machine.progress import progress, to_stderr
from sightline.machine.signals import Stopped

_MODULE = "pipeline.cli"  # takes the words of a command
_POLL = 0.5  # seconds
_GRACE = 10.0  # seconds in which workers that fail for one reason do so
_OWN = ("--worker", "--devices", "--engine", "--threads")
"""Options of which each worker has its own values."""


def run_workers(
    words: Sequence[str],
    machine: Machine,
    sets: Sequence[Path],
    *,
    worker: WorkerNumber | None = None,
) -> str:
    """Run one command once for each worker that ``machine`` asks for, all at the same time.

    A signal is passed on to all. A worker that is killed is started again.

    Args:
        words: of the `sightline` command, which takes `--worker`: ``["extract", "image", …]``.
        machine: the devices or the cluster, and the CPU threads of each worker.
        sets: the folders that it fills, for the progress.
        worker: if this process itself is worker i of n, its k are workers i·k to i·k + k − 1 of
            n·k.

    Returns:
        What the worker that was the last to print did: it has published the set.

    Raises:
        SightlineError: workers failed, once the others have done their work or failed too; a
            device is absent; the cluster does not answer.
        Stopped: by a signal, after the workers have saved.
    """
    threads = machine.threads or threads_here()
    command = [_MODULE, *_without_options(words), "--threads", str(threads)]
    if machine.on_cluster and worker is not None:
        raise SightlineError(
            f"{worker}: Ray numbers its own workers; leave out --worker, or use --engine local"
        )
    watch = Watch(sets)
    if machine.on_cluster:
        from pipeline.extract.ray_cluster import on_ray

        every = watch.until_all_ended(on_ray(command, machine, threads, watch))
    else:
        ends = _on_devices(command, machine.devices, worker or WorkerNumber(0, 1), watch)
        every = watch.until_all_ended(ends)
    failed = list(dict.fromkeys(end.error for end in every if end.error))
    if not failed:
        return max(every, key=lambda end: end.when).printed
    if any(not end.error for end in every):
        failed.append(
            "What the other workers computed is kept; rerun the same command to resume."
            if any(rows_done(folder) for folder in sets)
            else "The other workers went on, and the set is published; rerun the same command to "
            "check that nothing is left."
        )
    raise SightlineError("\n".join(failed))


def _without_options(words: Sequence[str]) -> list[str]:
    """``words`` without the options of which each worker has its own values."""
    kept: list[str] = []
    left = iter(words)
    for word in left:
        option, equals, _ = word.partition("=")
        if option not in _OWN:
            kept.append(word)
        elif not equals:
            next(left, None)  # its value
    return kept


class Watch:
    """Shows how many rows are done, and what the workers say, each line once.

    Attributes:
        done: rows that are done.
    """

    def __init__(self, sets: Sequence[Path]) -> None:
        self._sets = sets
        self._folder: Path | None = None
        self.done = self._total = 0
        self._lines: set[str] = set()
        self._stack = ExitStack()

    def until_all_ended(self, ends: Generator[Ended | None]) -> list[Ended]:
        """Look on until all workers have ended.

        Args:
            ends: the workers that have ended, as they do, and None every moment. Closing it ends
                those that are left.
        """
        every: list[Ended] = []
        failed: list[tuple[float, Ended]] = []
        try:
            with closing(ends):
                for end in ends:
                    if end is not None:
                        every.append(end)
                    if end is not None and end.error:
                        failed.append((time.monotonic(), end))
                    self._look()
                    while failed and time.monotonic() - failed[0][0] > _GRACE:
                        _, early = failed.pop(0)
                        reason = early.error.splitlines()[-1]
                        to_stderr(f"{early.name} failed; the others go on: {reason}")
        except Stopped as stop:
            self._look()
            stop.add_note(self._kept())
            raise
        finally:
            self._stack.close()
        return every

    def say(self, line: str) -> None:
        """Show a line of a worker, unless another one has said it."""
        if line not in self._lines:
            self._lines.add(line)
            to_stderr(line)

    def _look(self) -> None:
        """Count the rows that are done, and show it."""
        for folder in self._sets:
            if (rows := rows_done(folder)) is None:
                continue
            done, total = rows
            if folder != self._folder:
                self._stack.close()
                self._folder, self.done, self._total = folder, done, total
                show = progress(folder.as_posix(), total, "rows", done)
                self._advance = self._stack.enter_context(show)
            self._advance(max(0, done - self.done))
            self.done = max(done, self.done)
            break

    def _kept(self) -> str:
        if self._folder is None:
            return "nothing was computed yet; rerun the same command"
        return (
            f"{self._folder}: {self.done:,} of {self._total:,} rows are done and kept; rerun the "
            "same command to resume"
        )


def _on_devices(
    command: Sequence[str], devices: Sequence[str], outer: WorkerNumber, watch: Watch
) -> Generator[Ended | None]:
    from sightline.devices import pick_device

    for device in devices:
        pick_device(device)
    count, left = len(devices), list[Child]()
    with TemporaryDirectory(prefix="sightline-") as folder:
        try:
            for index, device in enumerate(devices):
                worker = WorkerNumber(outer.index * count + index, outer.count * count)
                words = of_worker(command, worker, device)
                left.append(Child(f"{worker} on {device}", words, Path(folder, str(index))))
            while left:
                time.sleep(_POLL)
                for child in list(left):
                    exited = child.process.poll() is not None
                    for line in child.lines():
                        watch.say(line)
                    if exited and not child.restarts():
                        left.remove(child)
                        yield child.ended()
                yield None
        finally:
            stop(left)
