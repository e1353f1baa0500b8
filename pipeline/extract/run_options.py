"""How one run fills a set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.extract.worker_number import WorkerNumber


@dataclass(frozen=True)
class RunOptions:
    """How one run fills a set; no row depends on it.

    Attributes:
        worker: this worker among those that fill the set together; None: the only one.
        retry_failed: compute failed rows again.
        dry_run: only say which rows are there and which are to do; write nothing.
        copy_from: folder of other sets; rows with the same fingerprint are copied.
    """

    worker: WorkerNumber | None = None
    retry_failed: bool = False
    dry_run: bool = False
    copy_from: Path | None = None
