"""How many threads of the processor PyTorch computes with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def threads_here() -> int:
    """As many as OMP_NUM_THREADS or the cores have it."""
    import torch

    return torch.get_num_threads()


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Compute with ``count`` threads, and with as many as before afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
