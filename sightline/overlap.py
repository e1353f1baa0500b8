"""A command's output must not overlap its inputs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sightline.errors import SightlineError


def check_apart(out: Path, inputs: Iterable[Path], holds_only: bool = False) -> Path | None:
    """Refuse an output that is one of the inputs or holds one.

    Args:
        holds_only: do not check whether ``out`` is inside an input.

    Returns:
        The input folder that contains ``out``, or None.

    Raises:
        SightlineError: ``out`` is an input or contains one.
    """
    around = _identities(out)
    inside = None
    for given in inputs:
        if not given.exists():
            continue
        found = _identities(given)
        own = around[0] if around and out.exists() else None
        if own is not None and own == found[0]:
            raise SightlineError(f"{out}: is also an input of this command; name another output")
        if own is not None and own in found[1:]:
            raise SightlineError(
                f"{out}: contains the input {given}; name another output, such as "
                f"{out / 'sightline'}"
            )
        if not holds_only and found[0] in around and given.is_dir():
            inside = given
    return inside


def _identities(path: Path) -> list[tuple[int, int]]:
    """Device and inode of ``path`` and of every folder above it, of those that exist."""
    path = Path(os.path.realpath(path))
    found: list[tuple[int, int]] = []
    for each in (path, *path.parents):
        with suppress(OSError):
            stat = each.stat()
            found.append((stat.st_dev, stat.st_ino))
    return found
