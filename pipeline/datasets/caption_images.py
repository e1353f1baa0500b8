"""Match captions and split lists to the images they name: the tables of a set of pairs."""

from __future__ import annotations

import itertools
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

import pyarrow as pa

from pipeline.datasets.captions import Captions
from pipeline.datasets.images import ImageTable
from pipeline.datasets.manifests import write_captioned
from pipeline.datasets.source import DatasetError, PrepareReport, split_name
from sightline.cache.manifest import CAPTIONS, IMAGES, key_array, whole_files
from sightline.user_files import read_lines

UNKNOWN, AMBIGUOUS = -1, -2


class ImageNames:
    """Finds the image that a caption file or list refers to.

    A name is a path below the image folder, a file name, or a file name without suffix (as in
    Flickr30k Entities); the last two must be unique. Composed and decomposed letters count as
    equal (macOS stores the latter).
    """

    def __init__(self, paths: list[str]) -> None:
        self._by_path = _index(paths)
        pure = [PurePosixPath(path) for path in paths]
        self._by_name = _index(path.name for path in pure)
        self._by_stem = _index(path.stem for path in pure)

    def find(self, name: str) -> int:
        """Row of the image, or `UNKNOWN`, or `AMBIGUOUS`."""
        name = unicodedata.normalize("NFC", name.removeprefix("./"))
        for index in (self._by_path, self._by_name, self._by_stem):
            row = index.get(name)
            if row is not None:
                return row
        return UNKNOWN


def _index(names: Iterable[str]) -> dict[str, int]:
    rows: dict[str, int] = {}
    for row, name in enumerate(names):
        name = unicodedata.normalize("NFC", name)
        rows[name] = AMBIGUOUS if name in rows else row
    return rows


def listed_splits(lists: Mapping[str, Path]) -> Iterator[tuple[str, str, str]]:
    """For `assign_splits`: the entries of one list of image names per split.

    Raises:
        SightlineError: a list cannot be read, or a split name is unknown.
    """
    for name, path in lists.items():
        split = split_name(name, "splits")
        entries = (entry.strip() for entry in read_lines(path))
        yield from ((entry, split, str(path)) for entry in entries if entry)


def assign_splits(
    entries: Iterable[tuple[str, str, str]],
    names: ImageNames,
    images: ImageTable,
    report: PrepareReport,
) -> list[str]:
    """The split of each image from (image name, split, source of the entry); [n], may be empty.

    Raises:
        DatasetError: an image is in two splits.
    """
    rows = [(names.find(entry), entry, split, where) for entry, split, where in entries]
    unknown = dict.fromkeys(entry for row, entry, _, _ in rows if row < 0)
    report.note("split_entries_without_image", unknown)
    return _one_split_each((each for each in rows if each[0] >= 0), len(images.paths))


def _one_split_each(entries: Iterable[tuple[int, str, str, str]], count: int) -> list[str]:
    """The split of each of ``count`` images from (row, name, split, source of the entry)."""
    splits: dict[int, str] = {}
    for row, name, split, where in entries:
        if splits.setdefault(row, split) != split:
            raise DatasetError(
                f"{where}: {name!r} is in the splits {splits[row]!r} and {split!r}; an image "
                "belongs to only one"
            )
    return [splits.get(row, "") for row in range(count)]


def write_pairs(
    folder: Path,
    images: ImageTable,
    captions: Captions,
    splits: Sequence[str] | None,
    report: PrepareReport,
    *,
    strict: bool,
    names: ImageNames | None = None,
) -> None:
    """Write the manifests (`write_captioned`) into ``folder`` and fill ``report``.

    Args:
        splits: the split of each image, [n]; None: use the column of the captions.

    Raises:
        DatasetError: duplicate caption ids, no caption matches an image, an image is in two
            splits, or as `write_captioned`.
    """
    report.notes += captions.remarks
    row_of = _rows_by_name(captions, names or ImageNames(images.paths), report)
    rows = [row_of[name] for name in captions.images]  # image row of each caption
    for problem, code in (
        ("captions_without_image", UNKNOWN),
        ("captions_of_ambiguous_image", AMBIGUOUS),
    ):
        report.note(problem, (_written(captions, i) for i, row in enumerate(rows) if row == code))
    kept = [i for i, row in enumerate(rows) if row >= 0]
    if not kept:
        raise DatasetError(
            f"{captions.where}: none of its {len(rows)} captions names an image in the folder "
            f"(captions: {captions.images[0]!r}, …; images: {images.paths[0]!r}, …)"
        )
    if splits is None:
        splits = _one_split_each(_column(captions, kept, rows), len(images.paths))
    ids = _caption_ids(captions, kept, rows, images.paths)
    _refuse_duplicates(captions, kept, ids)
    image_columns = {
        "image_id": images.paths,
        "path": images.paths,
        **whole_files(len(images.paths)),
        "key": key_array(images.keys),
        "width": images.widths,
        "height": images.heights,
        "split": splits,
    }
    caption_columns = {
        "caption_id": ids,
        "image_id": [images.paths[rows[i]] for i in kept],
        "text": [captions.texts[i] for i in kept],
        "split": [splits[rows[i]] for i in kept],
    }
    write_captioned(
        folder,
        pa.table(image_columns, IMAGES),
        pa.table(caption_columns, CAPTIONS),
        report,
        where=captions.where,
        strict=strict,
    )


def _rows_by_name(captions: Captions, names: ImageNames, report: PrepareReport) -> dict[str, int]:
    """Name of an image → its row, `UNKNOWN` or `AMBIGUOUS`; white space around a name is noise."""
    rows = {name: names.find(name) for name in dict.fromkeys(captions.images)}
    bare = {name: names.find(name.strip()) for name, row in rows.items() if row == UNKNOWN}
    trimmed = [name for name, row in bare.items() if row >= 0]
    if trimmed:
        report.notes.append(
            f"white space around {len(trimmed):,} image names left out, such as {trimmed[0]!r}"
        )
    return rows | bare


def _written(captions: Captions, i: int) -> str:
    """How the file names caption ``i``."""
    return captions.images[i] + (f"#{captions.numbers[i]}" if captions.numbers else "")


def _caption_ids(
    captions: Captions, kept: Sequence[int], rows: Sequence[int], paths: Sequence[str]
) -> list[str]:
    if captions.ids is not None:
        return [captions.ids[i] for i in kept]
    if captions.numbers is not None:
        return [f"{paths[rows[i]]}#{captions.numbers[i]}" for i in kept]
    counts: defaultdict[int, Iterator[int]] = defaultdict(itertools.count)
    return [f"{paths[rows[i]]}#{next(counts[rows[i]])}" for i in kept]


def _refuse_duplicates(captions: Captions, kept: Sequence[int], ids: Sequence[str]) -> None:
    if len(set(ids)) == len(ids):
        return
    first: dict[str, int] = {}
    twice = [(name, i) for i, name in zip(kept, ids, strict=True) if first.setdefault(name, i) != i]
    name, second = twice[0]
    at = ""
    if captions.lines is not None:
        at = f" (lines {captions.lines[first[name]]} and {captions.lines[second]})"
    raise DatasetError(
        f"{captions.where}: {len(twice)} duplicate caption ids, the first is {name!r}{at}; "
        f"give every caption a unique id"
    )


def _column(
    captions: Captions, kept: Sequence[int], rows: Sequence[int]
) -> Iterator[tuple[int, str, str, str]]:
    """For `_one_split_each`: the captions' own splits."""
    if captions.splits is None:
        return
    where = f"{captions.where}, column split"
    splits = {
        name: split_name(name, where) if name.strip() else ""
        for name in dict.fromkeys(captions.splits)
    }
    for i in kept:
        yield rows[i], captions.images[i], splits[captions.splits[i]], where
