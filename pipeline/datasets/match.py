"""Match captions and split lists to the images they name: the tables of a set of pairs."""

# pyarrow.compute makes its functions when it is imported:
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.datasets.captioned import visible, write_captioned
from pipeline.datasets.captions import Captions
from pipeline.datasets.images import ImageTable
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
            splits, or ``strict`` is set and there are problems.
    """
    names = names or ImageNames(images.paths)
    trimmed: list[str] = []
    encoded = pa.array(captions.images).dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    found = np.array([names.find(name) for name in distinct], dtype=np.int64)
    for code in np.flatnonzero(found == UNKNOWN):
        found[code] = names.find(distinct[code].strip())
        if found[code] >= 0:
            trimmed.append(distinct[code])
    report.notes += captions.remarks
    if trimmed:
        report.notes.append(
            f"white space around {len(trimmed):,} image names left out, such as {trimmed[0]!r}"
        )
    codes = encoded.indices.to_numpy()
    rows = found[codes]  # image row of each caption
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

    texts = pc.utf8_trim_whitespace(pa.array(captions.texts).take(pa.array(kept)))
    filled = visible(texts)
    report.counts["captions"] = int(pc.sum(filled).as_py() or 0)
    empty = np.flatnonzero(~filled.to_numpy(zero_copy_only=False))
    report.note("empty_captions", ids.take(pa.array(empty)).to_pylist())
    captioned = np.zeros(len(images.paths), dtype=bool)
    captioned[rows[kept][filled.to_numpy(zero_copy_only=False)]] = True
    report.note("images_without_caption", (images.paths[i] for i in np.flatnonzero(~captioned)))
    if strict:
        report.refuse_problems()
    if not report.counts["captions"]:
        raise DatasetError(
            f"{captions.where}: contains no captions with a letter, digit or sign (the first is of "
            f"{image_ids[0].as_py()!r}); check the file"
        )

    for split in ("train", "dev", "test", ""):
        report.counts[f"images_{split or 'without_split'}"] = int((splits == split).sum())
    image_table = pa.table(
        {
            "image_id": pa.array(images.paths, pa.string()),
            "path": pa.array(images.paths, pa.string()),
            **whole_files(len(images.paths)),
            "key": key_array(images.keys),
            "width": pa.array(images.widths, pa.int32()),
            "height": pa.array(images.heights, pa.int32()),
            "split": split_column,
        },
        schema=IMAGES,
    )
    caption_table = pa.table(
        {
            "caption_id": ids,
            "image_id": image_ids,
            "text": texts,
            "split": split_column.take(pa.array(rows[kept])),
        },
        schema=CAPTIONS,
    ).filter(filled)
    write_captioned(folder, image_table, caption_table)


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
    else:
        numbers = pa.array(_count_within(rows)).cast(pa.string())
    return pc.binary_join_element_wise(image_ids, numbers, "#")


def _count_within(groups: np.ndarray) -> np.ndarray:
    """0, 1, 2, … within each group, in the order given: int64 [n]."""
    order = np.argsort(groups, kind="stable")
    in_order = groups[order]
    first = np.flatnonzero(np.r_[True, in_order[1:] != in_order[:-1]])
    lengths = np.diff(np.r_[first, len(groups)])
    counts = np.empty(len(groups), dtype=np.int64)
    counts[order] = np.arange(len(groups)) - np.repeat(first, lengths)
    return counts


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
