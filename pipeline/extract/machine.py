"""The machine's versions and device: for the plan, as rows may depend on them, and the record."""

from __future__ import annotations


def code_version() -> str:
    """Code versions; workers with different ones do not fill one set."""
    from importlib.metadata import version

    return f"sightline {version('sightline')}, torch {version('torch')}"


def described(device: str) -> dict[str, str | int]:
    """Device and library version, for the record; not part of the fingerprint."""
    import torch

    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    return {"device": name, "torch": torch.__version__}
