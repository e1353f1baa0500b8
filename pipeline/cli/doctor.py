"""`sightline doctor`: what this machine has, what it would compute with, and what is wrong."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from pipeline.cli.options import JSON, print_json
from sightline.distribution import DISTRIBUTION, installing
from sightline.errors import first_lines
from sightline.wording import in_bytes

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from sightline.machine.hardware import Disk, Processor

_LEAST_DISK = 1_000_000_000
_KEPT = "kept: what a command frees stays in its heap, as long as it runs"


def doctor(as_json: JSON = False) -> None:
    """Show what this machine has, and what is wrong with it.

    Processor, GPUs, memory, disk, the model hub, DVC's remotes, and what other packages add; every
    problem last, such as a package that is missing or too old.

    Example: sightline doctor
    """
    report = _examine()
    if as_json:
        print_json(to_jsonable_python(report))
        return
    for name, value in report.items():
        if isinstance(value, bool):
            value = "yes" if value else "no (not the folder of a project)"
        several = value if isinstance(value, list) else []
        print(f"{name:24} {'' if several else value or 'none'}".rstrip())
        for entry in several:
            print(f"  {entry}")


def _examine() -> dict[str, Any]:
    import torch

    from sightline.devices import pick_device
    from sightline.machine import hardware
    from sightline.machine.heap import keep_heap

    cpu = replace(
        hardware.processor(),
        instructions=torch.backends.cpu.get_cpu_capability(),
        threads=torch.get_num_threads(),
    )
    gpus, (driver, listed) = hardware.gpus(), hardware.driver_gpus()
    device = pick_device("auto").type
    if device == "cuda" and (not gpus or gpus[0].problem):
        device = "cpu"
    folder = Path("data").resolve() if Path("data").is_dir() else Path.cwd()
    usage = shutil.disk_usage(folder)
    disk = hardware.Disk(str(folder), usage.total, usage.free)
    problems = _unfit_packages()
    problems += filter(None, [_another_sightline()])
    problems += [f"GPU {i}, {gpu.name}: {gpu.problem}" for i, gpu in enumerate(gpus) if gpu.problem]
    problems += filter(None, [too_many(cpu), too_full(disk), why_unused(len(listed), len(gpus))])
    problems += filter(None, [_why_no_graph()])
    return {
        "sightline": _version(DISTRIBUTION) or "not installed",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu,
        "memory": hardware.memory(),
        "heap": f"not kept, {reason}" if (reason := keep_heap()) else _KEPT,
        "disk": disk,
        "gpus": gpus,
        "driver": driver,
        "device": device,
        "model hub": _hub(),
        "dvc repository": Path(".dvc").is_dir(),
        "dvc remotes": _remotes(),
        "packages": _packages(),
        "problems": problems,
    }


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


def too_many(cpu: Processor) -> str:
    """Why PyTorch's threads wait for each other; empty if they do not."""
    cores = None if cpu.quota is None else max(1, round(cpu.quota))
    if cores is None or (cpu.threads or 0) <= cores:
        return ""
    return (
        f"PyTorch uses {cpu.threads} threads, but the control group allows {cpu.quota:g} CPUs: "
        f"they wait for each other; set OMP_NUM_THREADS={cores}"
    )


def too_full(disk: Disk) -> str:
    """Why a disk is too small; empty if it is not."""
    if disk.free >= _LEAST_DISK:
        return ""
    return f"{disk.folder}: only {in_bytes(disk.free)} free; features and checkpoints need more"


def _packages() -> list[str]:
    """What other packages add: data sets, encoders, objectives and so on, by their entry points."""
    import importlib.metadata

    added: list[str] = []
    for distribution in importlib.metadata.distributions():
        points = [p for p in distribution.entry_points if p.group.startswith("sightline.")]
        names = ", ".join(sorted({point.name for point in points}))
        if names:
            added.append(f"{distribution.metadata['Name']} {distribution.version}: {names}")
    return sorted(set(added))


def _another_sightline() -> str:
    """Why the files of Sightline may be those of another project; empty if they are not."""
    if not (version := _version("sightline")):
        return ""
    return (
        f"sightline {version} is another project's package, whose files may stand in place of "
        f"ours; run: pip uninstall -y sightline {DISTRIBUTION}, and install {DISTRIBUTION} again"
    )


def _unfit_packages() -> list[str]:
    """What is missing or too old of the packages that Sightline needs or, in an extra, uses."""
    problems: list[str] = []
    for requirement, extra in _requirements():
        name, installed = requirement.name, _version(requirement.name)
        remedy = f"run: pip install '{name}{requirement.specifier}'"
        if installed and not requirement.specifier.contains(installed, prereleases=True):
            problems.append(f"{name} {installed} is not supported; {remedy}")
        elif not installed and not extra:
            problems.append(f"{name} is not installed; {remedy}")
    return problems


def _requirements() -> Iterator[tuple[Requirement, str]]:
    """What the package declares, without what only its development needs, with the extra."""
    import importlib.metadata

    from packaging.requirements import Requirement

    try:
        declared = importlib.metadata.requires(DISTRIBUTION) or []
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

    from sightline.models.pretrained import why_silent

    if constants.is_offline_mode():
        return "not checked (HF_HUB_OFFLINE is set)"
    address = constants.ENDPOINT
    reason = why_silent(address)
    return f"{address} does not answer ({reason})" if reason else f"{address} answers"


def _why_no_graph() -> str:
    """Why `sightline repro` cannot run here; empty if it can, or if this is no project."""
    if not Path(".dvc").is_dir():
        return ""
    from pipeline.dvc_project import why_not
    from pipeline.params import FILE_NAME, load_params
    from sightline.errors import SightlineError

    try:
        if Path(FILE_NAME).is_file():
            load_params()
    except SightlineError as error:
        return str(error)
    try:
        return why_not()
    except ImportError:  # the line of the remotes says that DVC is not installed
        return ""


def _remotes() -> str:
    if not Path(".dvc").is_dir():
        return "none"
    try:
        from dvc.config import Config
    except ModuleNotFoundError:
        return f"unknown: dvc is not installed; run: {installing('dvc')}"
    from dvc.exceptions import DvcException

    try:
        remotes = Config.from_cwd()["remote"]
    except DvcException:
        return "unknown, see problems"
    return ", ".join(f"{name} ({about['url']})" for name, about in remotes.items()) or "none"
