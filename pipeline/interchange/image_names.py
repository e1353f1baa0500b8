"""Finds the images that other people's metadata name, and hashes them: the keys of their rows.

A name may be an image's path below the folder, a path that begins elsewhere (all names lose the
same beginning), or the name of the file without its suffix, as in a WebDataset's `__key__`. One of
these readings holds for every name: the one that finds most of a sample.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from pipeline.datasets.images import SUFFIXES
from sightline.cache import IMAGES, key_column, key_of_file, read_manifest
from sightline.errors import SightlineError

_SAMPLE = 1000
Names = Sequence[str | None]


class ImageNames:
    """Keys of images by name.

    Args:
        images: a folder, whose named images are hashed, or an images manifest, whose images were.

    Raises:
        SightlineError: neither, or a folder without images.
    """

    def __init__(self, images: Path) -> None:
        self._root = images
        self._known: dict[str, bytes | None] = {}  # name → key; None: not hashed yet
        if images.is_dir():
            self._known = dict.fromkeys(_listed(images))
        elif images.is_file():
            table = read_manifest(images, IMAGES)
            keys = [key.tobytes() for key in key_column(table["key"])]
            self._known = dict(zip(table["image_id"].to_pylist(), keys, strict=True))
        else:
            raise SightlineError(f"{images}: no such folder or manifest of images")
        if not self._known:
            raise SightlineError(f"{images}: contains no images")
        self._reading: Callable[[str], str | None] | None = None

    def keys(self, names: Names) -> list[bytes | None]:
        """The key of each image, or None if it is missing, unreadable or unnamed."""
        if self._reading is None:
            self._reading = self._choose([name for name in names[:_SAMPLE] if name])
        reading = self._reading
        found = [None if name is None else reading(name) for name in names]
        self._hash({each for each in found if each is not None and self._known[each] is None})
        return [None if each is None else self._known[each] or None for each in found]

    def _choose(self, sample: list[str]) -> Callable[[str], str | None]:
        readings = [self._as_they_are, *self._without_beginnings(sample), self._by_stem()]
        return max(readings, key=lambda read: sum(read(name) is not None for name in sample))

    def _as_they_are(self, name: str) -> str | None:
        return name if name in self._known else None

    def _without_beginnings(self, sample: list[str]) -> Iterator[Callable[[str], str | None]]:
        """Readings that take away a common beginning, the most frequent one first."""
        beginnings: Counter[str] = Counter()
        for name in sample:
            parts = name.split("/")
            for i in range(1, len(parts)):
                rest = "/".join(parts[i:])
                if rest in self._known:
                    beginnings[name.removesuffix(rest)] += 1
                    break
        for beginning, _ in beginnings.most_common(3):

            def read(name: str, beginning: str = beginning) -> str | None:
                rest = name.removeprefix(beginning)
                return rest if rest != name and rest in self._known else None

            yield read

    def _by_stem(self) -> Callable[[str], str | None]:
        counts = Counter(map(_stem, self._known))
        of_stem = {stem: name for name in self._known if counts[stem := _stem(name)] == 1}
        return of_stem.get

    def _hash(self, names: Iterable[str]) -> None:
        def key(name: str) -> bytes:
            try:
                return key_of_file(self._root / name)
            except OSError:
                return b""  # counts as missing

        names = list(names)
        with ThreadPoolExecutor(min(8, 2 * (os.cpu_count() or 1))) as pool:
            self._known.update(zip(names, pool.map(key, names, chunksize=64), strict=True))


def _stem(name: str) -> str:
    return PurePosixPath(name).stem


def _listed(root: Path) -> Iterator[str]:
    """Paths of the image files below a folder, relative to it."""
    for parent, folders, files in os.walk(root):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        here = Path(parent).relative_to(root)
        for name in sorted(files):
            if Path(name).suffix.lower() in SUFFIXES and (Path(parent) / name).is_file():
                yield (here / name).as_posix()
