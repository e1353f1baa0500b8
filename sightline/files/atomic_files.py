"""Files that appear whole or not at all, where they lie, and what their file systems can do."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sightline.errors import SightlineError

MOUNTINFO = Path("/proc/self/mountinfo")  # proc(5); other systems have none


HOME_REMEDY = "~ is not expanded here; write the whole path (./~ for a folder of that name)"
_HOME = re.compile(r"""(?:^|[=:,\[{]\s*["']?)~(?:[a-zA-Z_][\w.-]*)?/|^(?:--[\w-]+=)?~$""")


def names_home(text: str) -> bool:
    """Whether ``text``, a word of a command or a value, has a path from ~, which shells expand."""
    return _HOME.search(text) is not None


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


_NO_RENAMES = {
    *(errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP),
    *(errno.EPERM, errno.EINVAL, errno.EEXIST),
}
"""Errors of file systems that cannot replace a file by renaming another one."""


def fsync(path: Path) -> None:
    """Make the bytes of a file durable, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def free_bytes(folder: Path) -> int:
    """Bytes that are free where ``folder`` is, or would be made."""
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    return shutil.disk_usage(existing).free


@contextmanager
def replacing(path: Path, via: Path | None = None) -> Iterator[Path]:
    """A path to write to; it replaces ``path`` if the block ends without an error.

    Args:
        via: folder on the same file system to make the file in, such as `Output.unfinished`; a
            kill leaves it there. None: beside ``path``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = (via or path.parent) / f".{path.name}.{secrets.token_hex(8)}.tmp"
    try:
        yield part
        fsync(part)
        _rename(part, path)
        fsync(path.parent)
    except OSError as error:
        if error.filename is None:  # that of a write names no file
            error.filename = os.fspath(path)
        raise
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _rename(part: Path, path: Path) -> None:
    try:
        part.replace(path)
    except OSError as error:
        if error.errno not in _NO_RENAMES:
            raise
        raise SightlineError(
            f"{path.parent}: this file system cannot replace a file by renaming another one "
            f"({error.strerror}), so a killed run would leave a partial file; put the output on a "
            "local disk or a POSIX network file system"
        ) from error


def write_bytes(path: Path, data: bytes | memoryview, via: Path | None = None) -> None:
    """Replace ``path`` with ``data``, durably and atomically.

    Args:
        via: as in `replacing`.
    """
    with replacing(path, via) as part:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            left, offset = memoryview(data), 0
            while left:  # the system may accept it in several pieces
                count = os.pwrite(handle, left, offset)
                left, offset = left[count:], offset + count
        finally:
            os.close(handle)


def folders_below(
    top: Path,
    skipped: Callable[[Path], bool],
    failed: Callable[[OSError], object] | None = None,
) -> Iterator[tuple[Path, list[str]]]:
    """Every folder at and below ``top`` with its files; links after all others, none twice.

    Args:
        skipped: whether a folder is passed over.
        failed: takes the error of a folder that cannot be read; None: it is passed over.
    """
    linked, visited = deque([top]), set()
    while linked:
        for parent, names, files in os.walk(linked.popleft(), onerror=failed):
            about = Path(parent).stat()
            if (about.st_dev, about.st_ino) in visited:
                names.clear()
                continue
            visited.add((about.st_dev, about.st_ino))
            yield Path(parent), files
            names[:] = sorted(name for name in names if not skipped(Path(parent, name)))
            links = (Path(parent) / name for name in names)
            linked.extend(path for path in links if path.is_symlink())


def model_paths(*names: str) -> list[Path]:
    """The files and folders of this machine among the ``names`` of models.

    A set or a run of ours with the name of a model on the hub is not that model.
    """
    paths = [Path(name) for name in names]
    ours = ("set.json", "run.json")
    return [p for p in paths if p.exists() and not any((p / name).is_file() for name in ours)]


def check_apart(out: Path, inputs: Iterable[Path]) -> Path | None:
    """Refuse an output that is one of the inputs or contains one; missing inputs are ignored.

    Returns:
        The input folder that contains ``out``, or None.
    """
    around = _identities(out)
    inside = None
    for source in inputs:
        if not source.exists():
            continue
        identities = _identities(source)
        if out.exists() and around[0] == identities[0]:
            raise SightlineError(f"{out}: is also an input of this command; name another output")
        if out.exists() and around[0] in identities:
            raise SightlineError(
                f"{out}: contains the input {source}; name another output, such as "
                f"{out / 'sightline'}"
            )
        if identities[0] in around and source.is_dir():
            inside = source
    return inside


def _identities(path: Path) -> list[tuple[int, int]]:
    """Device and inode of ``path`` and of every folder above it, of those that exist."""
    path = Path(os.path.realpath(path))
    stats = (place.stat() for place in (path, *path.parents) if place.exists())
    return [(stat.st_dev, stat.st_ino) for stat in stats]
