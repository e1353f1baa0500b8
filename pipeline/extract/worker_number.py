"""Which of several workers this process is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sightline.devices import rank_and_count
from sightline.errors import SightlineError

_LAUNCHERS = {"RANK": "WORLD_SIZE", "SLURM_PROCID": "SLURM_NTASKS"}
"""What launchers set in each process: its number and how many there are; the innermost first."""


@dataclass(frozen=True)
class WorkerNumber:
    """Worker ``index`` of ``count``, from 0."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> WorkerNumber:
        """From ``i/n``.

        Raises:
            SightlineError: invalid format, or no such worker.
        """
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text, re.ASCII)
        if match is None or int(match[1]) >= int(match[2]):
            raise SightlineError(
                f"worker {text!r}: expected i/n with i from 0 to n - 1, such as 0/4 for the first "
                "of four"
            )
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> WorkerNumber:
        """From the variables of `torchrun` (RANK, WORLD_SIZE) or `srun` (SLURM_PROCID, …)."""
        for number, count in _LAUNCHERS.items():
            if told := rank_and_count(environment, number, count):
                return cls(*told)
        pairs = " nor ".join(f"{number} and {count}" for number, count in _LAUNCHERS.items())
        raise SightlineError(
            f"neither {pairs} are set; start the command with srun or torchrun, or give "
            "--worker I/N"
        )

    @property
    def pair(self) -> tuple[int, int]:
        """Both numbers, as `SetWriter` takes them."""
        return self.index, self.count

    def __str__(self) -> str:
        return f"worker {self.index}/{self.count}"
