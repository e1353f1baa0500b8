"""The one matcher of names: captions, splits, features and boxes find images by it.

A name is the path of an image below its folder, or its id in a data set; else that path after a
beginning that all names of the file share (``photos/``, ``/data/upload/1/``); else the name of one
file; else that without its suffix, as in Flickr30k Entities; else a number without its leading
zeros, as COCO's ids; and the same of a URL's path, with %20. Of several files of one name, that in
the folder of the row's split is meant. Composed and decomposed letters count as equal (macOS stores
the latter).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property
from os.path import commonprefix
from pathlib import Path
from urllib.parse import unquote

from sightline.errors import SightlineError

UNKNOWN, AMBIGUOUS = -1, -2
_SAMPLE = 1000
SPLITS = {
    **{name: name for name in ("train", "dev", "test")},
    **dict.fromkeys(("val", "valid", "validation"), "dev"),
}
"""What others call a split → what it is here."""
_FOLDERS = {**SPLITS, "training": "train", "testing": "test"}


class ImageNames:
    """The images of a folder, by every name that they may be given.

    Args:
        paths: of the images, below their folder.
        folder: that folder, of which the last name may be that of a split.
        ids: one for each, of a data set that does not call them by their paths.
    """

    def __init__(
        self, paths: Sequence[str], folder: Path | None = None, ids: Sequence[str] = ()
    ) -> None:
        self.paths = paths
        self._folder = "" if folder is None else folder.name
        self._by_path = _index(paths)
        self._by_id = {} if ids == paths else {name: row for row, name in enumerate(ids)}

    @cached_property
    def _by_name(self) -> dict[str, int | list[int]]:
        return _index(path.rpartition("/")[2] for path in self.paths)

    @cached_property
    def _by_stem(self) -> dict[str, int | list[int]]:
        return _index(_stem(path) for path in self.paths)

    @cached_property
    def _by_number(self) -> dict[str, int | list[int]]:
        return _index(_stem(path).lstrip("0") for path in self.paths)

    def of_file(self, names: Iterable[str]) -> NamesOfFile:
        """How the images are found that a file names so."""
        return NamesOfFile(self, self._beginning(list(dict.fromkeys(names))))

    def _beginning(self, names: list[str]) -> str:
        """The beginning that all names share and no path has; empty if there is none."""
        shared = commonprefix([min(names), max(names)]) if names else ""  # noqa: RUF071
        folders = shared.replace("\\", "/").rpartition("/")[0].split("/")
        if not shared or (folders == [""] and not shared.startswith("/")):
            return ""
        sample = names[:: max(1, len(names) // _SAMPLE)]
        best, most = "", sum(self.exact(name) is not None for name in sample)
        for count in range(1, len(folders) + 1):
            beginning = "/".join(folders[:count]) + "/"
            matches = sum(self.exact(name[len(beginning) :]) is not None for name in sample)
            if matches > most:
                best, most = beginning, matches
        return best

    def exact(self, name: str) -> int | None:
        """The row of the image with this id or path; None: there is none, or several."""
        row = self._by_id.get(name, self._by_path.get(_normal(name)))
        return row if isinstance(row, int) else None

    def by_name(self, name: str) -> list[int]:
        """The rows of the images whose file has this name, else this stem, else this number."""
        name = _normal(name).rpartition("/")[2]
        rows = self._by_name.get(name, self._by_stem.get(name))
        if rows is None and name.isdecimal():
            rows = self._by_number.get(name.lstrip("0"))
        return rows if isinstance(rows, list) else [] if rows is None else [rows]

    def split_of(self, row: int) -> str:
        """The split that an image's folder is named for; empty: none."""
        inside = _split_in(self.paths[row].split("/")[:-1])
        return inside or _split_in([self._folder])


class NamesOfFile:
    """Finds the images that one file names.

    Attributes:
        beginning: dropped from all names; may be empty.
    """

    def __init__(self, images: ImageNames, beginning: str) -> None:
        self._images, self.beginning = images, beginning

    def find(self, name: str, split: str = "") -> int:
        """Row of the image, or `UNKNOWN`, or `AMBIGUOUS`.

        Args:
            split: of the row that names it: train, dev or test; empty: not known.

        Raises:
            SightlineError: what is dropped of the name is of one split, and the image of another.
        """
        row = self._images.exact(name)
        if row is not None:
            return row
        rest = self._rest(name)
        row = self._images.exact(rest)
        if row is None:
            rows = self._of_split(self._images.by_name(rest), split or _split_in(_folders(name)))
            if not rows and (plain := unquote(name)) != name:
                return self.find(plain, split)
            if len(rows) != 1:
                return AMBIGUOUS if rows else UNKNOWN
            (row,) = rows
        self._require_its_split(name, row)
        return row

    def is_path(self, name: str) -> bool:
        """Whether an image has this path as it is written."""
        return self._images.exact(name) is not None

    def candidates(self, name: str) -> list[str]:
        """The paths of the images that a name may mean."""
        by_name, rest = self._images.by_name, self._rest(name)
        rows = by_name(rest) or by_name(unquote(rest))
        return [self._images.paths[row] for row in rows]

    def _rest(self, name: str) -> str:
        return name.replace("\\", "/").removeprefix(self.beginning)

    def _of_split(self, rows: list[int], split: str) -> list[int]:
        if len(rows) < 2 or not split:
            return rows
        return [row for row in rows if self._images.split_of(row) == split] or rows

    def _require_its_split(self, name: str, row: int) -> None:
        split, of_image = _split_in(_folders(name)), self._images.split_of(row)
        if split and of_image and split != of_image:
            raise SightlineError(
                f"{name!r} is of the split {split}, but the only image of that name, "
                f"{self._images.paths[row]!r}, is of {of_image}; give the folder of the images "
                "that the file names"
            )


def _folders(name: str) -> list[str]:
    return name.replace("\\", "/").split("/")[:-1]


def _split_in(folders: Sequence[str]) -> str:
    """The split that the last of these names is, such as val2014; empty: none is one."""
    splits = (_FOLDERS.get(folder.lower().rstrip("0123456789"), "") for folder in reversed(folders))
    return next(filter(None, splits), "")


def _normal(name: str) -> str:
    name = name.removeprefix("./").replace("\\", "/")
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def _stem(path: str) -> str:
    name = path.rpartition("/")[2]
    stem, dot, _ = name.rpartition(".")
    return stem if dot and stem else name


def _index(names: Iterable[str]) -> dict[str, int | list[int]]:
    """Name → its row, or its rows."""
    rows: dict[str, int | list[int]] = {}
    for row, name in enumerate(names):
        name = _normal(name)
        before = rows.setdefault(name, row)
        if before != row:
            rows[name] = [*before, row] if isinstance(before, list) else [before, row]
    return rows
