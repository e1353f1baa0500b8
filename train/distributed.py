"""Several processes that train one run together: what they tell each other, and tensors.

`torchrun` or `accelerate launch` starts them and passes each its number in environment variables.
Objects and CPU tensors go over gloo, GPU tensors over NCCL. Only process 0 owns the run's folder.
When a process fails or is lost, the others end (`sightline.machine.signals.one_of_several`), and
the same command resumes from the last checkpoint.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

from sightline.devices import of_several_processes, pick_device, rank_and_count, use_device
from sightline.errors import LostProcess, SightlineError
from sightline.machine.out_of_memory import is_out_of_memory

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

ARRIVAL_LIMIT = 300.0
"""Seconds in which all processes of a run must have started."""
COLLECTIVE_LIMIT = 3600.0
"""Seconds that one process waits for the others within a run; they wait for dev scores, too."""
_groups = itertools.count()  # of this process; the keys of an earlier one stay in the store

T = TypeVar("T")


class Processes:
    """The processes of one run, as seen by one of them; without arguments, it is the only one.

    Whatever waits for the others raises `LostProcess` if one of them has ended.

    Attributes:
        rank: number of this process, from 0.
        count: of all.
    """

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count

    @property
    def is_main(self) -> bool:
        """Whether this process owns the run's folder and reports its progress."""
        return self.rank == 0

    def device(self, name: str) -> torch.device:
        """The device called ``name``; each of several processes on a machine has its own GPU."""
        if self.count == 1:
            return use_device(name)
        import torch

        if name == "mps":
            raise SightlineError(
                "several processes train on CPUs or on CUDA devices, not on mps; use --device cpu, "
                "or one process"
            )
        if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
            return torch.device("cpu")
        number = int(os.environ.get("LOCAL_RANK", self.rank))
        if torch.cuda.is_available() and number >= torch.cuda.device_count():
            raise SightlineError(
                f"process {self.rank} is number {number} on this machine, which has "
                f"{torch.cuda.device_count()} CUDA devices; start as many processes as there are "
                "devices, or train with --device cpu"
            )
        device = pick_device(f"cuda:{number}")
        torch.cuda.set_device(device)
        return device

    def shares(self, rows: int) -> list[range]:
        """Which of the ``rows`` of a batch each process encodes."""
        from train.gradient_cache import split

        return split(range(rows), self.count)

    # ---- objects --------------------------------------------------------------------------------

    def gather_objects(self, item: T) -> list[T]:
        """The ``item`` of every process, by rank."""
        if self.count == 1:
            return [item]
        import torch.distributed as dist

        items: list[Any] = [None] * self.count
        with _waiting():
            dist.all_gather_object(items, item)
        return items

    def on_main(self, act: Callable[[], T]) -> T:
        """What ``act``, without any exchange, returns in process 0, which alone calls it.

        Raises:
            Exception: in process 0, what ``act`` raised; the others lose it then.
        """
        if self.count == 1:
            return act()
        import torch.distributed as dist

        results: list[Any] = [act() if self.is_main else None]
        with _waiting():
            dist.broadcast_object_list(results, src=0)
        return results[0]

    # ---- tensors --------------------------------------------------------------------------------

    def all_reduce_max(self, number: int) -> int:
        """The largest number that any process has."""
        if self.count == 1:
            return number
        import torch
        import torch.distributed as dist

        numbers = torch.tensor([number])
        with _waiting():
            dist.all_reduce(numbers, dist.ReduceOp.MAX)
        return int(numbers)

    def gather_blocks(
        self, local: Mapping[str, Tensor], sizes: Mapping[str, Sequence[int]]
    ) -> dict[str, Tensor]:
        """The rows [views, n, d] of every process, by rank: [views, Σ sizes, d], without a graph.

        Args:
            local: name of a block → its rows in this process.
            sizes: name of a block → n of every process.
        """
        if self.count == 1:
            return dict(local)
        import torch
        import torch.distributed as dist

        shapes = [
            [(rows.shape[0], sizes[name][rank], rows.shape[2]) for name, rows in local.items()]
            for rank in range(self.count)
        ]
        lengths = [[prod(shape) for shape in of_rank] for of_rank in shapes]
        flat = torch.cat([rows.reshape(-1) for rows in local.values()])
        padded = flat.new_zeros(max(map(sum, lengths)))
        padded[: len(flat)] = flat
        gathered = [torch.empty_like(padded) for _ in lengths]
        with _waiting():
            dist.all_gather(gathered, padded)
        of_ranks = [
            [part.view(shape) for part, shape in zip(got[: sum(n)].split(n), of, strict=True)]
            for got, n, of in zip(gathered, lengths, shapes, strict=True)
        ]
        blocks = (torch.cat(parts, dim=1) for parts in zip(*of_ranks, strict=True))
        return dict(zip(local, blocks, strict=True))

    def add_gradients(self, module: nn.Module, whole: nn.Module) -> None:
        """Replace every gradient of ``module`` with its sum over all processes.

        A missing gradient counts as 0 if another process has one; if none has, it stays missing.
        One tensor of each dtype is exchanged: the gradients, and how many processes have each.

        Args:
            whole: every process has its whole gradient, and takes that of process 0.
        """
        if self.count == 1:
            return
        import torch
        import torch.distributed as dist

        for parameter in () if self.is_main else whole.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        both = (parameter for part in (module, whole) for parameter in part.parameters())
        with _waiting(), torch.no_grad():
            for group in _by_dtype(parameter for parameter in both if parameter.requires_grad):
                has_gradient = group[0].new_tensor(
                    [parameter.grad is not None for parameter in group]
                )
                gradients = [
                    torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                    for parameter in group
                ]
                flat = torch.cat([tensor.reshape(-1) for tensor in [*gradients, has_gradient]])
                dist.all_reduce(flat)
                *sums, owners = flat.split([tensor.numel() for tensor in [*group, has_gradient]])
                for parameter, total, count in zip(group, sums, owners.tolist(), strict=True):
                    parameter.grad = total.view_as(parameter) if count else None

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite ``tensors`` with those of process 0, as one tensor of each dtype."""
        if self.count == 1:
            return
        import torch
        import torch.distributed as dist

        with _waiting(), torch.no_grad():
            for group in _by_dtype(tensors):
                flat = torch.cat([tensor.reshape(-1) for tensor in group])
                dist.broadcast(flat, 0)
                parts = flat.split([tensor.numel() for tensor in group])
                for tensor, part in zip(group, parts, strict=True):
                    tensor.copy_(part.view_as(tensor))


def _by_dtype(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return list(groups.values())


@contextmanager
def joined(device: str) -> Iterator[Processes]:
    """The processes that the environment describes, for one run; only this one without any.

    At the end the connections break, so that the others notice at once that this one has ended.

    Args:
        device: `auto`, `cpu` or `cuda`, where all of them train.

    Raises:
        SightlineError: some did not start in time, or the environment is incomplete.
    """
    if not of_several_processes():
        yield Processes()
        return
    import torch
    import torch.distributed as dist
    from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]

    if dist.is_initialized():
        raise SightlineError(
            "this process already has a torch.distributed group; a training run creates its own, "
            "so call it before you create yours, or without one"
        )
    rank, count = rank_and_count(os.environ) or (0, 1)
    backend = "gloo"
    if device.partition(":")[0] in ("auto", "cuda") and torch.cuda.is_available():
        # waiting for a lost process raises an error instead of ending this process
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
        backend = "cpu:gloo,cuda:nccl"
    store = PrefixStore(f"sightline/{next(_groups)}", _store())
    limit = timedelta(seconds=COLLECTIVE_LIMIT)
    with _waiting():
        dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=limit)
    lost = False
    try:
        yield Processes(rank, count)
    except LostProcess:
        lost = True
        raise
    finally:
        # a broken group of NCCL may wait for the lost process; its connections end with this one
        if not (lost and backend != "gloo"):
            with suppress(RuntimeError):
                dist.destroy_process_group()


@cache
def _store() -> Store:
    """Where the processes meet, as `env://` says; it stays open, as others may still read it."""
    from torch.distributed.rendezvous import rendezvous

    try:
        return next(rendezvous("env://", timeout=timedelta(seconds=ARRIVAL_LIMIT)))[0]
    except (RuntimeError, ValueError) as error:
        raise SightlineError(
            f"the processes of this run did not meet within {ARRIVAL_LIMIT:g} s "
            f"({_reason(error)}); start all {os.environ['WORLD_SIZE']} with torchrun or accelerate "
            "launch, and the same MASTER_ADDR and MASTER_PORT, or unset WORLD_SIZE to train in one"
        ) from error


@contextmanager
def _waiting() -> Iterator[None]:
    """Wraps an exchange: PyTorch has no specific error for a lost peer of gloo."""
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise LostProcess(
            f"another process of this run has ended ({_reason(error)}); check its output, "
            "and rerun the same command to resume from the last checkpoint"
        ) from error


def _reason(error: Exception) -> str:
    """PyTorch's message, without the place in its source and its advice."""
    return re.sub(r"^\[\S+:\d+\] ", "", str(error).strip()).split("\n")[0].split(". ")[0]
