"""What this machine computes with."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sightline.distribution import DISTRIBUTION
from sightline.errors import first_lines
from sightline.wording import counted, in_bytes

_LIMITS = {
    "cpu": (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")),
    "memory": (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ),
}
"""Controller → files of a control group, of version 2 or 1, with a limit and its period or use."""


@dataclass(frozen=True)
class Processor:
    """The CPU.

    Attributes:
        usable: logical cores that this process may run on.
        quota: CPUs that its control group allows, or None without a limit.
        instructions, threads: that PyTorch uses; empty and None if it was not asked.
    """

    model: str
    usable: int
    quota: float | None
    instructions: str = ""
    threads: int | None = None

    def __str__(self) -> str:
        parts = [self.model, self.instructions, f"{self.usable} cores"]
        if self.quota is not None:
            parts.append(f"limited to {self.quota:g} CPUs by its control group")
        if self.threads is not None:
            parts.append(f"PyTorch uses {counted(self.threads, 'thread')} (OMP_NUM_THREADS)")
        return "; ".join(filter(None, parts))


@dataclass(frozen=True)
class Memory:
    """Main memory in bytes; ``limit`` is that of the control group, or None without one."""

    total: int
    free: int
    limit: int | None

    def __str__(self) -> str:
        text = f"{in_bytes(self.free)} of {in_bytes(self.total)} free"
        if self.limit is not None:
            text += f", limited to {in_bytes(self.limit)} by its control group"
        return text


@dataclass(frozen=True)
class Disk:
    """The disk of a folder, in bytes."""

    folder: str
    total: int
    free: int

    def __str__(self) -> str:
        return f"{in_bytes(self.free)} of {in_bytes(self.total)} free at {self.folder}"


@dataclass(frozen=True)
class Gpu:
    """A GPU that PyTorch lists; memory in bytes.

    Attributes:
        free: None if it cannot be used.
        problem: why it cannot be used; empty if it can.
        bf16: whether it has tensor cores for it.
    """

    name: str
    total: int
    free: int | None
    capability: tuple[int, int]
    problem: str
    bf16: bool

    def __str__(self) -> str:
        free = "" if self.free is None else f"{in_bytes(self.free)} of "
        parts = [
            self.name,
            f"{free}{in_bytes(self.total)}{' free' if free else ''}",
            "compute capability {}.{}".format(*self.capability),
            "bf16" if self.bf16 else "no bf16",
            "cannot be used, see problems" if self.problem else "",
        ]
        return ", ".join(filter(None, parts))


def processor(system: Path = Path("/")) -> Processor:
    """The CPU, with the limits of this process.

    Args:
        system: root of the file system to read /proc and /sys from.
    """
    lines = _text(system / "proc/cpuinfo").splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    linux = hasattr(os, "sched_getaffinity")
    return Processor(
        model=models[0] if models else platform.processor() or platform.machine(),
        usable=len(os.sched_getaffinity(0)) if linux else os.cpu_count() or 1,
        quota=min((quota / period for quota, period in _limits("cpu", system)), default=None),
    )


def memory(system: Path = Path("/")) -> Memory:
    """Main memory, with the limit of this process's control group, read as by `processor`."""
    import psutil

    virtual = psutil.virtual_memory()
    limits = [(most, used) for most, used in _limits("memory", system) if most < virtual.total]
    left = [max(0, most - used) for most, used in limits]
    limit = min((most for most, _ in limits), default=None)
    return Memory(virtual.total, min([virtual.available, *left]), limit)


def _limits(controller: str, system: Path) -> list[tuple[int, int]]:
    """The limits of this process's control group and its parents, each with its period or use."""
    limits: list[tuple[int, int]] = []
    for line in _text(system / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = system / "sys/fs/cgroup" / (controller if controllers else "")
        group = root / path.strip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(root):
                break
            for names in _LIMITS[controller]:
                words = [word for name in names for word in _text(folder / name).split()]
                if len(words) == 2 and words[0] not in ("max", "-1"):
                    limits.append((int(words[0]), int(words[1])))
    return limits


def _text(path: Path) -> str:
    """The content of a file of the system; empty where the system has none."""
    try:
        return path.read_text()
    except OSError:
        return ""


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


def gpus() -> list[Gpu]:
    """The GPUs that PyTorch lists, each tried with a small product."""
    import torch

    listed = []
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        free, problem = None, ""
        try:
            ones = torch.ones(8, 8, device=f"cuda:{index}")
            (ones @ ones).sum().item()
            free = torch.cuda.mem_get_info(index)[0]
        except RuntimeError as error:  # no kernel for this GPU, no free memory, used exclusively …
            problem = first_lines(error, 1)
        capability = (about.major, about.minor)
        bf16 = torch.version.hip is not None or capability >= (8, 0)
        listed.append(Gpu(about.name, about.total_memory, free, capability, problem, bf16))
    return listed


def cpu_warning(device: str) -> str:
    """What to say where work lands on a CPU although the driver lists GPUs; else empty."""
    listed = driver_gpus()[1] if device == "cpu" else []
    if not listed:
        return ""
    return (
        f"this computes on the CPU, but the driver lists {counted(len(listed), 'GPU')} "
        f"({listed[0]}); use device auto or cuda, or see `sightline doctor` if PyTorch uses none"
    )


@cache
def versions() -> dict[str, str]:
    """Package → version, of those that what is computed depends on; absent ones are left out."""
    from importlib.metadata import PackageNotFoundError, version

    installed: dict[str, str] = {}
    for package in ("sightline", "torch", "transformers", "tokenizers", "numpy", "scipy"):
        with suppress(PackageNotFoundError):
            installed[package] = version(DISTRIBUTION if package == "sightline" else package)
    return installed


def cores() -> int:
    """The cores that this process may keep busy."""
    cpu = processor()
    return cpu.usable if cpu.quota is None else max(1, min(cpu.usable, round(cpu.quota)))
