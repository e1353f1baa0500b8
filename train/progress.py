"""What a run shows while it trains, and how a signal ends it: after the step, with a checkpoint."""

from __future__ import annotations

import signal
import sys
import threading
import time
from datetime import timedelta
from types import FrameType, TracebackType
from typing import Any

import torch
from rich.progress import Progress

from sightline.devices import device_name, runs_ahead
from sightline.machine.progress import FirstLine, Say, bar_of, to_stderr
from train.loop import Callback
from train.model import Student
from train.records import DEV, RunState

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 2.0
"""Seconds after which a second signal ends the run at once; `timeout` sends its own twice."""


class ProgressReport(Callback):
    """A bar with rate and time left on a terminal; a plain line for each log entry elsewhere."""

    def __init__(self, label: str, say: Say | None = None) -> None:
        self.label = label
        self._say = say
        self._bar: Progress | None = None
        self._started = 0.0
        self._first_step = 0
        self._first: FirstLine | None = None
        self._device = torch.device("cpu")

    def begin(self, state: RunState, model: Student) -> None:
        self._started, self._first_step = time.monotonic(), state.step
        self._device = next(model.parameters()).device
        left, where = state.steps - state.step, device_name(self._device)
        self._first = FirstLine(self.label, left, "steps", where, "dev scores")
        if self._say is None and sys.stderr.isatty():
            self._bar = bar_of(self.label, state.steps, state.step)
            self._bar.start()

    def step(self, state: RunState) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=state.step)
        if self._first is None or self._first.announced:
            return
        if runs_ahead(self._device):
            torch.cuda.synchronize(self._device)
        if line := self._first(state.step - self._first_step):
            self._tell(line)

    def log(self, state: RunState, entry: dict[str, float]) -> None:
        note = f"dev {entry[DEV]:.2f}" if DEV in entry else f"loss {entry['loss']:.4f}"
        rate = entry.get("sentences_per_second")
        speed = "" if rate is None else f"{rate:.0f} sentences/s"
        if self._bar is not None:
            task = self._bar.tasks[0]
            self._bar.update(task.id, note=note, rate=speed or task.fields["rate"])
            return
        parts = [f"{self.label}: step {state.step}/{state.steps}", note, speed]
        if "loss" in entry:
            done, left = state.step - self._first_step, state.steps - state.step
            seconds = (time.monotonic() - self._started) / done * left
            parts.append(f"{timedelta(seconds=round(seconds))} left")
        self._tell("  ".join(part for part in parts if part))

    def end(self, state: RunState) -> None:
        self.close()

    def close(self) -> None:
        """Remove the bar; safe to call more than once."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _tell(self, line: str) -> None:
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            (self._say or to_stderr)(line)


class StopAtStep(Callback):
    """Ends training after the step in which a signal arrived, with a checkpoint of that step.

    ```python
    stop = StopAtStep()
    with stop:
        Loop(..., callbacks=[stop]).run()
    ```
    Inside the block signals are only recorded. When the block ends, the previous handlers are
    restored and the signal is delivered to them: the caller of the training decides what it means.
    Several processes all end after the same step, with the signal that one of them received.

    Attributes:
        received: number of the signal that arrived, or None.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._asked_at = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopAtStep:
        if threading.current_thread() is threading.main_thread():
            self._before = {
                number: signal.signal(number, self._ask)
                for number in SIGNALS
                if signal.getsignal(number) is not signal.SIG_IGN  # in a background job
            }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.restore()
        if self.received is not None and error is None:
            signal.raise_signal(self.received)

    def step(self, state: RunState) -> None:
        if self.received is not None:
            state.should_stop, state.signal = True, self.received

    def end(self, state: RunState) -> None:
        if state.signal:  # another process may have received it
            self.received = state.signal

    def restore(self) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self._asked_at = number, time.monotonic()
        elif time.monotonic() - self._asked_at > PATIENCE:
            self.restore()
            signal.raise_signal(number)
