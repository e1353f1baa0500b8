"""Where models compute: processes, devices, precisions, determinism, threads."""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Literal, get_args

from sightline.errors import SightlineError

if TYPE_CHECKING:
    import torch


def of_several_processes() -> bool:
    """Whether `torchrun` or `accelerate launch` started this process as one of several."""
    return os.environ.get("WORLD_SIZE", "1") not in ("", "1")


def rank_and_count(
    environment: Mapping[str, str], rank: str = "RANK", count: str = "WORLD_SIZE"
) -> tuple[int, int] | None:
    """The number of this process and how many there are; None where no launcher tells.

    Args:
        rank, count: the variables in which a launcher tells them.
    """
    told = environment.get(rank, ""), environment.get(count, "")
    if told == ("", ""):
        return None
    if not all(map(str.isdecimal, told)) or int(told[0]) >= int(told[1]):
        raise SightlineError(
            f"{rank} is {told[0] or 'not set'} and {count} is {told[1] or 'not set'}, expected two "
            "numbers, the first one smaller; start the processes with torchrun, accelerate launch "
            "or srun, or unset both"
        )
    return int(told[0]), int(told[1])


def is_first_process() -> bool:
    """Whether this process is the only one, or number 0: the one that talks to the user."""
    return not of_several_processes() or os.environ.get("RANK", "0") == "0"


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


_OPEN_FILES = (1 << 16, 10_240)
"""Wanted limits of open files; the second is macOS's own."""

Precision = Literal["fp32", "bf16", "fp16"]
PRECISIONS = get_args(Precision)
TrainPrecision = Literal["fp32", "tf32", "bf16", "fp16"]
AUTOCAST = {"bf16": "bfloat16", "fp16": "float16"}
"""Precision below fp32 → PyTorch's name for the dtype of autocast."""


def allow_open_files() -> None:
    """Raise the soft limit of open files to the hard one, as far as the system lets it.

    The usual 1,024, and 256 on macOS, are for programs that use `select`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in _OPEN_FILES:
        allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        if soft != resource.RLIM_INFINITY and allowed > soft:
            with suppress(ValueError, OSError):  # beyond what the kernel has
                resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
                return


def pick_device(name: str) -> torch.device:
    """The device called `name`: ``auto``, ``cpu``, ``cuda``, ``cuda:1`` or ``mps``.

    ``auto`` is CUDA, then MPS, then the CPU. Any other name is used as given; a SightlineError says
    that there is no such device.
    """
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    mps = torch.backends.mps.is_available()
    if name == "auto":
        name = "cuda" if count else "mps" if mps else "cpu"
    match = re.fullmatch(r"cpu|mps|cuda(?::(\d+))?", name, re.ASCII)
    if match is None:
        raise SightlineError(f"unknown device {name!r}; use auto, cpu, cuda, cuda:1 or mps")
    if name == "mps" and not mps:
        raise SightlineError("device 'mps' was requested but is not available; use auto")
    if name in ("cpu", "mps"):
        return torch.device(name)
    index = int(match[1] or 0)
    if index >= count:
        cause = f"this machine has {count} CUDA devices" if count else "CUDA is not available"
        raise SightlineError(
            f"device {name!r} was requested, but {cause} "
            f"(PyTorch {torch.__version__}); use auto or cpu, or install a driver "
            "and a PyTorch build that support the GPU"
        )
    return torch.device("cuda", index)


def use_device(name: str) -> torch.device:
    """As `pick_device`, and what names no GPU uses this one.

    Otherwise pinned memory and streams would open a context, of some 500 MB, on GPU 0 in the
    process of each GPU.
    """
    import torch

    device = pick_device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def check_precision(precision: str) -> str:
    """`precision` if it is valid; otherwise a SightlineError lists the choices."""
    if precision not in PRECISIONS:
        raise SightlineError(f"unknown precision {precision!r}; use one of {', '.join(PRECISIONS)}")
    return precision


def runs_ahead(device: torch.device) -> bool:
    """Whether operations return before ``device`` has done them, so that reading a value waits."""
    return device.type == "cuda"


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """``tensor`` on ``device``, without waiting for what the device is doing.

    A copy from pageable memory would wait; this one goes through pinned memory.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def device_name(device: torch.device) -> str:
    """The model name of a CUDA device; otherwise ``cpu`` or ``mps``."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def peak_memory(device: torch.device) -> dict[str, int]:
    """Peak memory of this process in bytes, on the ``host`` and on a CUDA ``device``."""
    import torch

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bytes_of = {"host": peak if sys.platform == "darwin" else peak * 1024}  # Linux counts in KiB
    if device.type == "cuda":
        bytes_of["device"] = torch.cuda.max_memory_allocated(device)
    return bytes_of


@contextmanager
def computing(device: torch.device, precision: str) -> Iterator[None]:
    """The context of one forward pass: no gradients, `precision`, deterministic sums.

    ``fp32`` means float32 throughout: TensorFloat-32, which cuDNN uses by default, is off.
    ``bf16`` and ``fp16`` use autocast. On CUDA, cuDNN must choose deterministic algorithms without
    benchmarking, so that a batch always gives the same result. The flags are restored afterwards.
    """
    import torch

    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        if precision in AUTOCAST:
            stack.enter_context(
                torch.autocast(device.type, dtype=getattr(torch, AUTOCAST[precision]))
            )
        if device.type == "cuda":
            flags = torch.backends.cudnn.flags(
                enabled=True, benchmark=False, deterministic=True, allow_tf32=False
            )
            stack.enter_context(flags)
            stack.enter_context(float32_products(tf32=False))
        yield


def has_tf32(device: torch.device) -> bool:
    """Whether ``device`` can multiply in TensorFloat-32: NVIDIA's from compute capability 8.0."""
    import torch

    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


@contextmanager
def float32_products(*, tf32: bool) -> Iterator[None]:
    """Round the factors of float32 matrix products to TensorFloat-32, or do not.

    PyTorch has one setting for the whole process; it is restored afterwards.
    """
    import torch

    try:
        whole = torch.get_float32_matmul_precision()
    except RuntimeError:  # its parts were set apart
        whole = None
    on_cpu = torch.backends.mkldnn.matmul  # pyright: ignore[reportAttributeAccessIssue]
    backends = (torch.backends.cuda.matmul, on_cpu)
    parts = {part: part.fp32_precision for part in backends}
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        yield
    finally:
        if whole is not None:
            torch.set_float32_matmul_precision(whole)
        for part, precision in parts.items():
            part.fp32_precision = precision
