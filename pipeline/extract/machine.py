"""The machine that computes: for the plan, where rows may depend on it, and for the record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def threads_here() -> int:
    """Threads of the processor that PyTorch uses, as OMP_NUM_THREADS or the cores have it."""
    import torch

    return torch.get_num_threads()


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Compute with ``count`` threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def code_version() -> str:
    """Versions of what computes; workers of different ones do not fill one set."""
    from importlib.metadata import version

    return f"sightline {version('sightline')}, torch {version('torch')}"


def described(device: str) -> dict[str, str | int]:
    """Device and library version, for the record; they do not enter the fingerprint."""
    import torch

    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    return {"device": name, "torch": torch.__version__}
