"""Match captions and split lists to the images they name: the tables of a set of pairs."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from pipeline.datasets.captions import Captions, check_captions
from pipeline.datasets.manifests import write_captioned
from pipeline.datasets.source import DatasetError, PrepareReport, Source, split_name
from sightline.cache.manifest import CAPTIONS
from sightline.tables.image_names import AMBIGUOUS, UNKNOWN, ImageNames, NamesOfFile, contradict
from sightline.user_files import short


def _assigned_splits(
    entries: Sequence[tuple[str, str, str]],
    of_file: NamesOfFile,
    count: int,
    report: PrepareReport,
) -> list[str]:
    """The split of each of ``count`` images from (image name, split, source of the entry); may be
    empty.
    """
    rows = [(of_file.find(entry, split), entry, split, where) for entry, split, where in entries]
    for problem, code in (
        ("split_entries_without_image", UNKNOWN),
        ("split_entries_of_ambiguous_image", AMBIGUOUS),
    ):
        report.note(problem, dict.fromkeys(entry for row, entry, _, _ in rows if row == code))
    _count_shortened((entry for entry, _, _ in entries), of_file, "split_entries", report)
    return _one_split_each((entry for entry in rows if entry[0] >= 0), count)


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
    images: pa.Table,
    captions: Captions,
    report: PrepareReport,
    *,
    strict: bool,
    root: Path | str | None = None,
) -> None:
    """Write the manifests (`write_captioned`) into ``folder`` and fill ``report``.

    Args:
        root: folder of the images, or its URL, whose own names count as those of folders do.

    Raises:
        DatasetError: no caption matches an image, an image is in two
            splits, or as `write_captioned`.
    """
    if report.kind not in Source.families.own:
        check_captions(captions, Source.families.subclass(report.kind, Source))
    paths = images["image_id"].to_pylist()
    names = ImageNames(paths, root)
    own_splits = _own_splits(captions)
    trimmed = _trimmed(captions.images, names)
    of_file, of_lists = _named_by(names, captions, trimmed, own_splits, report)
    if captions.listed is not None:
        splits = _assigned_splits(captions.listed, of_lists, len(paths), report)
    if captions.other_splits:
        report.counts["rows_of_other_splits"] = captions.other_splits
    report.guess(*captions.remarks)
    report.leave_columns(captions.not_read)
    for problem, lines in captions.problems.items():
        report.note(problem, lines)
    rows = _rows(captions, of_file, trimmed, own_splits, report)
    _count_shortened(map(trimmed.__getitem__, captions.images), of_file, "captions", report)
    remedies = [line for file in dict.fromkeys((of_lists, of_file)) for line in file.remedies()]
    report.notes += remedies
    unknown = (_written(captions, i) for i, row in enumerate(rows) if row == UNKNOWN)
    report.note("captions_without_image", unknown)
    several = (
        f"{_written(captions, i)} ({' or '.join(of_file.candidates(trimmed[captions.images[i]]))})"
        for i, row in enumerate(rows)
        if row == AMBIGUOUS
    )
    report.note("captions_of_ambiguous_image", several)
    kept = [i for i, row in enumerate(rows) if row >= 0]
    if not kept:
        raise DatasetError(
            f"{captions.where}: none of its {len(rows)} captions names an image in the folder "
            f"(captions: {captions.images[0]!r}, …; images: {paths[0]!r}, …); give the folder of "
            f"{'; '.join(('these images, or correct their names', *remedies))}"
        )
    if captions.listed and not any(splits):
        entry, _, where = captions.listed[0]
        raise DatasetError(
            f"{where}: none of the {len(captions.listed):,} entries of lists of splits names an "
            f"image, such as {short(entry)}; "
            f"{'; '.join(('expected the name of one in each line', *remedies))}"
        )
    if captions.listed is None:
        where = f"{captions.where}, column split"
        entries = ((rows[i], captions.images[i], own_splits[i], where) for i in kept if own_splits)
        splits = _one_split_each(entries, len(paths))
    ids = _caption_ids(captions, kept, rows, paths)
    caption_columns = {
        "caption_id": ids,
        "image_id": [paths[rows[i]] for i in kept],
        "text": [captions.texts[i] for i in kept],
        "split": [splits[rows[i]] for i in kept],
    }
    write_captioned(
        folder,
        images.set_column(images.schema.get_field_index("split"), "split", [splits]),
        pa.table(caption_columns, CAPTIONS),
        report,
        where=captions.where,
        strict=strict,
        lines=[captions.lines[i] for i in kept] if captions.lines else (),
    )


def not_wanted(captions: Captions, root: Path | str, paths: Sequence[str]) -> set[str]:
    """The paths of images that the captions leave out, and none of them names.

    Args:
        root, paths: folder of the images, or its URL, and their paths below it.
    """
    names = ImageNames(paths, root)
    kept, left_out = _trimmed(captions.images, names), _trimmed(captions.left_out, names)
    of_file = names.of_file([*kept.values(), *left_out.values()])
    fits = (of_file.candidates(name) for name in left_out.values())
    only = {path for path, *others in filter(None, fits) if not others}
    return only.difference(*map(of_file.candidates, kept.values()))


def _trimmed(names: Iterable[str], images: ImageNames) -> dict[str, str]:
    """Name → the same without white space around it, unless it is a path."""
    return {
        name: name if images.exact(name) is not None else name.strip()
        for name in dict.fromkeys(names)
    }


def _named_by(
    images: ImageNames,
    captions: Captions,
    trimmed: Mapping[str, str],
    splits: Sequence[str],
    report: PrepareReport,
) -> tuple[NamesOfFile, NamesOfFile]:
    """How the names of the captions are found, and those of the lists of splits.

    Notes what is dropped of them.

    Raises:
        DatasetError: after what is dropped, they may name different images.
    """
    names = [trimmed[name] for name in captions.images]
    entries = [entry for entry, _, _ in captions.listed or ()]
    splits_of_entries = [split for _, split, _ in captions.listed or ()]
    lists = ", ".join(dict.fromkeys(where for _, _, where in captions.listed or ()))
    where = Path(captions.where).name
    if lists == captions.where:  # one file has both
        splits = splits or [""] * len(names)
        of_file = images.of_file([*names, *entries], [*splits, *splits_of_entries])
        _note_beginning(of_file, where, report)
        return of_file, of_file
    of_lists = images.of_file(entries, splits_of_entries)
    of_file = images.of_file(names, splits)
    _note_beginning(of_lists, "split lists", report)
    _note_beginning(of_file, where, report)
    if contradict(of_file.beginning, of_lists.beginning):
        raise DatasetError(
            f"{captions.where}: its image names begin with {of_file.beginning!r}, those of {lists} "
            f"with {of_lists.beginning!r}, so they may be other images; write the paths from the "
            "folder of the images in both"
        )
    return of_file, of_lists


def _note_beginning(of_file: NamesOfFile, where: str, report: PrepareReport) -> None:
    if of_file.beginning:
        folders = of_file.beginning.split("/")
        # a record names no folders of one machine
        absolute = folders[0] == "" or folders[0].endswith(":")
        shown = f"…/{'/'.join(folders[-2:])}" if absolute else of_file.beginning
        report.guess(f"{where}: the beginning {shown!r} of its image names dropped")


def _count_shortened(
    names: Iterable[str], of_file: NamesOfFile, unit: str, report: PrepareReport
) -> None:
    if count := sum(name in of_file.shortened for name in names):
        report.counts[f"{unit}_matched_by_less_than_a_path"] = count


def _own_splits(captions: Captions) -> list[str]:
    """The split of each caption that its file gives: train, dev, test or empty; [] without any."""
    where = f"{captions.where}, column split (choose as splits.dev=[…])"
    ours = {
        name: split_name(name, where) if name.strip() else ""
        for name in dict.fromkeys(captions.splits)
    }
    return [ours[name] for name in captions.splits]


def _rows(
    captions: Captions,
    of_file: NamesOfFile,
    trimmed: Mapping[str, str],
    splits: Sequence[str],
    report: PrepareReport,
) -> list[int]:
    """Row of each caption's image, `UNKNOWN` or `AMBIGUOUS`; white space around names is noise."""
    rows_of: dict[str, dict[str, int]] = defaultdict(dict)  # split → name → row
    rows: list[int] = []
    for name, split in zip(captions.images, splits or itertools.repeat(""), strict=False):
        of_split = rows_of[split]
        row = of_split.get(name)
        if row is None:
            row = of_split[name] = of_file.find(trimmed[name], split)
        rows.append(row)
    noisy = [
        name
        for name, bare in trimmed.items()
        if bare != name and any(of_split.get(name, UNKNOWN) >= 0 for of_split in rows_of.values())
    ]
    if noisy:
        report.notes.append(
            f"white space around {len(noisy):,} image names left out, such as {noisy[0]!r}"
        )
    return rows


def _written(captions: Captions, i: int) -> str:
    """How the file names caption ``i``."""
    return captions.images[i] + (f"#{captions.numbers[i]}" if captions.numbers else "")


def _caption_ids(
    captions: Captions, kept: Sequence[int], rows: Sequence[int], paths: Sequence[str]
) -> list[str]:
    if captions.ids:
        return [captions.ids[i] for i in kept]
    if captions.numbers:
        return [f"{paths[rows[i]]}#{captions.numbers[i]}" for i in kept]
    counts: defaultdict[int, Iterator[int]] = defaultdict(itertools.count)
    return [f"{paths[rows[i]]}#{next(counts[rows[i]])}" for i in kept]
