"""`sightline doctor`: what this machine has, what it would compute with, and what is wrong."""

from __future__ import annotations

import math
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cli.options import JSON, print_json
from sightline.errors import first_lines
from sightline.wording import in_bytes

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from sightline.hardware import Processor

_LEAST_DISK = 1_000_000_000
_CPU_GAIN = 1.2
"""bf16 has to be this much faster than fp32 on a CPU to be worth its rounding."""
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

    processor, gpus = hardware.processor(), _gpus()
    driver, listed = hardware.driver_gpus()
    device = pick_device("auto").type
    if any(gpu["problem"] for gpu in gpus[:1]):
        device = "cpu"
    precision, reason = choose_precision(device, gpus[0] if gpus else None)
    folder = Path("data").resolve() if Path("data").is_dir() else Path.cwd()
    disk = shutil.disk_usage(folder)
    threads = torch.get_num_threads()
    usable = sum(not gpu["problem"] for gpu in gpus)
    packages, outdated = _packages()
    problems = [
        *outdated,
        *(f"GPU {i}, {g['name']}: {g['problem']}" for i, g in enumerate(gpus) if g["problem"]),
        *_of_the_processor(processor, threads),
        *_of_disk(folder, disk.free),
    ]
    if unused := why_unused(len(listed), len(gpus)):
        problems.append(unused)
    return {
        "sightline": _version("sightline") or "not installed",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": {
            **asdict(processor),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "threads": threads,
        },
        "memory": asdict(hardware.memory()),
        "gpus": gpus,
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
    yield "sightline", f"{report['sightline']}, Python {report['python']}, {report['system']}"
    cpu, memory = report["cpu"], report["memory"]
    limit = "" if cpu["quota"] is None else f"limited to {cpu['quota']:g} CPUs by its control group"
    parts = (cpu["model"], cpu["instructions"], f"{cpu['usable']} cores", limit)
    yield "cpu", "; ".join(filter(None, parts))
    yield "threads", f"{cpu['threads']} used by PyTorch; OMP_NUM_THREADS sets another number"
    free = f"{in_bytes(memory['free'])} of {in_bytes(memory['total'])} free"
    if memory["limit"] is not None:
        free += f", limited to {in_bytes(memory['limit'])} by its control group"
    yield "memory", free
    disk = report["disk"]
    yield "disk", f"{in_bytes(disk['free'])} of {in_bytes(disk['total'])} free at {disk['folder']}"
    for index, gpu in enumerate(report["gpus"]):
        yield f"gpu {index}", _gpu_line(gpu, report["driver"])
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


def _gpus() -> list[dict[str, Any]]:
    """The GPUs that PyTorch lists, each tried with a small product; memory in bytes."""
    import torch

    found = []
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
        gpu = {"name": about.name, "total": about.total_memory, "free": free}
        gpu |= {"capability": capability, "problem": problem}
        gpu["bf16"] = torch.version.hip is not None or capability >= (8, 0)
        found.append(gpu)
    return found


def why_unused(listed: int, usable: int) -> str:
    """Why PyTorch uses fewer GPUs than the driver lists; empty if it uses all."""
    import torch

    from pipeline.side_by_side import VISIBLE

    if usable >= listed:
        return ""
    visible = os.environ.get(VISIBLE)
    if torch.version.cuda is None:
        cause = (
            f"PyTorch {torch.__version__} is built without CUDA; install a build with it, "
            "see https://pytorch.org/get-started/locally"
        )
    elif visible is not None and (usable or not visible.strip("-1 ")):
        cause = f"CUDA_VISIBLE_DEVICES is {visible!r}; unset it to use all"
    else:
        cause = "PyTorch does not say why; a reinstalled driver may help"
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:
            cause = first_lines(error, 1)
    return f"the driver lists {listed} GPUs, PyTorch can use {usable}: {cause}"


def choose_precision(device: str, gpu: Mapping[str, Any] | None = None) -> tuple[str, str]:
    """The fastest precision that trains without risk on ``device``, and why, in one sentence.

    Args:
        device: ``cuda``, ``mps`` or ``cpu``.
        gpu: the first of `_gpus`, where the device is ``cuda``.
    """
    if device == "cuda" and gpu is not None:
        capability = ".".join(map(str, gpu["capability"]))
        if gpu["bf16"]:
            return "bf16", "this GPU has tensor cores for bf16, which has fp32's range"
        if gpu["capability"] >= (7, 0):
            return "fp16", f"capability {capability} has tensor cores for fp16, not bf16"
        return "fp32", f"capability {capability} has no tensor cores"
    if device == "mps":
        return "fp32", "the others are not tested on MPS"
    gain = bf16_gain()
    measured = f"a layer of BERT trains in bf16 at {gain:.2f} times the speed of fp32, measured now"
    return "bf16" if gain >= _CPU_GAIN else "fp32", measured


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


def _gpu_line(gpu: Mapping[str, Any], driver: str) -> str:
    free = "" if gpu["free"] is None else f"{in_bytes(gpu['free'])} of "
    parts = [
        gpu["name"],
        f"{free}{in_bytes(gpu['total'])}{' free' if free else ''}",
        "compute capability {}.{}".format(*gpu["capability"]),
        "bf16" if gpu["bf16"] else "no bf16",
        f"driver {driver}" if driver else "",
        "cannot be used, see problems" if gpu["problem"] else "",
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
