"""The one matcher of names: captions, splits, features and boxes find images by it.

First comes an image's id, or its path below its folder, as it stands. A name with folders, or the
path of a URL, fits an image if its folders agree with the image's, from the last on: over all of
its own, or over all (at least one) of the image's below the images' folder; the names of that
folder and of its parents count. The longest agreement wins; folders that contradict never fit.
Folders that begin all names of a file are dropped where that leaves a name without any. A name
without folders fits the only file of that name. In place of a file's name there may be the name
without its suffix, as in Flickr30k Entities, or a number without its leading zeros, as COCO's ids.
Of several files, that in the folder of the row's split is meant. Composed and decomposed letters
count as equal (macOS stores the latter).
"""

from __future__ import annotations

import os
import posixpath
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import combinations
from os.path import commonprefix
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from sightline.errors import SightlineError
from sightline.files.places import is_url, shown
from sightline.user_files import short
from sightline.wording import counted

UNKNOWN, AMBIGUOUS = -1, -2
SPLITS = {
    **{name: name for name in ("train", "dev", "test")},
    **dict.fromkeys(("val", "valid", "validation"), "dev"),
}
"""What others call a split → what it is here."""
_FOLDERS = {**SPLITS, "training": "train", "testing": "test"}
_URL = re.compile(r"[A-Za-z][\w+.-]+:(?P<host>//[^/?#]*)(?P<path>[^?#]*)", re.ASCII)
_DRIVE = re.compile(r"[A-Za-z]:")
_NAME, _STEM, _NUMBER = "name", "stem", "number"
_FORMS = (_NAME, _STEM, _NUMBER)
"""What of a file's name is given; the first that fits counts."""


class _Name(NamedTuple):
    """A name in parts.

    Attributes:
        start: what it starts from: nothing, ``/``, ``../``, ``C:``, or a URL's ``//host``.
    """

    start: str
    folders: tuple[str, ...]
    file: str


class _Fit(NamedTuple):
    """The images that a name fits.

    Attributes:
        agreed: number of the name's folders that are theirs.
        whole: whether the name holds all of the path below the images' folder.
        dropped: whether the other folders begin all names of the file.
    """

    name: _Name
    rows: list[int]
    agreed: int = 0
    whole: bool = False
    dropped: bool = False


class _Claim(NamedTuple):
    """Names of a file, in one folder, that fit one image.

    Attributes:
        certain: whether these folders are all of the image's below the images' folder, and agree.
        score: the image is that of the highest.
    """

    start: str
    folders: tuple[str, ...]
    certain: bool
    score: tuple[int, ...]

    def contradicts(self, other: _Claim) -> bool:
        """Whether the two are different files; relative names start from one folder."""
        if (self.start, self.folders) == (other.start, other.folders):
            return False
        if _contradict(self.folders, other.folders):
            return True
        return (self.start == "") == (other.start == "") and not (self.certain and other.certain)


class ImageNames:
    """The images of a folder, by every name that they may be given.

    Args:
        paths: of the images, below their folder.
        folder: that folder, or its URL; None: not known.
        ids: one for each, of a data set that does not call them by their paths.
    """

    def __init__(
        self, paths: Sequence[str], folder: Path | str | None = None, ids: Sequence[str] = ()
    ) -> None:
        self.paths = paths
        self._above = _spellings(folder)
        self._indexes: dict[tuple[str, int | None], dict[str, int | list[int]]] = {}
        self._by_id = {} if ids == paths else {name: row for row, name in enumerate(ids)}

    def of_file(self, names: Iterable[str], splits: Sequence[str] = ()) -> NamesOfFile:
        """How the images are found that a file names so.

        Args:
            names: all of the file's.
            splits: of the row of each: train, dev, test or empty.
        """
        return NamesOfFile(self, names, splits)

    def exact(self, name: str) -> int | None:
        """The row of the image with this id or path; None: there is none, or several."""
        row = self._by_id.get(name)
        rows = self.ending_in(_normal(name)) if row is None else [row]
        if len(rows) > 1:  # one path has composed letters, the other has not
            rows = [row for row in rows if self.paths[row] == name]
        return rows[0] if len(rows) == 1 else None

    def ending_in(self, end: str, form: str = _NAME, depth: int | None = None) -> list[int]:
        """The rows of the images whose path is ``end``, or ends in it.

        Args:
            form: what its last part is, of `_FORMS`.
            depth: number of folders in it; None: it is all of the path.
        """
        if (form, depth) not in self._indexes:
            self._indexes[form, depth] = self._index(form, depth)
        rows = self._indexes[form, depth].get(end)
        return rows if isinstance(rows, list) else [] if rows is None else [rows]

    def _index(self, form: str, depth: int | None) -> dict[str, int | list[int]]:
        index: dict[str, int | list[int]] = {}
        for row, path in enumerate(map(_normal, self.paths)):
            folder, slash, file = path.rpartition("/")
            last = _of_file(form, file)
            if depth is not None:
                folders = folder.split("/") if folder else []
                if len(folders) < depth:
                    continue
                folder = "/".join(folders[len(folders) - depth :])
                slash = "/" if depth else ""
            if last is None:
                continue
            end = f"{folder}{slash}{last}"
            before = index.setdefault(end, row)
            if before != row:
                index[end] = [*before, row] if isinstance(before, list) else [before, row]
        return index

    def agreeing_above(self, folders: Sequence[str]) -> tuple[int, int]:
        """How many of these, from the last on, the images' folder and its parents are.

        Returns:
            The most in any of its spellings, and those as it was given.
        """
        counts = [_agreeing(folders, above) for above in self._above]
        return (max(counts), counts[0]) if counts else (0, 0)

    def split_of(self, row: int) -> str:
        """The split that the folder of an image is named for; empty: none."""
        above = self._above[0][-2:] if self._above else ()
        return split_in((*above, *self.paths[row].split("/")[:-1]))


class NamesOfFile:
    """Finds the images that one file names.

    Attributes:
        beginning: dropped from all names; may be empty.
        shortened: the names that `find` matched by less than the image's path.
        elsewhere: names without an image → path of a file that is called so in another folder.
    """

    def __init__(self, images: ImageNames, names: Iterable[str], splits: Sequence[str]) -> None:
        self._images = images
        self.shortened: set[str] = set()
        self.elsewhere: dict[str, str] = {}
        names = list(names) if splits else names
        self._splits: defaultdict[str, set[str]] = defaultdict(set)
        for name, split in zip(names, splits, strict=True) if splits else ():
            self._splits[name].add(split)
        rows = {name: images.exact(name) for name in dict.fromkeys(names) if name}
        self._fits: dict[str, _Fit] = {}
        self._shared: tuple[str, ...] = ()
        if None in rows.values():
            heads = {(parts.start, *parts.folders) for parts, *_ in map(_readings, rows)}
            self._shared = tuple(commonprefix([min(heads), max(heads)]))  # noqa: RUF071
            self._fits = {name: self._fit(name) for name, row in rows.items() if row is None}
            self._leave_one_folder({row for row in rows.values() if row is not None})
        self.beginning = self._beginning(rows)

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
        fit = self._fit(name)
        rows = self._of_split(name, fit.rows, split)
        if len(rows) > 1:
            return AMBIGUOUS
        if not rows:
            if path := self._called_so(fit.name.file):
                self.elsewhere[name] = path
            return UNKNOWN
        if fit.dropped:
            self._require_its_split(name, fit.name, rows[0])
        if not fit.whole:
            self.shortened.add(name)
        return rows[0]

    def candidates(self, name: str) -> list[str]:
        """The paths of the images that a name may mean."""
        return [self._images.paths[row] for row in self._fit(name).rows]

    def remarks(self) -> list[str]:
        """What the user should know of the names that were looked for."""
        shortened = f"{counted(len(self.shortened), 'image name')} matched by less than a path"
        return [shortened] * bool(self.shortened) + self.remedies()

    def remedies(self) -> list[str]:
        """How to write the names that lead to other folders."""
        if not self.elsewhere:
            return []
        name, path = next(iter(self.elsewhere.items()))
        return [
            f"{counted(len(self.elsewhere), 'image name')} without an image, such as "
            f"{short(name)}, end like the path of one in another folder, {short(path)}; where they "
            "are the same image, write its path from the folder of the images"
        ]

    def _fit(self, name: str) -> _Fit:
        """The images that fit a name which is none's path as it stands."""
        if name in self._fits:
            return self._fits[name]
        readings = _readings(name)
        fits = (self._fit_as(form, reading) for reading in readings for form in _FORMS)
        return next((fit for fit in fits if fit.rows), _Fit(readings[0], []))

    def _fit_as(self, form: str, name: _Name) -> _Fit:
        """The images that fit a name best if its last part is of this form."""
        last, folders, depth = _given_as(form, name.file), name.folders, len(name.folders)
        if last is None or not (depth or name.start in ("", "/", *self._shared[:1])):
            return _Fit(name, [])
        fits: list[_Fit] = []
        for below in range(depth):  # images with so many folders
            rows = self._images.ending_in("/".join((*folders[depth - below :], last)), form)
            if not rows:
                continue
            agreed = below + self._images.agreeing_above(folders[: depth - below])[0]
            dropped = agreed < depth and not below
            if agreed < depth and below:
                rows = [row for row in rows if self._may_be_of(split_in(folders), row)]
            if not dropped or depth - agreed < len(self._shared):  # whose first is the start
                fits.append(_Fit(name, rows, agreed, form == _NAME, dropped))
        end = "/".join((*folders, last))
        paths = self._images.ending_in(end) if form == _NAME else []
        if rows := paths or self._images.ending_in(end, form, depth):
            fits.append(_Fit(name, rows, depth, bool(paths)))
        if len(fits) < 2:
            return fits[0] if fits else _Fit(name, [])
        best = max((fit.agreed, fit.whole) for fit in fits)
        fits = [fit for fit in fits if (fit.agreed, fit.whole) == best]
        return fits[0]._replace(rows=[row for fit in fits for row in fit.rows])

    def _leave_one_folder(self, exact: Collection[int]) -> None:
        """Take an image from all names but those in the folder that fits it best."""
        names_of: defaultdict[int, list[str]] = defaultdict(list)
        for name, fit in self._fits.items():
            if len(fit.rows) == 1:
                names_of[fit.rows[0]].append(name)
        for row, names in names_of.items():
            if len(names) == 1 and row not in exact:
                continue
            claims = {name: self._claim(self._fits[name], row) for name in names}
            every = {*claims.values()}
            if row in exact:
                folders = tuple(_normal(self._images.paths[row]).split("/")[:-1])
                every.add(_Claim("", folders, certain=True, score=(2,)))
            highest = max(claim.score for claim in every)
            best = [claim for claim in every if claim.score == highest]
            undecided = any(claim.contradicts(rival) for claim, rival in combinations(best, 2))
            for name, claim in claims.items():
                if undecided or any(claim.contradicts(rival) for rival in best):
                    self._fits[name] = self._fits[name]._replace(rows=[])

    def _claim(self, fit: _Fit, row: int) -> _Claim:
        start, folders, _ = fit.name
        below = self._images.paths[row].count("/")
        certain = fit.agreed == len(folders) >= below
        _, as_given = self._images.agreeing_above(folders[: max(0, len(folders) - below)])
        return _Claim(start, folders, certain, (certain, fit.agreed, as_given))

    def _beginning(self, names: Collection[str]) -> str:
        """What stands before the paths of most images, if it begins all names."""
        beginnings: Counter[str] = Counter()
        for name, fit in self._fits.items():
            if fit.whole and len(fit.rows) == 1:
                name, path = name.replace("\\", "/"), self._images.paths[fit.rows[0]]
                if name.endswith(path):
                    beginnings[name.removesuffix(path)] += 1
        for beginning, _ in beginnings.most_common():
            if all(name.replace("\\", "/").startswith(beginning) for name in names):
                return beginning
        return ""

    def _called_so(self, file: str) -> str:
        """The path of the first image whose file is called so; empty: none is."""
        for form in _FORMS:
            last = _given_as(form, file)
            if last is not None and (rows := self._images.ending_in(last, form, 0)):
                return self._images.paths[rows[0]]
        return ""

    def _of_split(self, name: str, rows: list[int], split: str) -> list[int]:
        if not split:
            return rows
        of_split = [row for row in rows if self._images.split_of(row) == split]
        if len(rows) == 1 and self._images.split_of(rows[0]) in self._splits.get(name, ()):
            return of_split  # which is meant by the same name in a row of its own split
        return of_split or rows

    def _may_be_of(self, split: str, row: int) -> bool:
        return not split or self._images.split_of(row) in ("", split)

    def _require_its_split(self, text: str, name: _Name, row: int) -> None:
        split = split_in(name.folders)
        if not self._may_be_of(split, row):
            raise SightlineError(
                f"{text!r} is of the split {split}, but the only image of that name, "
                f"{self._images.paths[row]!r}, is of {self._images.split_of(row)}; give the folder "
                "of the images that the file names"
            )


def contradict(first: str, second: str) -> bool:
    """Whether what is dropped of two files' names says that they name different images."""
    return _contradict(*(_readings(text)[0].folders for text in (first, second)))


def _contradict(first: Sequence[str], second: Sequence[str]) -> bool:
    return _agreeing(first, second) < min(len(first), len(second))


def _agreeing(first: Sequence[str], second: Sequence[str]) -> int:
    """How many of these are equal, from the last on."""
    count = 0
    while count < min(len(first), len(second)) and first[~count] == second[~count]:
        count += 1
    return count


def _spellings(folder: Path | str | None) -> list[tuple[str, ...]]:
    """The names of a folder and its parents: as it is given, and where its links lead."""
    if folder is None:
        return []
    if is_url(folder):
        return [_readings(f"{shown(folder)}/")[0].folders]
    places = os.path.abspath(folder), os.path.realpath(folder)  # noqa: PTH100
    return [_readings(f"{place}/")[0].folders for place in dict.fromkeys(places)]


def split_in(folders: Sequence[str]) -> str:
    """The split that folders name: the last, such as val2014, or the one above ``images``."""
    last = folders[-2:-1] if folders and folders[-1].lower() == "images" else folders[-1:]
    return _FOLDERS.get(last[0].lower().rstrip("0123456789"), "") if last else ""


def _readings(name: str) -> list[_Name]:
    """A name in parts, as it is written and without percent-escapes; of a URL, without first."""
    url = _URL.match(name) if ":" in name else None
    start, path = (url["host"], url["path"]) if url else ("", name)
    if "%" not in path:
        return [_parts(start, _normal(path))]
    texts = (unquote(path), path) if url else (path, unquote(path))
    return [_parts(start, _normal(text)) for text in texts]


def _parts(start: str, path: str) -> _Name:
    head = path[: path.rfind("/") + 1]
    own_start, folders = _folders(head)
    return _Name(start or own_start, folders, path[len(head) :])


@lru_cache(maxsize=1 << 12)
def _folders(head: str) -> tuple[str, tuple[str, ...]]:
    """What a normal path of a folder starts from, and its names."""
    folders = [folder for folder in head.split("/") if folder]
    start = "/" if head.startswith("/") else ""
    while folders and folders[0] == "..":
        start += f"{folders.pop(0)}/"
    if folders and _DRIVE.fullmatch(folders[0]):
        start = folders.pop(0)
    return start, tuple(folders)


def _normal(path: str) -> str:
    r"""A path with ``/`` for ``\``, composed letters, and none of ``.``, ``a/..`` and ``//``."""
    path = path.replace("\\", "/")
    if not path.isascii():
        path = unicodedata.normalize("NFC", path)
    if path.startswith((".", "//")) or "/." in path or "//" in path:
        end = "/" if path.endswith("/") else ""
        path = posixpath.normpath(f"/{path.lstrip('/')}" if path.startswith("/") else path) + end
    return path


def _of_file(form: str, file: str) -> str | None:
    """What a file is called in a form; None: nothing."""
    if form == _NAME:
        return file
    stem, dot, _ = file.rpartition(".")
    stem = stem if dot and stem else file
    return stem if form == _STEM else _given_as(form, stem)


def _given_as(form: str, last: str) -> str | None:
    """What the last part of a name is if it is meant in a form; None: it cannot be."""
    if form != _NUMBER:
        return last
    return last.lstrip("0") if last.isdecimal() else None
