"""One of several workers that fill a set together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sightline.errors import SightlineError

_LAUNCHERS = {"RANK": "WORLD_SIZE", "SLURM_PROCID": "SLURM_NTASKS"}
"""What launchers set in each process: its number and how many there are; the innermost first."""


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

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> Worker:
        """From the variables of `torchrun` (RANK, WORLD_SIZE) or `srun` (SLURM_PROCID, …).

        Raises:
            SightlineError: there are none, only half of them, or they make no worker.
        """
        for number, count in _LAUNCHERS.items():
            found = {name: environment[name] for name in (number, count) if environment.get(name)}
            if not found:
                continue
            if len(found) < 2:
                (there,) = found
                missing = count if there == number else number
                raise SightlineError(
                    f"{there} is {found[there]!r}, but {missing} is not set; set both, or give "
                    "--worker I/N"
                )
            try:
                return cls.parse("/".join(found.values()))
            except SightlineError as error:
                raise SightlineError(f"{number} and {count}: {error}") from None
        pairs = " nor ".join(f"{number} and {count}" for number, count in _LAUNCHERS.items())
        raise SightlineError(
            f"neither {pairs} are set; start the command with srun or torchrun, or give "
            "--worker I/N"
        )

    def __str__(self) -> str:
        return f"worker {self.index}/{self.count}"
