"""Several processes that train one run together: how they meet, exchange tensors, and end.

They are started by `torchrun` or `accelerate launch`, which pass each its number in environment
variables. Only process 0 owns the run's folder. Messages between the processes go over the CPU
(gloo), GPU tensors over NCCL.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from sightline.devices import of_several_processes, pick_device, rank_and_count
from sightline.errors import SaidElsewhere, SightlineError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

ARRIVAL_LIMIT = 300.0
"""Seconds in which all processes of a run must have started."""
COLLECTIVE_LIMIT = 3600.0
"""Seconds that one process waits for the others within a run; they wait for dev scores, too."""
_LOOK = 0.1  # seconds between two checks of who has arrived
_LINGER = 1.0  # seconds in which the others read why the host of the store gives up
# Before PyTorch 2.8 the end of a group waits for gloo's threads and holds the interpreter, which
# these need to free their last tensors (pytorch/pytorch#154976); here they get it
_GIVE_BACK = 0.2  # seconds
_BUCKET = 1 << 23  # numbers that are added up at once, 32 MiB in float32
_meetings = itertools.count()  # of this process; keys of an earlier run stay in a launcher's store

T = TypeVar("T")


class LostProcess(SightlineError):
    """Another process of the run ended, so what all take part in cannot continue."""


@dataclass(frozen=True)
class _Launched:
    """What the launcher passed to this process."""

    rank: int
    count: int
    local_rank: int
    address: str
    port: int
    has_store: bool
    attempt: str

    @classmethod
    def read(cls) -> _Launched | None:
        """From the environment; None for a single process."""
        if not of_several_processes():
            return None
        rank, count = rank_and_count(os.environ) or (0, 1)
        return cls(
            rank,
            count,
            _number("LOCAL_RANK", rank),
            _variable("MASTER_ADDR"),
            _number("MASTER_PORT"),
            os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
        )


class Processes:
    """The processes of one run, as seen by one of them; created directly, it is the only one.

    Whatever waits for the others raises `LostProcess` if one of them has ended.

    Attributes:
        rank: number of this process, from 0.
        count: of all.
    """

    def __init__(self) -> None:
        self.rank, self.count = 0, 1
        self._launched: _Launched | None = None
        self._store: Store | None = None
        self._cuda = False
        self._lost = False

    @classmethod
    @contextmanager
    def joined(cls, device: str, limit: float = ARRIVAL_LIMIT) -> Iterator[Processes]:
        """Meet the other processes that the environment describes, for one run.

        Args:
            device: `auto`, `cpu` or `cuda`, where all of them train.
            limit: seconds to wait for those that have not started.

        Raises:
            SightlineError: a process (named) did not start in time; or the environment, the device
                or the address is invalid.
        """
        self = cls()
        self._launched = launched = _Launched.read()
        if launched is None:
            yield self
            return
        import torch.distributed as dist

        if dist.is_initialized():
            raise SightlineError(
                "this process already has a torch.distributed group; a training run creates its "
                "own, so call it before you create yours, or without one"
            )
        self.rank, self.count = launched.rank, launched.count
        self._cuda = self.device(device).type == "cuda"
        self._store = _meet(launched, limit)
        try:
            with self._waiting():
                self._make_group()
            yield self
        finally:
            self.leave()
            self._store = None

    @property
    def main(self) -> bool:
        """Whether this process owns the run's folder and reports its progress."""
        return self.rank == 0

    def device(self, name: str) -> torch.device:
        """The device called ``name``; each of several processes on a machine has its own GPU.

        Raises:
            SightlineError: no such device here, fewer GPUs than processes, or one that several
                processes cannot train on.
        """
        if self._launched is None:
            return pick_device(name)
        import torch

        if name == "mps":
            raise SightlineError(
                "several processes train on CPUs or on CUDA devices, not on mps; use --device cpu, "
                "or one process"
            )
        if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
            return torch.device("cpu")
        here = self._launched.local_rank
        if torch.cuda.is_available() and here >= torch.cuda.device_count():
            raise SightlineError(
                f"process {self.rank} is number {here} on this machine, which has "
                f"{torch.cuda.device_count()} CUDA devices; start as many processes as there are "
                "devices, or train with --device cpu"
            )
        return pick_device(f"cuda:{here}")

    def shares(self, rows: int) -> list[range]:
        """Which of the ``rows`` of a batch each process encodes."""
        from train.gradient_cache import split

        return split(range(rows), self.count)

    # ---- messages between the processes ----------------------------------------------------------

    def exchange(self, text: str) -> list[str]:
        """The texts of all processes, by rank."""
        if self.count == 1:
            return [text]
        import torch
        import torch.distributed as dist

        own = torch.frombuffer(bytearray(text.encode()) or bytearray(1), dtype=torch.uint8)
        size = len(text.encode())
        with self._waiting():
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
            dist.all_gather(sizes, torch.tensor([size]))
            longest = max(1, *(int(each) for each in sizes))
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[:size] = own[:size]
            found = [torch.zeros_like(padded) for _ in range(self.count)]
            dist.all_gather(found, padded)
        every = zip(found, sizes, strict=True)
        return [bytes(each[: int(size)].tolist()).decode() for each, size in every]

    def together(self, work: Callable[[], T]) -> T:
        """Do ``work`` in every process; a failure in one ends all.

        Raises:
            Exception: that of ``work``, in the first process where it failed.
            SaidElsewhere: in the others.
        """
        if self.count == 1:
            return work()
        try:
            result, error = work(), None
        except Exception as raised:
            result, error = None, raised
        said = "" if error is None else str(error) or type(error).__name__
        found = self.exchange(said)
        failed = [rank for rank, text in enumerate(found) if text]
        if error is not None and failed[0] == self.rank:
            raise error
        if failed:
            message = f"process {failed[0]} ended the run: {found[failed[0]]}"
            raise SaidElsewhere(message) from error
        return result  # pyright: ignore[reportReturnType]

    def from_main(self, work: Callable[[], str]) -> str:
        """The result of ``work``, done only in process 0. Fails as `together` does."""
        own = self.together(lambda: work() if self.main else "")
        return self.exchange(own)[0]

    def most(self, number: int) -> int:
        """The largest number that any process has."""
        if self.count == 1:
            return number
        import torch
        import torch.distributed as dist

        found = torch.tensor([number])
        with self._waiting():
            dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found)

    # ---- tensors ------------------------------------------------------------------------------

    def gathered(self, own: Tensor, sizes: Sequence[int]) -> Tensor:
        """The rows [2, n, d] of every process, by rank: [2, Σ sizes, d], without a graph.

        Args:
            sizes: n of every process.
        """
        if self.count == 1:
            return own
        import torch
        import torch.distributed as dist

        two, rows, width = own.shape
        padded = own.new_zeros(two, max(sizes), width)
        padded[:, :rows] = own
        found = [torch.empty_like(padded) for _ in sizes]
        with self._waiting():
            dist.all_gather(found, padded)
        return torch.cat([each[:, :size] for each, size in zip(found, sizes, strict=True)], dim=1)

    def add_gradients(self, module: nn.Module) -> None:
        """Replace every gradient of ``module`` with its sum over all processes.

        A missing gradient counts as 0 if another process has one; if none has, it stays missing.
        """
        if self.count == 1:
            return
        import torch
        import torch.distributed as dist

        parameters = list(module.parameters())
        if not parameters:
            return
        reached = torch.tensor([each.grad is not None for each in parameters], dtype=torch.uint8)
        with self._waiting():
            dist.all_reduce(reached, dist.ReduceOp.MAX)
            pairs = zip(parameters, reached.tolist(), strict=True)
            for bucket in _buckets([each for each, is_reached in pairs if is_reached]):
                zeros = (torch.zeros_like(p) if p.grad is None else p.grad for p in bucket)
                flat = torch.cat([each.reshape(-1) for each in zeros])
                dist.all_reduce(flat)
                parts = flat.split([each.numel() for each in bucket])
                for parameter, part in zip(bucket, parts, strict=True):
                    if parameter.grad is None:
                        parameter.grad = torch.empty_like(parameter)
                    parameter.grad.copy_(part.view_as(parameter))

    def follow_main(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite ``tensors`` with those of process 0."""
        if self.count == 1:
            return
        import torch
        import torch.distributed as dist

        with self._waiting(), torch.no_grad():
            for tensor in tensors:
                whole = tensor.contiguous()
                dist.broadcast(whole, 0)
                if whole is not tensor:
                    tensor.copy_(whole)

    # ---- ends ---------------------------------------------------------------------------------

    def leave(self) -> None:
        """Break the connections to the others, so that they notice at once that this one has ended.

        A broken group of NCCL may wait for the lost process here; its connections end with this
        process.
        """
        if self.count == 1 or (self._lost and self._cuda):
            return
        import torch.distributed as dist

        if dist.is_initialized():
            time.sleep(_GIVE_BACK)
            with suppress(RuntimeError):
                dist.destroy_process_group()

    def _make_group(self) -> None:
        assert self._launched is not None
        assert self._store is not None
        import torch
        import torch.distributed as dist
        from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]

        backend = "gloo"
        if self._cuda:
            # waiting for a lost process raises an error instead of ending this process
            os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
            torch.cuda.set_device(self._launched.local_rank)
            backend = "cpu:gloo,cuda:nccl"
        dist.init_process_group(
            backend,
            store=PrefixStore("group", self._store),
            rank=self.rank,
            world_size=self.count,
            timeout=timedelta(seconds=COLLECTIVE_LIMIT),
        )

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Wraps an exchange: PyTorch has no specific error for a lost peer of gloo."""
        import torch

        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._lost = True
            raise LostProcess(
                f"another process of this run has ended ({_reason(error)}); check its output, "
                "and rerun the same command to resume from the last checkpoint"
            ) from error


def _meet(launched: _Launched, limit: float) -> Store:
    """A store in which all processes have registered.

    Raises:
        SightlineError: some did not start within ``limit`` seconds.
        SaidElsewhere: another process has already reported that.
    """
    from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]

    hosts = launched.rank == 0 and not launched.has_store
    where = f"{launched.address}:{launched.port}"
    try:
        shared = _store_at(launched.address, launched.port, hosts, limit)
    except RuntimeError as error:
        if hosts:
            raise SightlineError(
                f"process 0 cannot listen at {where} ({_reason(error)}); give another MASTER_PORT"
            ) from error
        raise SightlineError(
            f"process 0 did not start: no answer at {where} within {limit:g} s; start all "
            f"{launched.count} processes, and check MASTER_ADDR and MASTER_PORT"
        ) from error
    # all processes of a run meet equally often; a launcher's restart starts a new count
    store = PrefixStore(f"sightline/{launched.attempt}/{next(_meetings)}", shared)
    end = time.monotonic() + limit
    missing = list(range(launched.count))
    try:
        store.set(f"here/{launched.rank}", "1")
        while True:
            missing = [rank for rank in missing if not store.check([f"here/{rank}"])]
            if not missing:
                return store
            if store.check(["given up"]):
                raise SaidElsewhere(store.get("given up").decode())
            if time.monotonic() > end:
                break
            time.sleep(_LOOK)
        message = _never_came(missing, launched.count, limit)
        alone = store.add("gives up", 1) == 1
        if alone:
            store.set("given up", message)
        if hosts:
            time.sleep(_LINGER)
    except RuntimeError as error:
        raise LostProcess(
            f"process 0, which the others connect to ({where}), has ended; check its output, and "
            "rerun the same command"
        ) from error
    raise SightlineError(message) if alone else SaidElsewhere(message)


@cache
def _store_at(address: str, port: int, hosts: bool, limit: float) -> Store:
    """The store of all processes, which stays open: others may still be reading from its host."""
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    return TCPStore(
        address,
        port,
        is_master=hosts,
        timeout=timedelta(seconds=limit),
        wait_for_workers=False,
        multi_tenant=True,  # this process may use it for other groups
    )


def _never_came(missing: list[int], count: int, limit: float) -> str:
    who = ", ".join(map(str, missing))
    noun = "process" if len(missing) == 1 else "processes"
    return (
        f"{noun} {who} of {count} did not start within {limit:g} s; check their output where "
        f"they were started, and start all {count} again"
    )


def _reason(error: RuntimeError) -> str:
    """PyTorch's message, without the place in its source and its advice."""
    return re.sub(r"^\[\S+:\d+\] ", "", str(error).strip()).split("\n")[0].split(". ")[0]


def _buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """``parameters`` in order, in lists of one dtype that are summed at once."""
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        full = sum(each.numel() for each in bucket) + parameter.numel() > _BUCKET
        if bucket and (full or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket


def _variable(name: str) -> str:
    found = os.environ.get(name, "")
    if not found:
        raise SightlineError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but {name} is not set; start the processes "
            "with torchrun or accelerate launch, or unset WORLD_SIZE to train in one"
        )
    return found


def _number(name: str, default: int | None = None) -> int:
    if default is not None and name not in os.environ:
        return default
    found = _variable(name)
    if not found.isdecimal():
        raise SightlineError(f"the environment variable {name} is {found!r}; expected a number")
    return int(found)
