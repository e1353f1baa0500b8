"""The images of a folder: found, hashed and measured by their headers, on several threads."""

from __future__ import annotations

import hashlib
import os
import stat
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa

from pipeline.datasets.image_formats import formats, image_suffixes, orientation, swaps_edges
from pipeline.datasets.source import DatasetError, PrepareReport, Progress
from sightline.atomic_files import folders_below
from sightline.cache.keys import KEY_BYTES, key_of_text
from sightline.cache.manifest import IMAGES, key_array, whole_files
from sightline.file_kinds import file_kind, unexpected
from sightline.optional_imports import require
from sightline.user_files import control_fault

HIDDEN_FOLDERS = "hidden folders"
"""Their entry among what a source leaves out."""
_BATCH = 256  # files per task: enough to outweigh scheduling
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
    keys = np.empty((len(paths), KEY_BYTES), dtype=np.uint8)
    sizes = np.zeros((len(paths), 2), dtype=np.int32)
    starts = range(0, len(paths), _BATCH)

    def read(start: int) -> None:
        for i in range(start, min(start + _BATCH, len(paths))):
            digest, size = _read(root, paths[i])
            keys[i] = np.frombuffer(digest, dtype=np.uint8)
            sizes[i] = size

    with any_pixel_count(), ThreadPoolExecutor(min(8, 2 * (os.cpu_count() or 1))) as pool:
        for start, _ in zip(starts, pool.map(read, starts), strict=True):
            if progress is not None:
                progress("reading", min(start + _BATCH, len(paths)), len(paths), "images")
    report.counts["images"] = len(paths)
    report.counts["files_ignored"] = report.ignored.total() - report.ignored[HIDDEN_FOLDERS]
    if leave_out:
        report.counts["images_left_out"] = len(paths_below) - len(paths)
    report.note("unreadable_images", (paths[i] for i in np.flatnonzero(sizes[:, 0] == 0)))
    columns = {
        "image_id": paths,
        "path": paths,
        **whole_files(len(paths)),
        "key": key_array(keys),
        "width": sizes[:, 0],
        "height": sizes[:, 1],
        "split": [""] * len(paths),
    }
    return pa.table(columns, IMAGES)


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
        if suffix in image_suffixes() and not _is_special(root / path):
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
    return "hidden" if name.startswith(".") else Path(name).suffix.lower() or "no suffix"


def _is_special(path: Path) -> bool:
    """Whether it is a pipe, a socket or a device, on which reading could block."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
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


def _read(root: Path, path: str) -> tuple[bytes, tuple[int, int]]:
    """Key and size of an image file; a file that cannot be opened has a key from its name."""
    try:
        with (root / path).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
            file.seek(0)
            return digest, upright_size(file)
    except OSError:
        return key_of_text(f"cannot be opened: {path}"), (0, 0)


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
