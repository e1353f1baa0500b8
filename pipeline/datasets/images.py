"""The images of a folder: found, hashed and measured by their headers, on several threads."""

from __future__ import annotations

import hashlib
import os
import stat
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.datasets.image_formats import formats, image_suffixes, orientation, swaps_edges
from pipeline.datasets.source import DatasetError, PrepareReport, Progress
from sightline.atomic_files import folders_below
from sightline.cache.file_memory import FileMemory, state_of
from sightline.cache.keys import KEY_BYTES, key_of_text
from sightline.cache.manifest import IMAGES, key_array, key_column, whole_files
from sightline.digest import digest
from sightline.file_kinds import file_kind, unexpected
from sightline.optional_imports import require
from sightline.user_files import control_fault

HIDDEN_FOLDERS = "hidden folders"
"""Their entry among what a source leaves out."""
_BATCH = 256  # files per task: enough to outweigh scheduling
_IMAGE_BYTES, _NO_SIZE = KEY_BYTES + 8, bytes(8)
_MOST_PIXELS = (1 << 31) - 1  # of an edge in the manifest; headers can declare more


def scan_images(
    root: Path,
    report: PrepareReport,
    folders: Iterable[str] = (".",),
    progress: Progress | None = None,
    leave_out: Collection[str] = (),
    beside: str = "",
) -> pa.Table:
    """Find every image below ``folders`` in ``root`` and read its header.

    An image that cannot be opened, or whose header cannot be read, is reported in ``report`` and
    kept, so that extraction records its error. A huge pixel count is not an error here; extraction
    refuses to decode such an image.

    Args:
        leave_out: names of files that are not wanted.
        beside: suffix of files that hold the images' captions.

    Returns:
        A table of the schema IMAGES, sorted by path; a path is also the id. No image has a split.

    Raises:
        DatasetError: a folder is missing or contains no images.
    """
    paths_below: set[str] = set()
    for folder in folders:
        images, ignored = image_files(root / folder, root)
        paths_below.update(images)
        report.ignored += ignored
    report.ignored.pop(beside, None)
    paths = sorted(path for path in paths_below if path.rpartition("/")[2] not in leave_out)
    images = _read_all(root, paths, report.memory, progress)
    sizes = images[:, KEY_BYTES:].copy().view(np.int32)
    report.counts["images"] = len(paths)
    report.counts["files_ignored"] = report.ignored.total() - report.ignored[HIDDEN_FOLDERS]
    if leave_out:
        report.counts["images_left_out"] = len(paths_below) - len(paths)
    report.note("unreadable_images", (paths[i] for i in np.flatnonzero(sizes[:, 0] == 0)))
    columns = {
        "image_id": paths,
        "path": paths,
        **whole_files(len(paths)),
        "key": key_array(images[:, :KEY_BYTES]),
        "width": sizes[:, 0],
        "height": sizes[:, 1],
        "split": [""] * len(paths),
    }
    return pa.table(columns, IMAGES)


def _read_all(
    root: Path, paths: Sequence[str], memory: FileMemory, progress: Progress | None
) -> NDArray[np.uint8]:
    """What `_read` returns of every image, from memory where its file has not changed: [n, 40]."""
    names = [f"{root}/{path}" for path in paths]
    images = np.zeros((len(paths), _IMAGE_BYTES), dtype=np.uint8)

    def read(rows: list[int]) -> None:
        values = [_read(root, paths[row]) for row in rows]
        images[rows] = np.frombuffer(b"".join(values), np.uint8).reshape(-1, _IMAGE_BYTES)
        readable = [value if value[KEY_BYTES:] != _NO_SIZE else None for value in values]
        memory.keep([names[row] for row in rows], [states[row] for row in rows], readable)

    with any_pixel_count(), ThreadPoolExecutor(min(8, 2 * (os.cpu_count() or 1))) as pool:
        states = [state_of(name, read_by()) for name in names]
        known = memory.recall(names, states)
        there = known.drop_null().cast(pa.binary(_IMAGE_BYTES))
        images[known.is_valid()] = key_column(there, _IMAGE_BYTES)
        unknown = [row for row, value in enumerate(known.is_valid().to_pylist()) if not value]
        batches = [unknown[start : start + _BATCH] for start in range(0, len(unknown), _BATCH)]
        done = len(paths) - len(unknown)
        for batch, _ in zip(batches, pool.map(read, batches), strict=True):
            done += len(batch)
            if progress is not None:
                progress("reading", done, len(paths), "images")
    return images


def image_files(folder: Path, root: Path) -> tuple[list[str], Counter[str]]:
    """The image files below ``folder``, as paths from ``root``, and the number of others by suffix.

    Hidden files are left out too, and folders as in `files_below`.

    Raises:
        DatasetError: no such folder, no images in it, or a name that no manifest may hold.
    """
    if folder.is_file() and (kind := file_kind(folder)):
        raise unexpected(folder, kind, "a folder of images")
    if not folder.is_dir():
        raise DatasetError(f"{folder}: no such image folder; check the path")
    images: list[str] = []
    ignored: Counter[str] = Counter()
    for path in files_below(folder, root, ignored):
        suffix = suffix_of(path)
        if suffix in image_suffixes() and not _is_special(f"{root}/{path}"):
            images.append(_usable(path, folder))
        else:
            ignored[suffix] += 1
    if not images:
        raise DatasetError(
            f"{folder}: no images in this folder ({ignored.total()} other files or hidden folders; "
            f"looked for {', '.join(sorted(image_suffixes()))}); check the path"
        )
    return images, ignored


def files_below(folder: Path, root: Path, ignored: Counter[str]) -> Iterator[str]:
    """Every file below ``folder``, as a POSIX path from ``root``.

    Hidden folders are left out, and counted in ``ignored``. Linked ones are followed, each once.
    """

    def skipped(name: str) -> bool:
        if hidden := name.startswith("."):
            ignored[HIDDEN_FOLDERS] += 1
        return hidden

    for parent, names in folders_below(folder, skipped):
        below = parent.relative_to(root).as_posix()
        yield from (name if below == "." else f"{below}/{name}" for name in names)


def suffix_of(name: str) -> str:
    """In small letters; ``hidden`` if the name begins with a dot, ``no suffix`` if it has none."""
    name = name.rpartition("/")[2]
    if name.startswith("."):
        return "hidden"
    stem, _, suffix = name.rpartition(".")
    return f".{suffix.lower()}" if stem and suffix else "no suffix"


def _is_special(path: str) -> bool:
    """Whether it is a pipe, a socket or a device, on which reading could block."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116
    except OSError:
        return False  # a dangling link counts as a missing file


def _usable(path: str, folder: Path) -> str:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise DatasetError(
            f"{folder}: the name of {os.fsencode(path)!r} is not UTF-8; rename the file"
        ) from None
    if fault := control_fault(path):
        raise DatasetError(f"{folder}: the name of {path!r} {fault}")
    return path


def _read(root: Path, path: str) -> bytes:
    """Key, width and height of an image file; one that cannot be opened has a key from its name."""
    try:
        with (root / path).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
            file.seek(0)
            return digest + np.array(upright_size(file), np.int32).tobytes()
    except OSError:
        return key_of_text(f"cannot be opened: {path}") + _NO_SIZE


@cache
def read_by() -> str:
    """What an image's size depends on beside its bytes: Pillow, and the formats that it reads."""
    import PIL

    return digest([PIL.__version__, *formats()])[:8]


def upright_size(file: IO[bytes]) -> tuple[int, int]:
    """Width and height of the image as displayed, from its header; (0, 0) if it cannot be read.

    Call it within `any_pixel_count`.
    """
    from PIL import Image

    try:
        with Image.open(file, formats=formats()) as image:
            width, height = image.size
            turned = swaps_edges(orientation(image))
    except Exception:  # decoders may raise anything on damaged files
        return 0, 0
    if max(width, height) > _MOST_PIXELS:
        return 0, 0
    return (height, width) if turned else (width, height)


@contextmanager
def any_pixel_count() -> Iterator[None]:
    """Allow headers of any image size: nothing is decoded here."""
    require("PIL", "reading images")
    from PIL import Image

    limit = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd metadata does not matter here
            yield
    finally:
        Image.MAX_IMAGE_PIXELS = limit
