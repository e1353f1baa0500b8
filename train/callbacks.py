"""What a run shows and writes down while it trains: progress, and dvclive's curves."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

Say = Callable[[str], None]

_UNPLOTTED = {"epoch", "step", "total_flos"}
_FINAL = "train_"  # what Trainer logs once at the end; its figures count skipped steps
DEV = "dev"
"""Name of the dev score in a log entry (Spearman's ρ × 100)."""


class DVCLiveCallback(TrainerCallback):
    """Writes every log entry to ``<folder>/plots/metrics/**.tsv`` and ``<folder>/metrics.json``.

    On a resume the curves are written again from the log that the checkpoint holds, so a step that
    was trained twice appears once.
    """

    def __init__(self, folder: Path, claim: Callable[[Path], None] = lambda _: None) -> None:
        self.folder = folder
        self._claim = claim  # told each file before it is first written
        self._live: Any = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        from dvclive.live import Live  # imports DVC, which takes a second

        self._claim(self.folder / "metrics.json")
        # without `resume` it would empty the folder, whoever's the files are
        self._live = Live(dir=str(self.folder), resume=True, save_dvc_exp=False, dvcyaml=False)
        for entry in state.log_history:
            self._write(int(entry["step"]), entry)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if self._live is not None:
            self._write(state.global_step, logs or {})

    def close(self) -> None:
        """Finish the files; safe to call more than once."""
        if self._live is not None:
            self._live.end()
            self._live = None

    def _write(self, step: int, logs: Mapping[str, Any]) -> None:
        values = {k: v for k, v in logs.items() if k not in _UNPLOTTED and not k.startswith(_FINAL)}
        if not values:
            return
        self._live.step = step
        for name, value in values.items():
            self._claim(self.folder / "plots" / "metrics" / f"{name}.tsv")
            self._live.log_metric(name, float(value))
        self._live.make_summary()


class ProgressReport(TrainerCallback):
    """A bar with rate and time left on a terminal; a plain line for each log entry elsewhere."""

    def __init__(self, label: str, say: Say | None = None) -> None:
        self.label = label
        self._console = Console(stderr=True)
        self._say = say
        self._bar: Progress | None = None
        self._started = 0.0
        self._first_step = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._started, self._first_step = time.monotonic(), state.global_step
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
                total=state.max_steps,
                completed=state.global_step,
                rate="",
                note="",
            )
            self._bar.start()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        logs = logs or {}
        if DEV in logs:
            note = f"dev {logs[DEV]:.2f}"
        elif "loss" in logs:
            note = f"loss {logs['loss']:.4f}"
        else:
            return
        rate = logs.get("sentences_per_second")
        speed = "" if rate is None else f"{rate:.0f} sentences/s"
        if self._bar is not None:
            task = self._bar.task_ids[0]
            if speed:
                self._bar.update(task, note=note, rate=speed)
            else:
                self._bar.update(task, note=note)
            return
        parts = [f"{self.label}: step {state.global_step}/{state.max_steps}", note, speed]
        if "loss" in logs:
            parts.append(f"{self._time_left(state)} left")
        (self._say or to_stderr)("  ".join(part for part in parts if part))

    def close(self) -> None:
        """Take the bar away; safe to call more than once."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _time_left(self, state: TrainerState) -> timedelta | str:
        done = state.global_step - self._first_step
        if done <= 0:
            return "?"
        seconds = (time.monotonic() - self._started) / done * (state.max_steps - state.global_step)
        return timedelta(seconds=round(seconds))


def to_stderr(line: str) -> None:
    """Print one line of progress."""
    print(line, file=sys.stderr, flush=True)
