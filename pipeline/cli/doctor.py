"""`sightline doctor`: what this machine has, and what is missing."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

from pipeline.cli.options import JSON, print_json

_PACKAGES = (
    "torch",
    "torchvision",
    "transformers",
    "sentence-transformers",
    "open_clip_torch",
    "sam2",
    "accelerate",
    "h5py",
    "pyarrow",
    "dvc",
    "dvclive",
    "ray",
)


def doctor(as_json: JSON = False) -> None:
    """Show versions, devices, free disk, whether the hub answers, and DVC's remotes.

    Example: sightline doctor
    """
    report = {
        "sightline": _version("sightline"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: _version(name) for name in _PACKAGES},
        "devices": _devices(),
        "free disk": f"{shutil.disk_usage('.').free / 1e9:,.1f} GB",
        "model hub": _hub(),
        "dvc repository": "yes" if Path(".dvc").is_dir() else "no (run in the root of a clone)",
        "dvc remotes": _remotes(),
    }
    if as_json:
        print_json(report)
        return
    for name, value in report.items():
        if isinstance(value, dict):
            print(f"{name}:")
            for key, each in value.items():
                print(f"  {key:22} {each}")
        else:
            print(f"{name:16} {value}")


def _version(package: str) -> str:
    import importlib.metadata  # imported here to keep `sightline --help` fast

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _devices() -> dict[str, str]:
    import torch

    found = {"cpu": f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"}
    for i in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(i)
        found[f"cuda:{i}"] = f"{about.name}, {about.total_memory / 2**30:.0f} GiB"
    if torch.backends.mps.is_available():
        found["mps"] = "available"
    return found


def _hub() -> str:
    """Whether the hub that transformers uses answers within a few seconds."""
    from huggingface_hub import constants

    from sightline.hub import why_silent

    if constants.is_offline_mode():
        return "not checked (HF_HUB_OFFLINE is set)"
    address = constants.ENDPOINT
    reason = why_silent(address)
    return f"{address} does not answer ({reason})" if reason else f"{address} answers"


def _remotes() -> str:
    if not Path(".dvc").is_dir():
        return "none"
    from dvc.config import Config

    remotes = Config.from_cwd()["remote"]
    return ", ".join(f"{name} ({about['url']})" for name, about in remotes.items()) or "none"
