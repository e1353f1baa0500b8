"""Match samples and lists of splits to the images that they name: `write_named`."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from pipeline.datasets.manifests import write_captioned
from pipeline.datasets.samples import Plain, Sample, Samples, Split, checked
from pipeline.datasets.source import DatasetError, PrepareReport
from sightline.cache.manifest import CAPTIONS
from sightline.tables.image_names import AMBIGUOUS, UNKNOWN, ImageNames, NamesOfFile, contradict
from sightline.tables.outside_columns import is_address
from sightline.user_files import CONTROL, short


def write_named(
    folder: Path,
    images: pa.Table,
    samples: Samples,
    report: PrepareReport,
    *,
    where: str,
    splits: Sequence[Split] | None = None,
    strict: bool = False,
    root: Path | str | None = None,
) -> None:
    """Write the manifests of samples that name their images into ``folder``.

    Args:
        images: those of a folder (`pipeline.datasets.images.scan_images`).
        samples: read once; what goes wrong with some of them is counted in ``report``.
        where: the file of the captions, for messages.
        splits: in place of those of the samples.
        strict: refuse problems such as captions without image.
        root: folder of the images, or its URL, whose own names count as those of folders do.

    Raises:
        DatasetError: no caption matches an image, an image is in two splits, or as
            `pipeline.datasets.manifests.write_captioned`.
    """
    captions = NamedCaptions.of(samples, where, report, splits)
    captions.write(folder, images, report, strict=strict, root=root)


@dataclass
class NamedCaptions:
    """The captions of samples, in their order; a list that the samples do not tell is empty.

    Attributes:
        where: the file, for messages.
        images: [n], each image as it is named.
        texts: [n], verbatim.
        numbers: [n], within the image where the source numbers them.
        ids: [n], of the captions.
        splits: [n], train, dev, test or empty.
        lines: [n], where each stands in the file.
        listed: what lists of splits say, or None.
        left_out: names of images that are not wanted.
        base: folder of the file below that of the images, where names are looked for first.
    """

    where: str
    images: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    lines: list[int | str] = field(default_factory=list)
    listed: Sequence[Split] | None = None
    left_out: set[str] = field(default_factory=set)
    base: str = ""

    @classmethod
    def of(
        cls,
        samples: Samples,
        where: str,
        report: PrepareReport,
        splits: Sequence[Split] | None = None,
        base: str = "",
    ) -> NamedCaptions:
        """Read samples, and report those that are not chosen or name no image.

        Raises:
            DatasetError: there is no caption, or images are not named.
        """
        captions = cls(where, listed=splits, base=base)
        other_splits, nameless, addresses = 0, list[str](), list[str]()
        for sample in checked(samples, report.kind):
            if isinstance(sample, Plain):
                captions.lines += sample.lines
                captions.images += sample.images
                captions.texts += sample.texts
                continue
            if not isinstance(sample.image, str):
                raise DatasetError(
                    f"{where}: {sample.where}: image: the table holds the images themselves, "
                    "expected names of files; use the kind `huggingface`"
                )
            if sample.split is None:
                captions.left_out.add(sample.image)
                other_splits += bool(sample.texts)
            elif is_address(sample.image):
                addresses.append(f"{sample.where}: {sample.image!a}")
            elif sample.image.strip():
                captions._add(sample, sample.image, sample.split)
            else:
                nameless.append(str(sample.where))
        if other_splits:
            report.counts["rows_of_other_splits"] = other_splits
        report.note("rows_without_image", nameless)
        report.note("urls_in_place_of_images", addresses)
        if not captions.texts:
            problems = "; ".join(report.in_words())
            raise DatasetError(
                f"{where}: contains no captions{f' ({problems})' if problems else ''}; give a file "
                "that holds them"
            )
        captions._complete()
        return captions

    @property
    def _lists(self) -> str:
        """The files that say the splits of images, for messages."""
        return ", ".join(dict.fromkeys(where for _, _, where in self.listed or ()))

    def _add(self, sample: Sample, image: str, split: str) -> None:
        count, before = len(sample.texts), len(self.texts)
        self.images += [image] * count
        self.texts += sample.texts
        if sample.where != "":
            self.lines += [sample.where] * count
        if sample.ids is not None:
            self.ids += sample.ids
        if sample.numbers is not None:
            self.numbers += sample.numbers
        if split or self.splits:
            self.splits += [""] * (before - len(self.splits)) + [split] * count

    def _complete(self) -> None:
        """Check that all captions have what some have."""
        total = len(self.texts)
        if self.splits:
            self.splits += [""] * (total - len(self.splits))
        for name in ("ids", "numbers", "lines"):
            if 0 < (count := len(getattr(self, name))) < total:
                raise DatasetError(
                    f"{self.where}: {count:,} of {total:,} captions have {name}; give them for all "
                    "captions, or for none"
                )
        if self._lists not in ("", self.where) and any(self.splits):
            raise DatasetError(
                f"{self.where}: has a column `split`, but {self._lists} also gives splits; use one "
                "of them"
            )

    def not_wanted(self, root: Path | str, paths: Sequence[str]) -> set[str]:
        """The paths of images that the samples leave out, and none of them names.

        Args:
            root, paths: folder of the images, or its URL, and their paths below it.
        """
        names = ImageNames(paths, root)
        kept = _bare(self.images, names, self.base)
        left_out = _bare(self.left_out, names, self.base)
        of_file = names.of_file([*kept.values(), *left_out.values()])
        fits = (of_file.candidates(name) for name in left_out.values())
        only = {path for path, *alternatives in filter(None, fits) if not alternatives}
        return only.difference(*map(of_file.candidates, kept.values()))

    def write(
        self,
        folder: Path,
        images: pa.Table,
        report: PrepareReport,
        *,
        strict: bool,
        root: Path | str | None,
    ) -> None:
        """Write the manifests; see `write_named`."""
        paths = images["image_id"].to_pylist()
        names = ImageNames(paths, root)
        bare = _bare(self.images, names, self.base)
        of_file, of_lists = self._named_by(names, bare, report)
        splits: list[str] = []
        if self.listed is not None:
            splits = _assigned_splits(self.listed, of_lists, len(paths), report)
        rows = self._rows(of_file, bare, report)
        _count_shortened(map(bare.__getitem__, self.images), of_file, "captions", report)
        remedies = [line for file in dict.fromkeys((of_lists, of_file)) for line in file.remedies()]
        report.notes += remedies
        unknown = [i for i, row in enumerate(rows) if row == UNKNOWN]
        report.note("captions_without_image", map(self._written, unknown))
        several = (
            f"{self._written(i)} ({' or '.join(of_file.candidates(bare[self.images[i]]))})"
            for i, row in enumerate(rows)
            if row == AMBIGUOUS
        )
        report.note("captions_of_ambiguous_image", several)
        kept = [i for i, row in enumerate(rows) if row >= 0]
        if not kept:
            raise DatasetError(
                f"{self.where}: none of its {len(rows)} captions names an image in the folder "
                f"(captions: {self.images[0]!r}, …; images: {paths[0]!r}, …); give the folder of "
                f"{'; '.join(('these images, or correct their names', *remedies))}"
            )
        if self.listed and not any(splits):
            entry, _, where = self.listed[0]
            raise DatasetError(
                f"{where}: none of the {len(self.listed):,} entries of lists of splits names an "
                f"image, such as {short(entry)}; "
                f"{'; '.join(('expected the name of one in each line', *remedies))}"
            )
        if self.listed is None:
            where = f"{self.where}, column split"
            claims = ((rows[i], self.images[i], self.splits[i], where) for i in kept if self.splits)
            splits = _one_split_each(claims, len(paths))
        caption_columns = {
            "caption_id": self._caption_ids(kept, rows, paths),
            "image_id": [paths[rows[i]] for i in kept],
            "text": [self.texts[i] for i in kept],
            "split": [splits[rows[i]] for i in kept],
        }
        write_captioned(
            folder,
            images.set_column(images.schema.get_field_index("split"), "split", [splits]),
            pa.table(caption_columns, CAPTIONS),
            report,
            where=self.where,
            strict=strict,
            lines=[self.lines[i] for i in kept] if self.lines else (),
        )

    def _named_by(
        self, images: ImageNames, bare: Mapping[str, str], report: PrepareReport
    ) -> tuple[NamesOfFile, NamesOfFile]:
        """How the names of the captions are found, and those of the lists of splits.

        Notes what is dropped of them.

        Raises:
            DatasetError: after what is dropped, they may name different images.
        """
        names = [bare[name] for name in self.images]
        entries = [entry for entry, _, _ in self.listed or ()]
        splits_of_entries = [split for _, split, _ in self.listed or ()]
        lists, where = self._lists, Path(self.where).name
        if lists == self.where:  # one file has both
            splits = self.splits or [""] * len(names)
            of_file = images.of_file([*names, *entries], [*splits, *splits_of_entries])
            _note_beginning(of_file, where, report)
            return of_file, of_file
        of_lists = images.of_file(entries, splits_of_entries)
        of_file = images.of_file(names, self.splits)
        _note_beginning(of_lists, "split lists", report)
        _note_beginning(of_file, where, report)
        if contradict(of_file.beginning, of_lists.beginning):
            raise DatasetError(
                f"{self.where}: its image names begin with {of_file.beginning!r}, those of {lists} "
                f"with {of_lists.beginning!r}, so they may be other images; write the paths from "
                "the folder of the images in both"
            )
        return of_file, of_lists

    def _rows(
        self, of_file: NamesOfFile, bare: Mapping[str, str], report: PrepareReport
    ) -> list[int]:
        """Row of each caption's image, `UNKNOWN` or `AMBIGUOUS`.

        White space around names is noise.
        """
        rows_of: dict[str, dict[str, int]] = defaultdict(dict)  # split → name → row
        rows: list[int] = []
        for name, split in zip(self.images, self.splits or itertools.repeat(""), strict=False):
            of_split = rows_of[split]
            row = of_split.get(name)
            if row is None:
                row = of_split[name] = of_file.find(bare[name], split)
            rows.append(row)
        noisy = [
            name
            for name in bare
            if name.strip() != name
            and bare[name] != name
            and any(of_split.get(name, UNKNOWN) >= 0 for of_split in rows_of.values())
        ]
        if noisy:
            report.notes.append(
                f"white space around {len(noisy):,} image names left out, such as {noisy[0]!r}"
            )
        return rows

    def _written(self, i: int) -> str:
        """How the file names caption ``i``."""
        name = self.images[i] + (f"#{self.numbers[i]}" if self.numbers else "")
        return ascii(name) if CONTROL.search(name) else name

    def _caption_ids(
        self, kept: Sequence[int], rows: Sequence[int], paths: Sequence[str]
    ) -> list[str]:
        if self.ids:
            return [self.ids[i] for i in kept]
        if self.numbers:
            return [f"{paths[rows[i]]}#{self.numbers[i]}" for i in kept]
        counts: defaultdict[int, Iterator[int]] = defaultdict(itertools.count)
        return [f"{paths[rows[i]]}#{next(counts[rows[i]])}" for i in kept]


def _bare(names: Iterable[str], images: ImageNames, base: str) -> dict[str, str]:
    """Name → the path of the image beside the file, or without white space around it.

    A name that is a path stays as it is, unless one beside the file is called so.
    """

    def found(name: str) -> str:
        if base and images.exact(f"{base}/{name}") is not None:
            return f"{base}/{name}"
        return name if images.exact(name) is not None else name.strip()

    return {name: found(name) for name in dict.fromkeys(names)}


def _assigned_splits(
    entries: Sequence[Split],
    of_file: NamesOfFile,
    count: int,
    report: PrepareReport,
) -> list[str]:
    """The split of each of ``count`` images by lists of splits; empty if they have none."""
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
