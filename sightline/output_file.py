"""An output that is a single file: replaced only if its first bytes show that we wrote it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sightline.errors import SightlineError
from sightline.files import replacing
from sightline.overlap import check_apart

_HEAD_BYTES = 4096


@contextmanager
def replacing_file(path: Path, mark: bytes | None, inputs: Iterable[Path] = ()) -> Iterator[Path]:
    """A path to write to; it replaces the file ``path`` if the block ends without an error.

    Args:
        mark: bytes near the beginning of every such file that Sightline writes; None if the
            format has no room for them, in which case no file is replaced.
        inputs: as for `Output`.

    Raises:
        SightlineError: ``path`` is a folder, an input, or a file that Sightline did not write.
    """
    check_output_file(path, mark, inputs)
    with replacing(Path(os.path.realpath(path))) as part:
        yield part


def check_output_file(path: Path, mark: bytes | None, inputs: Iterable[Path] = ()) -> None:
    """Refuse what `replacing_file` would, for commands that work for a while before they write.

    Raises:
        SightlineError: as for `replacing_file`.
    """
    if path.is_dir():
        raise SightlineError(f"{path}: is a folder; name the file to write")
    inside = check_apart(path, inputs)
    if inside is not None:
        raise SightlineError(f"{path}: is inside the input {inside}; write it somewhere else")
    if not path.exists():
        return
    if path.is_file() and not path.stat().st_size:
        return  # such as `mktemp` creates
    if mark is None or not path.is_file():
        raise SightlineError(f"{path}: already exists; move it away, or name another file")
    with path.open("rb") as file:
        if mark not in file.read(_HEAD_BYTES):
            raise SightlineError(
                f"{path}: already exists and was not written by this command; move it away, or "
                "name another file"
            )


def write_file(path: Path, data: bytes, mark: bytes, inputs: Iterable[Path] = ()) -> None:
    """Replace our file ``path`` with ``data``, atomically; see `replacing_file`."""
    assert mark in data[:_HEAD_BYTES], f"{path.name}: lacks its mark {mark!r}"
    with replacing_file(path, mark, inputs) as part:
        part.write_bytes(data)
