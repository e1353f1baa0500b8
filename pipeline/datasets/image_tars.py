"""Tar files of images: written from rows of tables, or found and read in place."""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import IO, NamedTuple

from pipeline.datasets.images import files_below, named_files, suffix_of
from pipeline.datasets.manifests import INCOMPLETE, ManifestRows
from pipeline.datasets.source import DatasetError, PrepareReport
from sightline.files import storage
from sightline.files.file_kinds import kind_of, kind_of_names, unexpected
from sightline.files.places import expanded, is_url, shown
from sightline.files.storage import FileState, look
from sightline.tables.outside_columns import OF_CAPTIONS

_SUFFIXES = {b"\xff\xd8\xff": ".jpg", b"\x89PNG": ".png", b"GIF8": ".gif", b"RIFF": ".webp"}
_NOT_IN_NAMES = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_MOST_BYTES = 512 << 20  # of a tar, before its last image
EVERY = "*.tar"
"""The pattern of a data set without one."""
_EXPECTED = "an uncompressed tar: in a compressed one no image has a place of its own"
_COMPRESSED = ("gzip", "bzip2", "xz", "zstd")
_TABLE = "prepare that by the kind `huggingface`"
_GLOB = re.compile(r"[*?[]")
_TAR = re.compile(r"^[^.].*\.(tar(\.\w+)?|tgz)$", re.IGNORECASE)


class ImageTars:
    """Writes images into ``00000.tar``, ``00001.tar`` and so on; equal images give equal files.

    Args:
        folder: made for the first image.

    Attributes:
        count, bytes: of all images.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tar: tarfile.TarFile | None = None
        self._number = -1
        self.count = 0
        self.bytes = 0

    def add(self, data: bytes) -> tuple[str, int]:
        """Append an image; returns the name of its tar and its offset there."""
        if self._tar is None or self._tar.offset > _MOST_BYTES:
            self._next()
        assert self._tar is not None
        member = tarfile.TarInfo(f"{self.count:09d}{_suffix(data)}")  # no owner, no clock
        member.size = len(data)
        self._tar.addfile(member, io.BytesIO(data))
        self.count += 1
        self.bytes += len(data)
        blocks = -(-len(data) // tarfile.BLOCKSIZE)
        return self._name, self._tar.offset - blocks * tarfile.BLOCKSIZE

    @property
    def _name(self) -> str:
        return f"{self._number:05d}.tar"

    def _next(self) -> None:
        self.close()
        self._number += 1
        self._folder.mkdir(exist_ok=True)
        self._tar = tarfile.open(self._folder / self._name, "x", format=tarfile.USTAR_FORMAT)  # noqa: SIM115

    def close(self) -> None:
        """Finish the last tar."""
        if self._tar is not None:
            self._tar.close()
            self._tar = None


def _suffix(data: bytes) -> str:
    """For people who look into a tar; Sightline goes by the content."""
    return next((name for head, name in _SUFFIXES.items() if data.startswith(head)), ".bin")


class Member(NamedTuple):
    """A plain file in a tar: its path there, and the offset and length of its bytes."""

    name: str
    offset: int
    length: int


def members(file: IO[bytes], shard: str, rows: ManifestRows) -> Iterator[Member]:
    """The plain files of an uncompressed tar, in order, named without a leading ``./``.

    What is left out is noted in ``rows``, as of ``shard``.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if not size:
        rows.problem(INCOMPLETE, f"{shard}: has 0 bytes")
        return
    try:
        tar = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115
    except (tarfile.TarError, OSError, ValueError) as error:
        storage.require_of_file(error, shard)
        if (kind := kind_of(file)) not in (None, "tar"):
            fault = unexpected(file.name, kind, _EXPECTED, OF_CAPTIONS[:2])
            then = "name the tar with `shards`" if kind in _COMPRESSED else _TABLE
            raise DatasetError(f"{fault}; {then}") from None
        raise DatasetError(
            f"{file.name}: not an uncompressed tar file ({error}); let `shards` name others, such "
            f"as {EVERY}"
        ) from None
    last, skipped = "", 0
    try:
        while (member := tar.next()) is not None:
            tar.members.clear()  # pyright: ignore[reportAttributeAccessIssue]
            last = _shown(member.name)
            if not 0 <= member.size <= size - member.offset_data:
                fault = f"ends in the middle of {last}"
                break
            if member.isdir():
                continue
            if not member.isreg() or member.issparse():
                skipped += 1
            elif name := _inside(member.name):
                yield Member(name, member.offset_data, member.size)
            else:
                rows.problem("members_with_unusable_names", f"{shard}/{last}")
        else:
            fault = _fault_of_the_end(file, tar.offset, last)
    except (tarfile.TarError, OSError, ValueError, MemoryError) as error:
        storage.require_of_file(error, shard)
        fault = f"cannot be read after {last} ({error})"
    if fault:
        rows.problem(INCOMPLETE, f"{shard}: {fault}")
    if skipped:
        rows.problem("shards_with_links_or_devices", f"{shard}: {skipped} left out")


def _fault_of_the_end(file: IO[bytes], at: int, last: str) -> str:
    """What is wrong behind the last member: tarfile ends in silence at a cut or damage."""
    after = f"after {last}" if last else "at its start"
    file.seek(at)
    end = file.read(tarfile.BLOCKSIZE)
    if not end:
        return f"has no end {after}: the rest may be missing"
    if any(end):
        return f"cannot be read {after} (damaged header)"
    while block := file.read(1 << 20):
        if any(block):
            return f"has more bytes behind its end {after}, such as a second tar"
    return ""


def _inside(name: str) -> str:
    """The plain form of a name; empty if it leads out of the tar's folder, or is not text."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or _NOT_IN_NAMES.search(name):
        return ""
    return "/".join(parts)


def _shown(name: str) -> str:
    """A member's name, without anything that a terminal would obey."""
    return ascii(name)[1:-1] if not (name.isprintable() and name.isascii()) else name


class Shard(NamedTuple):
    """A tar below the folder of the shards, and our split of its images."""

    name: str
    split: str
    file: FileState


def find_shards(root: Path | str, patterns: Sequence[str]) -> dict[str, FileState]:
    """The files below ``root`` that ``patterns`` name, by their names from there, sorted."""
    _require_folder(root)
    shards: dict[str, FileState] = {}
    for pattern in patterns:
        if is_url(root) and not _GLOB.search(pattern):
            shards |= named_files(root, pattern)
            continue
        for glob in expanded(pattern):
            matches = _matches(root, glob)
            if not matches:
                if kind := kind_of_names(_names_in(root)):
                    fault = unexpected(shown(root), kind, "tar files", OF_CAPTIONS[:2])
                    raise DatasetError(f"{fault}; {_TABLE}")
                of = "" if glob == pattern else f" (of {pattern})"
                raise DatasetError(
                    f"{shown(root)}: no shard matches {glob!r}{of}; check the pattern and the "
                    f"folder, which contains {_some_names(root)}"
                )
            shards |= matches
    return dict(sorted(shards.items(), key=lambda shard: shard[0].split("/")))


def _require_folder(root: Path | str) -> None:
    if is_url(root):
        return
    root = Path(root)
    if root.is_file():
        raise DatasetError(
            f"{root}: a file, expected the folder of the shards; give its folder as `images` and "
            f"{root.name!r} as `shards`"
        )
    if not root.is_dir():
        raise DatasetError(f"{root}: no such folder of shards; check the path")


def _matches(root: Path | str, glob: str) -> dict[str, FileState]:
    if is_url(root):
        return storage.files_below(str(root), glob)
    paths = Path(root).glob(glob)
    looks = {path.relative_to(root).as_posix(): look(path) for path in paths}
    return {name: file for name, file in looks.items() if file is not None}


def _names_in(root: Path | str) -> list[str]:
    return sorted(storage.files_below(str(root)) if is_url(root) else os.listdir(root))  # noqa: PTH208


def _some_names(root: Path | str) -> str:
    return ", ".join(map(ascii, _names_in(root)[:3])) or "nothing"


def note_others(root: Path | str, shards: Set[str], report: PrepareReport) -> None:
    """Record the files below ``root`` that the default pattern does not name."""
    if is_url(root):
        names = [*storage.files_below(str(root))]
    else:
        names = [*files_below(Path(root), Path(root), report.ignored)]
    unread = sorted({*names} - shards, key=lambda name: name.split("/"))
    tars = [name for name in unread if _TAR.search(name.rpartition("/")[2])]
    report.note("shards_not_read", tars)
    report.ignored += Counter(suffix_of(name) for name in {*unread} - {*tars})
