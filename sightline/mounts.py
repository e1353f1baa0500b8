"""Linux's list of mounts: which folders are mount points, and how a device is mounted."""

from __future__ import annotations

import os
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")  # proc(5); other systems have none


def is_mount_point(folder: Path) -> bool:
    """Whether something is mounted at ``folder``, including bind mounts of the same file system."""
    if folder.is_dir() and os.path.ismount(folder):
        return True
    return os.fspath(folder).replace(" ", "\\040") in {fields[4] for fields in _mounts()}


def options_of(device: int) -> set[str]:
    """The options of the file system on ``device`` (``st_dev``); empty if none are known."""
    number = f"{os.major(device)}:{os.minor(device)}"
    return next((set(f[-1].split(",")) for f in _mounts() if f[2] == number), set())


def _mounts() -> list[list[str]]:
    if not MOUNTINFO.is_file():
        return []
    return [line.split() for line in MOUNTINFO.read_text(errors="replace").splitlines() if line]
