"""What a run shows while it trains: a progress bar, or lines."""

from __future__ import annotations

import time
from datetime import timedelta

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sightline.devices import device_name, runs_ahead
from sightline.progress import FirstLine, Say, to_stderr
from train.loop import Callback, LoopState
from train.model import GroundedModel
from train.records import DEV


class ProgressReport(Callback):
    """A bar with rate and time left on a terminal; a plain line for each log entry elsewhere."""

    def __init__(self, label: str, say: Say | None = None) -> None:
        self.label = label
        self._console = Console(stderr=True)
        self._say = say
        self._bar: Progress | None = None
        self._started = 0.0
        self._first_step = 0
        self._first: FirstLine | None = None
        self._device = torch.device("cpu")

    def begin(self, state: LoopState, model: GroundedModel) -> None:
        self._started, self._first_step = time.monotonic(), state.step
        self._device = next(model.parameters()).device
        left, where = state.steps - state.step, device_name(self._device)
        self._first = FirstLine(self.label, left, "steps", where, "dev scores")
        if self._say is None and self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}", markup=False),
                console=self._console,
            )
            self._bar.add_task(
                self.label,
                total=state.steps,
                completed=state.step,
                rate="",
                note="",
            )
            self._bar.start()

    def step(self, state: LoopState) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=state.step)
        if self._first is None or self._first.said:
            return
        if runs_ahead(self._device):
            torch.cuda.synchronize(self._device)
        if line := self._first(state.step - self._first_step):
            self._tell(line)

    def log(self, state: LoopState, entry: dict[str, float]) -> None:
        if DEV in entry:
            note = f"dev {entry[DEV]:.2f}"
        elif "loss" in entry:
            note = f"loss {entry['loss']:.4f}"
        else:
            return
        rate = entry.get("sentences_per_second")
        speed = "" if rate is None else f"{rate:.0f} sentences/s"
        if self._bar is not None:
            task = self._bar.task_ids[0]
            if speed:
                self._bar.update(task, note=note, rate=speed)
            else:
                self._bar.update(task, note=note)
            return
        parts = [f"{self.label}: step {state.step}/{state.steps}", note, speed]
        if "loss" in entry:
            parts.append(f"{self._time_left(state)} left")
        self._tell("  ".join(part for part in parts if part))

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

    def _time_left(self, state: LoopState) -> timedelta | str:
        done = state.step - self._first_step
        if done <= 0:
            return "?"
        seconds = (time.monotonic() - self._started) / done * (state.steps - state.step)
        return timedelta(seconds=round(seconds))
