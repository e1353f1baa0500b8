"""One of several workers that fill a set together."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sightline.errors import SightlineError


@dataclass(frozen=True)
class Worker:
    """Worker ``index`` of ``count``, from 0."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Worker:
        """From ``i/n``.

        Raises:
            SightlineError: invalid format, or no such worker.
        """
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text, re.ASCII)
        if found is None:
            raise SightlineError(
                f"worker {text!r}: expected i/n, such as 0/4 for the first of four"
            )
        worker = cls(int(found[1]), int(found[2]))
        if worker.index >= worker.count:
            raise SightlineError(
                f"worker {text}: does not exist; the {worker.count} workers are numbered 0/"
                f"{worker.count} to {max(worker.count - 1, 0)}/{worker.count}"
                if worker.count
                else f"worker {text}: expected at least one worker, such as 0/1"
            )
        return worker

    def __str__(self) -> str:
        return f"worker {self.index}/{self.count}"
