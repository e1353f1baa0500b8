"""How many CPU threads PyTorch uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


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
