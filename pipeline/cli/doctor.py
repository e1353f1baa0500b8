"""`sightline doctor`: what this machine has, what it would compute with, and what is wrong."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cli.options import JSON, print_json
from sightline.wording import in_bytes

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from sightline.hardware import Gpu, Memory, Processor

_LEAST_DISK = 1_000_000_000
_ALSO = ("sentence-transformers",)  # loads exported models; Sightline does not need it


def doctor(as_json: JSON = False) -> None:
    """Show processor, GPUs, memory, disk, versions, the model hub and DVC's remotes.

    Name the precision that suits the machine, measured for a second on a CPU, and list every
    problem last.

    Example: sightline doctor
    """
    report = _examine()
    if as_json:
        print_json(report)
        return
    for name, value in _lines(report):
        print(f"{name:24} {value}".rstrip())


def _examine() -> dict[str, Any]:
    import torch

    from sightline import hardware
    from sightline.devices import pick_device

    processor, memory, gpus = hardware.processor(), hardware.memory(), hardware.gpus()
    driver, listed = hardware.driver_gpus()
    device = pick_device("auto").type
    if any(gpu.problem for gpu in gpus[:1]):
        device = "cpu"
    precision, reason = hardware.choose_precision(device, gpus[0] if gpus else None)
    folder = Path("data").resolve() if Path("data").is_dir() else Path.cwd()
    disk = shutil.disk_usage(folder)
    threads = torch.get_num_threads()
    usable = sum(not gpu.problem for gpu in gpus)
    packages, outdated = _packages()
    problems = [
        *outdated,
        *(f"GPU {i}, {gpu.name}: {gpu.problem}" for i, gpu in enumerate(gpus) if gpu.problem),
        *_of_the_processor(processor, threads),
        *_of_disk(folder, disk.free),
    ]
    if unused := hardware.why_unused(len(listed), len(gpus)):
        problems.append(unused)
    return {
        "sightline": _version("sightline") or "not installed",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": {**asdict(processor), "features": list(processor.features), "threads": threads},
        "memory": asdict(memory),
        "gpus": [asdict(gpu) for gpu in gpus],
        "driver": driver,
        "disk": {"folder": str(folder), "total": disk.total, "free": disk.free},
        "device": device if usable or device != "cuda" else "cpu",
        "precision": {"precision": precision, "reason": reason},
        "packages": packages,
        "model hub": _hub(),
        "dvc repository": Path(".dvc").is_dir(),
        "dvc remotes": _remotes(),
        "problems": problems,
    }


def _lines(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The report for people: name, value."""
    from sightline.hardware import Gpu, Memory, Processor

    yield "sightline", f"{report['sightline']}, Python {report['python']}, {report['system']}"
    cpu = dict(report["cpu"])
    threads = cpu.pop("threads")
    yield "cpu", _cpu_line(Processor(**cpu))
    yield "threads", f"{threads} used by PyTorch; OMP_NUM_THREADS sets another number"
    yield "memory", _memory_line(Memory(**report["memory"]))
    disk = report["disk"]
    yield "disk", f"{in_bytes(disk['free'])} of {in_bytes(disk['total'])} free at {disk['folder']}"
    for index, gpu in enumerate(report["gpus"]):
        yield f"gpu {index}", _gpu_line(Gpu(**gpu), report["driver"])
    if not report["gpus"]:
        yield "gpu", "none"
    choice = report["precision"]
    yield "device", f"{report['device']} (chosen by `device: auto`)"
    yield "precision", f"{choice['precision']} suits it: {choice['reason']}"
    if choice["precision"] != "fp32":
        yield "", f"(the default is fp32: set train.precision to {choice['precision']})"
    yield "model hub", report["model hub"]
    found = "yes" if report["dvc repository"] else "no (run in the root of a clone)"
    yield "dvc repository", found
    yield "dvc remotes", report["dvc remotes"]
    yield "packages", ""
    for name, about in report["packages"].items():
        extra = f", extra {about['extra']}" if about["extra"] else ""
        supported = f"supported: {about['supported']}{extra}" if about["supported"] else ""
        yield f"  {name}", f"{about['installed'] or 'not installed':14} {supported}"
    problems = report["problems"]
    yield "problems", "" if problems else "none"
    for problem in problems:
        yield f"  {problem}", ""


def _cpu_line(cpu: Processor) -> str:
    parts = [cpu.model, ", ".join(cpu.features), f"{cpu.usable} cores"]
    if cpu.quota is not None:
        parts.append(f"limited to {cpu.quota:g} CPUs by its control group")
    return "; ".join(part for part in parts if part)


def _memory_line(memory: Memory) -> str:
    limit = (
        ""
        if memory.limit is None
        else f", limited to {in_bytes(memory.limit)} by its control group"
    )
    return f"{in_bytes(memory.free)} of {in_bytes(memory.total)} free{limit}"


def _gpu_line(gpu: Gpu, driver: str) -> str:
    free = "" if gpu.free is None else f"{in_bytes(gpu.free)} of "
    parts = [
        gpu.name,
        f"{free}{in_bytes(gpu.total)}{' free' if free else ''}",
        f"compute capability {gpu.capability[0]}.{gpu.capability[1]}",
        "bf16" if gpu.bf16 else "no bf16",
        f"driver {driver}" if driver else "",
        "cannot be used, see problems" if gpu.problem else "",
    ]
    return ", ".join(part for part in parts if part)


def _of_the_processor(cpu: Processor, threads: int) -> Iterator[str]:
    if cpu.quota is not None and threads > max(1, round(cpu.quota)):
        yield (
            f"PyTorch uses {threads} threads, but the control group allows {cpu.quota:g} CPUs: "
            f"they wait for each other; set OMP_NUM_THREADS={max(1, round(cpu.quota))}"
        )


def _of_disk(folder: Path, free: int) -> Iterator[str]:
    if free < _LEAST_DISK:
        yield f"{folder}: only {in_bytes(free)} free; features and checkpoints need more"


def _packages() -> tuple[dict[str, dict[str, str]], list[str]]:
    """Name → installed version, supported versions and extra; and what is missing or too old."""
    found: dict[str, dict[str, str]] = {}
    problems: list[str] = []
    for requirement, extra in _requirements():
        name, installed = requirement.name, _version(requirement.name)
        supported = str(requirement.specifier)
        found[name] = {"installed": installed, "supported": supported, "extra": extra}
        if installed and not requirement.specifier.contains(installed, prereleases=True):
            problems.append(
                f"{name} {installed} is not supported; "
                f"run: pip install '{name}{requirement.specifier}'"
            )
        elif not installed and not extra:
            problems.append(
                f"{name} is not installed; run: pip install '{name}{requirement.specifier}'"
            )
    for name in _ALSO:
        found[name] = {"installed": _version(name), "supported": "", "extra": ""}
    return found, problems


def _requirements() -> Iterator[tuple[Requirement, str]]:
    """What the package declares, without what only its development needs, with the extra."""
    import importlib.metadata

    from packaging.requirements import Requirement

    try:
        declared = importlib.metadata.requires("sightline") or []
    except importlib.metadata.PackageNotFoundError:
        return
    for text in declared:
        requirement = Requirement(text)
        marker = str(requirement.marker or "")
        extra = marker.split('extra == "')[1].split('"')[0] if "extra ==" in marker else ""
        if extra != "dev":
            yield requirement, extra


def _version(package: str) -> str:
    import importlib.metadata  # imported here to keep `sightline --help` fast

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _hub() -> str:
    """Whether the hub that transformers uses answers within a few seconds."""
    from huggingface_hub import constants

    from sightline.loading import why_silent

    if constants.is_offline_mode():
        return "not checked (HF_HUB_OFFLINE is set)"
    address = constants.ENDPOINT
    reason = why_silent(address)
    return f"{address} does not answer ({reason})" if reason else f"{address} answers"


def _remotes() -> str:
    if not Path(".dvc").is_dir():
        return "none"
    try:
        from dvc.config import Config
    except ModuleNotFoundError:
        return "unknown: dvc is not installed; run: pip install 'sightline[dvc]'"
    remotes = Config.from_cwd()["remote"]
    return ", ".join(f"{name} ({about['url']})" for name, about in remotes.items()) or "none"
