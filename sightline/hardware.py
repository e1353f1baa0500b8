"""What this machine computes with: processor, memory, GPUs, and the precision that suits it."""

from __future__ import annotations

import math
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_FEATURES = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_vnni": "AVX-512 VNNI",
    "avx512_bf16": "AVX-512 BF16",
    "amx_tile": "AMX",
    "amx_bf16": "AMX BF16",
    "amx_fp16": "AMX FP16",
    "asimd": "NEON",
    "sve": "SVE",
    "bf16": "BF16",
}
"""Flags of /proc/cpuinfo that decide how fast matrices are multiplied."""

_CPU_GAIN = 1.2
"""bf16 has to be this much faster than fp32 on a CPU to be worth its rounding."""


@dataclass(frozen=True)
class Processor:
    """The CPU.

    Attributes:
        features: vector and matrix instructions.
        usable: logical cores that this process may run on.
        quota: CPUs that its control group allows, or None without a limit.
    """

    model: str
    features: tuple[str, ...]
    usable: int
    quota: float | None


@dataclass(frozen=True)
class Memory:
    """Main memory in bytes; ``limit`` is that of the control group, or None without one."""

    total: int | None
    free: int | None
    limit: int | None


@dataclass(frozen=True)
class Gpu:
    """A GPU that PyTorch lists; memory in bytes.

    Attributes:
        bf16: whether its tensor cores multiply bf16.
        problem: why PyTorch cannot compute on it; empty if it can.
    """

    name: str
    total: int
    free: int | None
    capability: tuple[int, int]
    bf16: bool
    problem: str = ""


@dataclass(frozen=True)
class Choice:
    """A precision, and the reason in one sentence."""

    precision: str
    reason: str


def processor(system: Path = Path("/")) -> Processor:
    """The CPU, with the limits of this process.

    Args:
        system: root of the file system to read /proc and /sys from.
    """
    facts: dict[str, str] = {}
    try:
        for line in (system / "proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            facts.setdefault(name.strip(), value.strip())
    except OSError:
        pass  # not Linux
    flags = set(facts.get("flags", facts.get("Features", "")).split())
    return Processor(
        model=facts.get("model name") or platform.processor() or platform.machine(),
        features=tuple(name for flag, name in _FEATURES.items() if flag in flags),
        usable=_usable_cores(),
        quota=_cpu_quota(system),
    )


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory(system: Path = Path("/")) -> Memory:
    """Main memory, with the limit of this process's control group; ``system`` as `processor`."""
    facts: dict[str, int] = {}
    try:
        for line in (system / "proc/meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            facts[name] = int(value.split()[0]) * 1024
    except OSError:
        pass  # not Linux
    total, free = facts.get("MemTotal"), facts.get("MemAvailable")
    limit, used = _memory_limit(system)
    if total is None or limit is None or limit >= total:
        return Memory(total, free, None)
    left = max(0, limit - used)
    return Memory(total, left if free is None else min(free, left), limit)


def _groups(system: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's control group and its parents: version 2, then version 1."""
    try:
        lines = (system / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, names, path = line.split(":", 2)
        if names == "":
            base = system / "sys/fs/cgroup"
        elif controller in names.split(","):
            base = system / "sys/fs/cgroup" / controller
        else:
            continue
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts), -1, -1):
            yield base.joinpath(*parts[:depth])


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _cpu_quota(system: Path) -> float | None:
    limits = []
    for group in _groups(system, "cpu"):
        quota = _words(group / "cpu.max") or [
            *_words(group / "cpu.cfs_quota_us"),
            *_words(group / "cpu.cfs_period_us"),
        ]
        if len(quota) == 2 and quota[0] not in ("max", "-1"):
            limits.append(int(quota[0]) / int(quota[1]))
    return min(limits, default=None)


def _memory_limit(system: Path) -> tuple[int | None, int]:
    """The smallest limit of the control group and its parents, and what that group uses."""
    found: tuple[int | None, int] = None, 0
    for group in _groups(system, "memory"):
        for most, used in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit = _words(group / most)
            if limit and limit[0] != "max" and (found[0] is None or int(limit[0]) < found[0]):
                found = int(limit[0]), int((_words(group / used) or ["0"])[0])
    return found


def gpus() -> list[Gpu]:
    """The GPUs that PyTorch lists, each tried with a small product."""
    import torch

    return [_gpu(index) for index in range(torch.cuda.device_count())]


def _gpu(index: int) -> Gpu:
    import torch

    about = torch.cuda.get_device_properties(index)
    free, problem = None, ""
    try:
        ones = torch.ones(8, 8, device=f"cuda:{index}")
        (ones @ ones).sum().item()
        free = torch.cuda.mem_get_info(index)[0]
    except RuntimeError as error:  # no kernel for this GPU, no free memory, used exclusively …
        problem = str(error).strip().splitlines()[0]
    capability = (about.major, about.minor)
    bf16 = torch.version.hip is not None or capability >= (8, 0)
    return Gpu(about.name, about.total_memory, free, capability, bf16, problem)


def driver_gpus() -> tuple[str, list[str]]:
    """The NVIDIA driver's version, and the names of the GPUs that it lists; empty without one."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "", []
    query = [tool, "--query-gpu=driver_version,name", "--format=csv,noheader"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "", []
    rows = [line.split(", ", 1) for line in listed.stdout.splitlines() if ", " in line]
    return (rows[0][0] if rows else ""), [name for _, name in rows]


def cpu_warning(device: str) -> str:
    """What to say where work lands on a CPU although the driver lists GPUs; else empty."""
    if device != "cpu":
        return ""
    _, listed = driver_gpus()
    if not listed:
        return ""
    import torch

    usable = torch.cuda.device_count() if torch.cuda.is_available() else 0
    why = why_unused(len(listed), usable) or (
        f"the driver lists {len(listed)} GPUs ({listed[0]}), and device cpu was asked for; use "
        "auto or cuda"
    )
    return f"this computes on the CPU, but {why}"


def why_unused(listed: int, usable: int) -> str:
    """Why PyTorch uses fewer GPUs than the driver lists; empty if it uses all."""
    import torch

    if usable >= listed:
        return ""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if torch.version.cuda is None:
        cause = (
            f"PyTorch {torch.__version__} is built without CUDA; install a build with it, "
            "see https://pytorch.org/get-started/locally"
        )
    elif visible is not None and (usable or not visible.strip("-1 ")):
        cause = f"CUDA_VISIBLE_DEVICES is {visible!r}; unset it to use all"
    else:
        cause = _refusal() or "PyTorch does not say why; a reinstalled driver may help"
    return f"the driver lists {listed} GPUs, PyTorch can use {usable}: {cause}"


def _refusal() -> str:
    """What PyTorch says when CUDA is started."""
    import torch

    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).strip().splitlines()[0]
    return ""


def choose_precision(
    device: str, gpu: Gpu | None = None, *, probe: Callable[[], float] | None = None
) -> Choice:
    """The fastest precision that trains without risk on ``device``.

    Args:
        device: ``cuda``, ``mps`` or ``cpu``.
        gpu: the first GPU, where the device is ``cuda``.
        probe: measures how much faster bf16 is on the CPU (`bf16_gain`).
    """
    if device == "cuda" and gpu is not None:
        number = ".".join(map(str, gpu.capability))
        if gpu.bf16:
            return Choice("bf16", "this GPU has tensor cores for bf16, which has fp32's range")
        if gpu.capability >= (7, 0):
            return Choice("fp16", f"capability {number} has tensor cores for fp16, not bf16")
        return Choice("fp32", f"capability {number} has no tensor cores")
    if device == "mps":
        return Choice("fp32", "the others are not tested on MPS")
    gain = (probe or bf16_gain)()
    measured = "a layer of BERT trains in bf16 at {:.2f} times the speed of fp32, measured now"
    if gain >= _CPU_GAIN:
        return Choice("bf16", measured.format(gain))
    return Choice("fp32", measured.format(gain))


def bf16_gain(seconds: float = 1.0) -> float:
    """How many times faster bf16 autocast is than fp32 on this CPU, with PyTorch's threads.

    A feed-forward layer of BERT-base (768 → 3072 → 768), 128 tokens, forward and backward. The
    processor's flags do not tell: without matrix instructions bf16 is slower. Each is run in turn
    for ``seconds`` in all, and the fastest of each counts, as other processes only slow it down.
    """
    import torch
    from torch import nn

    layer = nn.Sequential(nn.Linear(768, 3072), nn.GELU(), nn.Linear(3072, 768))
    tokens = torch.randn(128, 768)
    best = {False: math.inf, True: math.inf}

    def step(low: bool) -> float:
        start = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
            loss = layer(tokens).float().square().mean()
        loss.backward()
        return time.perf_counter() - start

    for low in best:
        step(low)  # the first run of each sets it up
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or math.isinf(best[True]):
        for low in best:
            best[low] = min(best[low], step(low))
    return best[False] / best[True]
