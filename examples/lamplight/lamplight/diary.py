"""Keeps what a run is and its dev scores in one text file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accelerate.tracking import GeneralTracker


class Diary(GeneralTracker):
    """Appends lines to `diary.txt`."""

    name = "diary"
    requires_logging_directory = True

    def __init__(self, run: str, folder: Path) -> None:
        self.run, self.tracker = run, folder / "diary.txt"
        super().__init__()  # which looks for `tracker`

    def start(self) -> None:
        self.tracker.parent.mkdir(exist_ok=True)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self._write(f"{self.run} learns {values['objective']} at {values['train.learning_rate']}")

    def log(self, values: dict[str, float], step: int | None = None, **_: Any) -> None:
        if "dev" in values:
            self._write(f"step {step}: {values['dev']:.2f}")

    def finish(self) -> None:
        self._write("until here")

    def _write(self, line: str) -> None:
        with self.tracker.open("a") as file:
            file.write(f"{line}\n")
