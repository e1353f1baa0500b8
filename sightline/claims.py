"""Claims: Sightline's files in an output folder that its record does not list."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath

from sightline.errors import SightlineError

MOST_BYTES = 64 << 20
"""A larger record or list of claims was not written by Sightline."""
_HEAD = "sightline.claims/1"


def read_claims(folder: Path, record: str) -> set[str]:
    """Names of our files in ``folder`` that its record may not list; see `sightline.output`.

    Raises:
        SightlineError: the file with the name of the claims was not written by Sightline.
    """
    path = claims_of(folder, record)
    if not os.path.lexists(path):
        return set()
    text = ""
    if path.is_file() and path.stat().st_size <= MOST_BYTES:
        text = path.read_text(encoding="utf-8", errors="replace")
    lines = text.split("\n")
    if lines[0] != json.dumps(_HEAD):
        raise SightlineError(
            f"{path}: was not written by Sightline, which keeps its own file under that name; move "
            "it away, or name another output"
        )
    names: set[str] = set()
    for line in lines[1:]:
        with suppress(ValueError):  # a torn line claims nothing
            name = json.loads(line)
            if isinstance(name, str) and stays_inside(name):
                names.add(name)
    return names


def claims_text(names: Iterable[str]) -> bytes:
    """The content of a list of claims."""
    return "".join(f"{json.dumps(name)}\n" for name in (_HEAD, *names)).encode()


def claims_of(folder: Path, record: str) -> Path:
    """Where the claims beside a record are kept."""
    return folder / f"{record.removesuffix('.json')}.claims"


def stays_inside(name: str) -> bool:
    """Whether a name leads to a file in its own folder or below."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts
