"""An output folder that appears whole: built beside its place, then put there in one step."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.cache.atomic import fsync_file, fsync_folder
from pipeline.datasets.base import REPORT, DatasetError

_AT_FDCWD = -100  # linux/fcntl.h
_RENAME_EXCHANGE = 2  # linux/fs.h
_RENAME_SWAP = 2  # sys/stdio.h of macOS


@contextmanager
def building(out: Path) -> Iterator[Path]:
    """A new folder to fill, which takes the place of ``out`` when the block ends without an error.

    A kill leaves the old folder or the new one. What a killed run left beside ``out`` is removed
    by the next one.

    Raises:
        DatasetError: ``out`` holds something that `prepare` did not write.
    """
    out = Path(os.path.abspath(out))  # noqa: PTH100 (resolve() would follow a link at `out`)
    if out.is_symlink():
        out = out.resolve()  # a linked data folder stays a link
    _refuse_foreign(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    _clear_leftovers(out)
    part = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    part.mkdir()
    try:
        yield part
        _make_durable(part)
        if out.exists():
            exchange(part, out)
        else:
            part.rename(out)
        fsync_folder(out.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def exchange(one: Path, other: Path) -> None:
    """Swap two folders of one file system, in a single step where the system has one."""
    if _exchange_at_once(os.fsencode(one), os.fsencode(other)):
        return
    # Two renames: between them `other` is missing, and the next run builds it again.
    aside = one.with_name(f"{one.name}.old")
    other.rename(aside)
    one.rename(other)
    aside.rename(one)


def _exchange_at_once(one: bytes, other: bytes) -> bool:
    library = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "linux" and hasattr(library, "renameat2"):
        return library.renameat2(_AT_FDCWD, one, _AT_FDCWD, other, _RENAME_EXCHANGE) == 0
    if sys.platform == "darwin" and hasattr(library, "renamex_np"):
        return library.renamex_np(one, other, _RENAME_SWAP) == 0
    return False


def _refuse_foreign(out: Path) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise DatasetError(f"{out}: is a file; the output of prepare is a folder")
    if any(out.iterdir()) and not (out / REPORT).is_file():
        raise DatasetError(
            f"{out}: holds files that prepare did not write (there is no {REPORT}), and would "
            f"be replaced; name another output folder"
        )


def _clear_leftovers(out: Path) -> None:
    pattern = re.compile(rf"\.{re.escape(out.name)}\.(\d+)\.tmp(\.old)?")
    for sibling in out.parent.iterdir():
        match = pattern.fullmatch(sibling.name)
        if match and (int(match[1]) == os.getpid() or not _alive(int(match[1]))):
            shutil.rmtree(sibling, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it belongs to somebody else
    return True


def _make_durable(folder: Path) -> None:
    for root, _, names in os.walk(folder):
        # Thousands of small pictures are cheaper to write again than to sync one by one.
        for name in names if len(names) <= 100 else []:
            fsync_file(Path(root, name))
        fsync_folder(Path(root))
