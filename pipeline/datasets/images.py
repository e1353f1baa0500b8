"""The images of a folder: found, hashed and measured by their headers, on several threads."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import IO, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.datasets.image_formats import formats, image_suffixes, orientation, swaps_edges
from pipeline.datasets.source import DatasetError, PrepareReport, Progress
from sightline.cache.file_memory import FileMemory
from sightline.cache.keys import KEY_BYTES, key_of_text
from sightline.cache.manifest import IMAGES, key_array, key_column, whole_files
from sightline.digest import digest
from sightline.files import storage
from sightline.files.atomic_files import folders_below
from sightline.files.file_kinds import file_kind, unexpected
from sightline.files.places import base_of, expanded, is_url, path_below, shown
from sightline.files.storage import (
    FileState,
    StorageError,
    look,
    look_at_all,
    opened,
    reading,
    require_of_file,
)
from sightline.optional_imports import require
from sightline.user_files import control_fault

HIDDEN_FOLDERS = "hidden folders"
"""Their entry among what a source leaves out."""
_BATCH = 256  # files per task: enough to outweigh scheduling
_IMAGE_BYTES, _NO_SIZE = KEY_BYTES + 8, bytes(8)
_MOST_PIXELS = (1 << 31) - 1  # of an edge in the manifest; headers can declare more


def scan_images(
    root: Path | str,
    report: PrepareReport,
    folders: Iterable[str] = (".",),
    progress: Progress | None = None,
    leave_out: Callable[[Sequence[str]], Collection[str]] | None = None,
    beside: str = "",
) -> pa.Table:
    """Find every image below ``folders`` in ``root`` and read its header.

    An image that cannot be opened, or whose header cannot be read, is reported in ``report`` and
    kept, so that extraction records its error. A huge pixel count is not an error here; extraction
    refuses to decode such an image.

    Args:
        root: a folder here, or its URL; of a web server, with braces that name the images.
        leave_out: which of their paths are not wanted.
        beside: suffix of files that hold the images' captions.

    Returns:
        A table of the schema IMAGES, sorted by path; a path is also the id. No image has a split.

    Raises:
        SightlineError: a folder is missing or contains no images, or a server fails.
    """
    below: dict[str, FileState] = {}
    for folder in folders:
        images, ignored = found_images(root if folder == "." else path_below(root, folder), root)
        below |= images
        report.ignored += ignored
    report.ignored.pop(beside, None)
    paths = sorted(below)
    if leave_out is not None:
        left_out = leave_out(paths)
        paths = [path for path in paths if path not in left_out]
    if not paths:
        raise DatasetError(
            f"{shown(root)}: all of its {len(below):,} images are of splits that are left out; "
            "choose others"
        )
    images = _read_all(root, {path: below[path] for path in paths}, report.memory, progress)
    sizes = images[:, KEY_BYTES:].copy().view(np.int32)
    report.counts["images"] = len(paths)
    report.counts["files_ignored"] = report.ignored.total() - report.ignored[HIDDEN_FOLDERS]
    if leave_out is not None:
        report.counts["images_left_out"] = len(below) - len(paths)
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
    root: Path | str, files: dict[str, FileState], memory: FileMemory, progress: Progress | None
) -> NDArray[np.uint8]:
    """What `_read` returns of every image, from memory where its file has not changed: [n, 40]."""
    base, paths = base_of(root), [*files]
    names = [f"{shown(base)}/{path}" for path in paths]
    states = [f"{read_by()} {file.state}" if file.state else "" for file in files.values()]
    images = np.zeros((len(paths), _IMAGE_BYTES), dtype=np.uint8)
    failed: dict[str, StorageError] = {}

    def read(rows: list[int]) -> None:
        values = [_read(base, paths[row], files[paths[row]], failed) for row in rows]
        images[rows] = np.frombuffer(b"".join(values), np.uint8).reshape(-1, _IMAGE_BYTES)
        readable = [value if value[KEY_BYTES:] != _NO_SIZE else None for value in values]
        memory.keep([names[row] for row in rows], [states[row] for row in rows], readable)

    with any_pixel_count(), reading(readers(base)) as pool:
        recalled = memory.recall(names, states)
        stored = recalled.drop_null().cast(pa.binary(_IMAGE_BYTES))
        images[recalled.is_valid()] = key_column(stored, _IMAGE_BYTES)
        unknown = [row for row, value in enumerate(recalled.is_valid().to_pylist()) if not value]
        size = _BATCH if isinstance(base, Path) else 1
        batches = [unknown[start : start + size] for start in range(0, len(unknown), size)]
        done = len(paths) - len(unknown)
        for batch, _ in zip(batches, pool.map(read, batches), strict=True):
            done += len(batch)
            if progress is not None:
                progress("reading", done, len(paths), "images")
    refuse_failed(base, failed, len(paths), "images")
    return images


def readers(root: Path | str) -> int:
    """How many files are read at once: elsewhere most of the time is waiting."""
    return 32 if is_url(root) else min(8, 2 * (os.cpu_count() or 1))


def refuse_failed(
    root: Path | str, failed: Mapping[str, StorageError], total: int, unit: str
) -> None:
    """Raise for the files that a server would not hand out just now."""
    for name, error in sorted(failed.items()):
        raise DatasetError(
            f"{shown(root)}: {len(failed):,} of {total:,} {unit} could not be read, such as {name} "
            f"({error.reason}); run the same command again: those that were read are remembered"
        )


def found_images(folder: Path | str, root: Path | str) -> tuple[dict[str, FileState], Counter[str]]:
    """The image files below ``folder``, by their paths from ``root``; others counted by suffix.

    Hidden files are left out too, and folders as in `files_below`.
    """
    if is_url(folder):
        files, ignored = _files_elsewhere(str(folder), root)
    else:
        files, ignored = _files_here(Path(folder), Path(root))
    images = {_usable(path, folder): file for path, file in files.items()}
    if not images:
        raise DatasetError(
            f"{shown(folder)}: no images in this folder ({ignored.total()} other files or hidden "
            f"folders; looked for {', '.join(sorted(image_suffixes()))}); check the path"
        )
    return images, ignored


def _files_here(folder: Path, root: Path) -> tuple[dict[str, FileState], Counter[str]]:
    if folder.is_file() and (kind := file_kind(folder)):
        raise unexpected(folder, kind, "a folder of images")
    if not folder.is_dir():
        raise DatasetError(f"{folder}: no such image folder; check the path")
    images: dict[str, FileState] = {}
    ignored: Counter[str] = Counter()
    for path in files_below(folder, root, ignored):
        place, suffix = f"{root}/{path}", suffix_of(path)
        if suffix not in image_suffixes():
            ignored[suffix] += 1
        elif (file := look(place)) is not None:
            images[path] = file
        elif os.path.exists(place):  # noqa: PTH110  a pipe or a device: reading it may not end
            ignored[suffix] += 1
        else:
            images[path] = FileState(0, "")  # a dangling link counts as a missing file
    return images, ignored


def _files_elsewhere(folder: str, root: Path | str) -> tuple[dict[str, FileState], Counter[str]]:
    """Those that braces name, which must be there, or those that object storage lists."""
    base = base_of(folder)
    before = shown(base).removeprefix(shown(base_of(root))).strip("/")
    start = f"{before}/" if before else ""
    if base != folder:
        files = named_files(base, shown(folder).removeprefix(f"{shown(base)}/"))
        return {start + name: file for name, file in files.items()}, Counter()
    images: dict[str, FileState] = {}
    ignored: Counter[str] = Counter()
    for name, file in storage.files_below(folder).items():
        hidden = any(part.startswith(".") for part in name.split("/")[:-1])
        suffix = HIDDEN_FOLDERS if hidden else suffix_of(name)
        if suffix in image_suffixes():
            images[start + name] = file
        else:
            ignored[suffix] += 1
    return images, ignored


def named_files(root: Path | str, pattern: str) -> dict[str, FileState]:
    """The files that a pattern without * names, such as ``{00..41}.tar``, by their names."""
    names = expanded(pattern)
    looks = look_at_all([path_below(root, name) for name in names])
    files = {name: file for name, file in zip(names, looks, strict=True) if file is not None}
    if missing := [name for name in names if name not in files]:
        raise DatasetError(
            f"{shown(root)}: {len(missing):,} of the {len(names):,} files that {pattern!r} names "
            f"are not there, such as {missing[0]}; check the pattern and the address"
        )
    return files


def files_below(folder: Path, root: Path, ignored: Counter[str]) -> Iterator[str]:
    """Every file below ``folder``, as a POSIX path from ``root``.

    Hidden folders are left out, and counted in ``ignored``. Linked ones are followed, each once.
    """

    def skipped(below: Path) -> bool:
        if hidden := below.name.startswith("."):
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


def _usable(path: str, folder: Path | str) -> str:
    folder = shown(folder)
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise DatasetError(
            f"{folder}: the name of {os.fsencode(path)!r} is not UTF-8; rename the file"
        ) from None
    if fault := control_fault(path):
        raise DatasetError(f"{folder}: the name of {path!r} {fault}")
    return path


def _read(root: Path | str, path: str, state: FileState, failed: dict[str, StorageError]) -> bytes:
    """Key, width and height of an image file; one that cannot be opened has a key from its name.

    What may be read another time is added to ``failed``.
    """
    place = path_below(root, path)
    try:
        with _readable(place), opened(place, state) as file:
            digest = hashlib.file_digest(cast("BytesIO", file), "sha256").digest()
            file.seek(0)
            return digest + np.array(upright_size(file), np.int32).tobytes()
    except StorageError as error:
        if not error.lasting:
            failed[path] = error
    except OSError:
        pass
    return key_of_text(f"cannot be opened: {path}") + _NO_SIZE


@contextmanager
def _readable(place: str) -> Iterator[None]:
    """An error of this machine is one of storage, which may pass (`require_of_file`)."""
    try:
        yield
    except OSError as error:
        require_of_file(error, place)
        raise


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
    except Exception as error:  # decoders may raise anything on damaged files
        require_of_file(error, getattr(file, "name", ""))
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
