"""The machine that computes: for the plan, where rows may depend on it, and for the record."""

from __future__ import annotations


def code_version() -> str:
    """Versions of what computes; workers of different ones do not fill one set."""
    from importlib.metadata import version

    return f"sightline {version('sightline')}, torch {version('torch')}"


def described(device: str) -> dict[str, str | int]:
    """Device and library version, for the record; they do not enter the fingerprint."""
    import torch

    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    return {"device": name, "torch": torch.__version__}
