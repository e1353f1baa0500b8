"""Work that notes its processor time, in whatever process it runs."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.extract.account import SetSummary
from pipeline.extract.engine import Work
from pipeline.extract.runner import Invocation


@dataclass(frozen=True)
class Timed:
    """``work``, with the processor time of each process in a file of ``folder``, in seconds."""

    work: Work
    folder: Path

    def __call__(self, how: Invocation) -> SetSummary:
        start = time.process_time()
        summary = self.work(how)
        taken = time.process_time() - start
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / str(os.getpid())).write_text(str(taken))
        return summary

    def seconds(self) -> float:
        """Processor time of all processes so far."""
        return sum(float(path.read_text()) for path in self.folder.iterdir())
