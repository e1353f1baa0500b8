"""How many CPU threads PyTorch uses."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

OMP = "OMP_NUM_THREADS"
"""Variable with the number, which PyTorch reads when it is imported."""


def compute_with(threads: int | None) -> None:
    """Use this many threads in this process, and in those that it starts; None: as it is."""
    if threads is None:
        return
    from threadpoolctl import threadpool_limits

    os.environ[OMP] = str(threads)
    threadpool_limits(threads)  # of what is loaded already, such as NumPy's BLAS
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def threads_here() -> int:
    """The current number, set by OMP_NUM_THREADS or the number of cores."""
    import torch

    return torch.get_num_threads()


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Use ``count`` threads, then restore the previous number."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
