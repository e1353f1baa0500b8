"""How many processes this machine has room for, and which GPU each of them gets."""

from __future__ import annotations

import os

from sightline.hardware import driver_gpus, memory, processor

_ROOM = 2 << 30  # bytes of memory that a process with PyTorch and a small model takes
VISIBLE = "CUDA_VISIBLE_DEVICES"
JOBS = "SIGHTLINE_JOBS"
"""Variable with the number of processes among which a stage may divide its own work."""


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes."""
    given = os.environ.get(VISIBLE)
    if given is not None:
        names = [name.strip() for name in given.split(",")]
        return names[: names.index("-1")] if "-1" in names else [name for name in names if name]
    return [str(index) for index in range(len(driver_gpus()[1]))]


def jobs_here(gpus: list[str], threads: int | None = None) -> int:
    """One for each of ``gpus``; without, as many as this machine has cores and memory for.

    Args:
        threads: CPU threads of each; None: one.
    """
    given = os.environ.get(JOBS)
    if given:
        return int(given)
    if gpus:
        return len(gpus)
    count, free = cores() // (threads or 1), memory().free
    return max(1, count if free is None else min(count, free // _ROOM))


def cores() -> int:
    """The cores that this process may keep busy."""
    found = processor()
    return found.usable if found.quota is None else max(1, min(found.usable, round(found.quota)))


def gpu_of(gpus: list[str], index: int) -> dict[str, str]:
    """The environment of job ``index``: one of ``gpus``, in turn; empty if there are none."""
    return {VISIBLE: gpus[index % len(gpus)]} if gpus else {}
