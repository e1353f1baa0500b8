"""What this machine computes with."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sightline.wording import counted

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
    """

    model: str
    usable: int
    quota: float | None


@dataclass(frozen=True)
class Memory:
    """Main memory in bytes; ``limit`` is that of the control group, or None without one."""

    total: int
    free: int
    limit: int | None


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

    found = psutil.virtual_memory()
    limits = [(most, used) for most, used in _limits("memory", system) if most < found.total]
    left = [max(0, most - used) for most, used in limits]
    limit = min((most for most, _ in limits), default=None)
    return Memory(found.total, min([found.available, *left]), limit)


def _limits(controller: str, system: Path) -> list[tuple[int, int]]:
    """The limits of this process's control group and its parents, each with its period or use."""
    found: list[tuple[int, int]] = []
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
                    found.append((int(words[0]), int(words[1])))
    return found


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


def cpu_warning(device: str) -> str:
    """What to say where work lands on a CPU although the driver lists GPUs; else empty."""
    listed = driver_gpus()[1] if device == "cpu" else []
    if not listed:
        return ""
    return (
        f"this computes on the CPU, but the driver lists {counted(len(listed), 'GPU')} "
        f"({listed[0]}); use device auto or cuda, or see `sightline doctor` if PyTorch uses none"
    )


def cores() -> int:
    """The cores that this process may keep busy."""
    found = processor()
    return found.usable if found.quota is None else max(1, min(found.usable, round(found.quota)))
