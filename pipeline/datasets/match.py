"""Match captions and split lists to the images they name: the tables of a set of pairs."""

# pyarrow.compute makes its functions when it is imported:
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import itertools
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.datasets.captions import Captions
from pipeline.datasets.images import ImageTable
from pipeline.datasets.manifests import write_captioned
from pipeline.datasets.source import DatasetError, PrepareReport, split_name
from sightline.cache.manifest import CAPTIONS, IMAGES, key_array, whole_files
from sightline.outside import read_lines

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


def splits_from_lists(
    lists: Mapping[str, Path], names: ImageNames, images: ImageTable, report: PrepareReport
) -> np.ndarray:
    """The split of each image, from one list of image names per split: object [n].

    Raises:
        SightlineError: a list cannot be read, a split name is unknown, or an image is in two
            splits.
    """
    rows: list[tuple[str, str, str]] = []
    for name, path in lists.items():
        split = split_name(name, "splits")
        entries = (entry.strip() for entry in read_lines(path))
        rows += [(entry, split, str(path)) for entry in entries if entry]
    return assign_splits(rows, names, images, report)


def assign_splits(
    rows: Iterable[tuple[str, str, str]],
    names: ImageNames,
    images: ImageTable,
    report: PrepareReport,
) -> np.ndarray:
    """The split of each image from (image name, split, source of the entry): object [n].

    Raises:
        DatasetError: an image is in two splits.
    """
    splits = np.full(len(images.paths), "", dtype=object)
    unknown: list[str] = []
    for entry, split, where in rows:
        row = names.find(entry)
        if row < 0:
            unknown.append(entry)
        elif splits[row] not in ("", split):
            raise DatasetError(
                f"{where}: {entry!r} is in the splits {splits[row]} and {split}; an image "
                f"belongs to only one"
            )
        else:
            splits[row] = split
    report.note("split_entries_without_image", dict.fromkeys(unknown))
    return splits


def write_pairs(
    folder: Path,
    images: ImageTable,
    captions: Captions,
    splits: np.ndarray | None,
    report: PrepareReport,
    *,
    strict: bool,
    names: ImageNames | None = None,
) -> None:
    """Write the manifests (`write_captioned`) into ``folder`` and fill ``report``.

    Args:
        splits: the split of each image, object [n]; None: use the column of the captions.

    Raises:
        DatasetError: duplicate caption ids, no caption matches an image, an image is in two
            splits, or as `write_captioned`.
    """
    names = names or ImageNames(images.paths)
    trimmed: list[str] = []
    encoded = pa.array(captions.images).dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    image_rows = np.array([names.find(name) for name in distinct], dtype=np.int64)
    for code in np.flatnonzero(image_rows == UNKNOWN):
        image_rows[code] = names.find(distinct[code].strip())
        if image_rows[code] >= 0:
            trimmed.append(distinct[code])
    report.notes += captions.remarks
    if trimmed:
        report.notes.append(
            f"white space around {len(trimmed):,} image names left out, such as {trimmed[0]!r}"
        )
    codes = encoded.indices.to_numpy()
    rows = image_rows[codes]  # image row of each caption
    for problem, code in (
        ("captions_without_image", UNKNOWN),
        ("captions_of_ambiguous_image", AMBIGUOUS),
    ):
        affected = np.flatnonzero(rows == code)
        report.note(problem, _caption_names(captions, affected))
    kept = np.flatnonzero(rows >= 0)
    if not len(kept):
        raise DatasetError(
            f"{captions.where}: none of its {len(rows)} captions names an image in the folder "
            f"(captions: {captions.images[0]!r}, …; images: {images.paths[0]!r}, …)"
        )
    image_ids = pa.array(images.paths).take(pa.array(rows[kept]))
    ids = _caption_ids(captions, kept, rows[kept], image_ids)
    _refuse_duplicates(captions, kept, ids)
    if splits is None:
        splits = _splits_of_column(captions, kept, rows, images)
    split_column = pa.array(splits, pa.string())
    image_columns = {
        "image_id": pa.array(images.paths, pa.string()),
        "path": pa.array(images.paths, pa.string()),
        **whole_files(len(images.paths)),
        "key": key_array(images.keys),
        "width": pa.array(images.widths, pa.int32()),
        "height": pa.array(images.heights, pa.int32()),
        "split": split_column,
    }
    caption_columns = {
        "caption_id": ids,
        "image_id": image_ids,
        "text": pa.array(captions.texts, pa.string()).take(pa.array(kept)),
        "split": split_column.take(pa.array(rows[kept])),
    }
    write_captioned(
        folder,
        pa.table(image_columns, IMAGES),
        pa.table(caption_columns, CAPTIONS),
        report,
        where=captions.where,
        strict=strict,
    )


def _caption_names(captions: Captions, rows: np.ndarray) -> list[str]:
    if captions.numbers is None:
        return [captions.images[i] for i in rows]
    return [f"{captions.images[i]}#{captions.numbers[i]}" for i in rows]


def _caption_ids(
    captions: Captions, kept: np.ndarray, rows: np.ndarray, image_ids: pa.Array
) -> pa.Array:
    if captions.ids is not None:
        return pa.array(captions.ids, pa.string()).take(pa.array(kept))
    if captions.numbers is not None:
        numbers = pa.array(captions.numbers, pa.string()).take(pa.array(kept))
    else:  # 0, 1, 2, … within each image
        counts: defaultdict[int, Iterator[int]] = defaultdict(itertools.count)
        numbers = pa.array([str(next(counts[row])) for row in rows.tolist()], pa.string())
    return pc.binary_join_element_wise(image_ids, numbers, "#")


def _refuse_duplicates(captions: Captions, kept: np.ndarray, ids: pa.Array) -> None:
    if pc.count_distinct(ids).as_py() == len(ids):
        return
    seen: dict[str, int] = {}
    twice: list[tuple[str, int, int]] = []
    for row, name in zip(kept, ids.to_pylist(), strict=True):
        if name in seen:
            twice.append((name, seen[name], row))
        seen.setdefault(name, row)
    name, one, other = twice[0]
    at = ""
    if captions.lines is not None:
        at = f" (lines {captions.lines[one]} and {captions.lines[other]})"
    raise DatasetError(
        f"{captions.where}: {len(twice)} duplicate caption ids, the first is {name!r}{at}; "
        f"give every caption a unique id"
    )


def _splits_of_column(
    captions: Captions, kept: np.ndarray, rows: np.ndarray, images: ImageTable
) -> np.ndarray:
    splits = np.full(len(images.paths), "", dtype=object)
    if captions.splits is None:
        return splits
    encoded = pa.array(captions.splits).dictionary_encode()
    known = [
        split_name(name, f"{captions.where}, column split") if name.strip() else ""
        for name in encoded.dictionary.to_pylist()
    ]
    values = np.array(known, dtype=object)[encoded.indices.to_numpy()]
    splits[rows[kept]] = values[kept]
    odd = np.flatnonzero(splits[rows[kept]] != values[kept])
    if len(odd):
        row = rows[kept][odd[0]]
        raise DatasetError(
            f"{captions.where}: the captions of {images.paths[row]!r} are in several splits; an "
            f"image belongs to only one"
        )
    return splits
