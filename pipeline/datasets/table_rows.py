"""Write samples that hold their images, or name them by path: `write_held`, `rows_to_manifests`.

Images that samples hold are written once into tar files, where each has a place of its own; images
that they name by path stay where they are.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path

import pyarrow as pa

from pipeline.datasets.caption_tables import CaptionTables, chosen_splits
from pipeline.datasets.image_tars import ImageTars
from pipeline.datasets.images import any_pixel_count, upright_size
from pipeline.datasets.manifests import ManifestRows, write_files
from pipeline.datasets.samples import Placed, Sample, Samples, checked, one_by_one
from pipeline.datasets.source import MANIFESTS, DatasetError, PrepareReport, Progress
from sightline.cache.keys import key_of_bytes
from sightline.tables.arrow_files import sliced
from sightline.tables.outside_columns import is_address, wanted_of_captions
from sightline.tables.outside_tables import table_of

WRITES = (*MANIFESTS, "images/00000.tar")
"""What a source whose rows hold images writes (`Source.writes`)."""


def rows_to_manifests(
    batches: Iterable[pa.RecordBatch],
    folder: Path,
    report: PrepareReport,
    *,
    where: str,
    image: str | None = None,
    caption: str | Sequence[str] | None = None,
    caption_id: str | None = None,
    split: str | None = None,
    splits: Mapping[str, str | Sequence[str]] | None = None,
    images: Path | None = None,
    strict: bool = False,
    total: int = 0,
    progress: Progress | None = None,
) -> None:
    """Write the manifests of rows with images and captions, as any reader of Arrow yields them.

    Images that rows hold (bytes, or structs of ``bytes`` and ``path``) are written to tar files in
    ``folder / "images"``. Rows of one split with the same image are one image with several
    captions. Other columns are counted, and not read.

    Args:
        batches: all of one schema; read once. Ids are numbers of rows in the order of these.
        folder, report: those of `Source.prepare`.
        where: what the rows are from, for messages.
        image, caption, caption_id, split: columns; without a name, usual names are looked for, but
            for the split. A caption is a text or a list of texts, and may have several columns.
        splits: for each of train, dev and test, the values of ``split`` that belong to it.
        images: folder that paths in the rows start from; without it, rows hold their images.
        strict: refuse problems such as images without caption.
        total: number of rows, for ``progress``.

    Raises:
        SightlineError: there are no rows, a column is missing or has another type, or no image has
            a caption.
    """
    waiting = iter(batches)
    first = next(waiting, None)
    if first is None:
        raise DatasetError(f"{where}: contains no rows; check where the data are")

    def read(names: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        done = 0
        for batch in chain([first], waiting):
            yield from sliced([batch], names, rows)
            done += len(batch)
            if progress is not None:
                progress("reading", done, max(total, done), "rows")

    table = table_of(Path(where), first.schema, read)
    columns = wanted_of_captions(image, caption, split, caption_id, "{}")
    reader = CaptionTables(columns, chosen_splits(splits), report, held=True)
    write_held(
        folder,
        [("rows", "", reader.only(table))],
        report,
        where=where,
        unit="tables",
        images=images,
        strict=strict,
    )


def write_held(
    folder: Path,
    files: Iterable[tuple[str, str, Samples]],
    report: PrepareReport,
    *,
    where: str,
    unit: str,
    images: Path | None = None,
    beside: Path | None = None,
    strict: bool = False,
    names: Sequence[str] = (),
    progress: Progress | None = None,
) -> None:
    """Write the manifests of samples with their images into ``folder``.

    Images that samples hold go into tar files in ``folder / "images"``. Samples of one split with
    the same image are one image with several captions.

    Args:
        files: name of a file, its split as the data set calls it (or nothing), and its samples;
            read one after another.
        where: what the samples are from, for messages.
        unit: what the files are, in the plural.
        images: folder that paths in the samples start from; then none may hold its image.
        beside: the same where ``images`` is not given; samples may then hold their images as well.
        strict: refuse problems such as images without caption.
        names: of all files, for ``progress``; by default those of ``files``, which is then a list.
    """
    files = files if names else list(files)
    names = names or [name for name, _, _ in files]
    with closing(ImageTars(folder / "images")) as tars, any_pixel_count():
        writer = _HeldImages(where, images or beside, tars, may_hold=images is None)
        rows = (
            writer.rows_of(theirs, checked(samples, report.kind)) for _, theirs, samples in files
        )
        write_files(
            folder, names, rows, report, unit=unit, where=where, strict=strict, progress=progress
        )
        writer.note(report)


class _HeldImages:
    """Gives the images of samples their places, in tars or where they are.

    Args:
        root: base folder of the paths in the samples; None: samples hold their images.
        may_hold: whether samples may hold their images.
    """

    def __init__(self, where: str, root: Path | None, tars: ImageTars, *, may_hold: bool) -> None:
        self._where, self._root, self._may_hold = where, root, may_hold
        self._real = os.path.realpath(root or "")
        self._tars = tars
        self._other_splits = 0
        self._numbers: Counter[str] = Counter()  # their split → samples so far
        self._ids: dict[tuple[bytes, str], str] = {}  # key and split of an image → its id
        self._captions: Counter[str] = Counter()  # id → captions so far
        self._in_place = False

    def rows_of(self, theirs: str, samples: Samples) -> ManifestRows:
        """The images and captions of a file.

        Args:
            theirs: the split of the file, as it is called there; may be empty.
        """
        rows = ManifestRows()
        for sample in one_by_one(samples):
            name = "/".join(filter(None, (theirs, str(self._numbers[theirs]))))
            self._numbers[theirs] += 1
            if sample.split is None:
                self._other_splits += 1
            else:
                self._add(rows, name, sample, sample.split)
        return rows

    def note(self, report: PrepareReport) -> None:
        """Report what concerns all files."""
        if self._other_splits:
            report.counts["rows_of_other_splits"] = self._other_splits
        report.notes.append(
            f"the images were written to the folder images once ({self._tars.bytes / 1e6:,.1f} MB)"
            if self._tars.count
            else f"the images stay in {self._root}"
        )

    def _add(self, rows: ManifestRows, name: str, sample: Sample, split: str) -> None:
        if isinstance(sample.image, Placed):
            placed = sample.image
        else:
            data, path = sample.image, None
            if isinstance(data, str):
                if (path := self._file_of(rows, name, data)) is None:
                    return
                data = Path(path).read_bytes()
            elif not self._may_hold:
                raise DatasetError(
                    f"row {name}: its column of images contains the images themselves, so "
                    "`images` does not apply; remove it"
                )
            key = key_of_bytes(data)
            if (image_id := self._ids.get((key, split))) is not None:
                self._captions[image_id] = rows.add_captions(
                    image_id, sample, split, self._captions[image_id]
                )
                return
            placed = self._placed(name, data, path, key)
        self._ids[placed.key, split] = name
        rows.add_image(name, placed, split)
        self._captions[name] = rows.add_captions(name, sample, split)

    def _file_of(self, rows: ManifestRows, name: str, location: str) -> str | None:
        """The file of a sample that has only a path; None, with the reason noted: there is none."""
        path = os.path.normpath(os.path.join(self._real, location))  # noqa: PTH118
        if not location:
            rows.problem("rows_without_image", name)
        elif self._root is None and not is_address(location):
            raise DatasetError(
                f"{self._where}: row {name} names its image by path, {location!a}; give `images`, "
                "the folder that paths start from"
            )
        elif is_address(location):
            rows.problem("urls_in_place_of_images", f"{name}: {location!a}")
        elif "://" in location or not Path(path).is_relative_to(self._real):
            rows.problem("images_outside_their_folder", f"{name}: {location!a}")
        elif "\0" in path or not os.path.isfile(path):  # noqa: PTH113
            rows.problem("images_without_file", f"{name}: {location!a}")
        else:
            return path
        return None

    def _placed(self, name: str, data: bytes, path: str | None, key: bytes) -> Placed:
        """Where an image is: one file of its own in a data set of paths, else a tar."""
        size = upright_size(io.BytesIO(data))
        if path is not None and not self._tars.count:
            self._in_place = True
            return Placed(Path(path).relative_to(self._real).as_posix(), key, size)
        if self._in_place:
            raise DatasetError(
                f"{self._where}: row {name} holds its image, but earlier ones name theirs by path; "
                "save the data set again with `save_to_disk`, which puts all of them into it"
            )
        tar, offset = self._tars.add(data)
        return Placed(tar, key, size, offset, len(data))
