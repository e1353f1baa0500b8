"""Hugging Face data sets: Parquet or Arrow with a column of images and one of captions.

The library `datasets` tells which files belong to which split; their rows are read as those of any
table (`pipeline.datasets.table_rows`).
"""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from pipeline.datasets.caption_tables import CaptionTables, chosen_splits
from pipeline.datasets.hub_files import (
    Listing,
    fetch,
    files_by_split,
    missing_numbers,
    on_disk,
    on_hub,
    on_storage,
)
from pipeline.datasets.samples import Samples, one_by_one
from pipeline.datasets.source import (
    DatasetError,
    Location,
    PrepareReport,
    Progress,
    Source,
    split_name,
)
from pipeline.datasets.table_rows import WRITES, write_held
from sightline.cache.prepared import HUB_DATASET
from sightline.files.places import is_url, path_below
from sightline.tables.outside_columns import (
    OF_CAPTIONS,
    OutsideTable,
    as_columns,
    wanted_of_captions,
)
from sightline.tables.outside_tables import open_table

_COMMIT = "commit"


class HuggingFaceSource(Source):
    """A Hugging Face data set with a column of images and one of captions.

    Attributes:
        path: folder of `save_to_disk`, folder of Parquet or Arrow files, or one such file; by
            default `source` itself. Or the URL of Parquet files: of one, of several with braces
            (``{00000..00041}.parquet``), or of a folder of object storage.
        name: instead of ``path``: a data set on the hub, which is fetched unless it is cached.
        revision: branch, tag or commit of the named data set.
        config: one of several configurations of a data set.
        image_column: column of images (bytes, paths, or `datasets.Image`), if it has no usual name.
        caption_column: column of captions or of lists of captions, or a list of several;
            ``sentences.raw`` is the field ``raw`` of the objects in ``sentences``.
        caption_id_column: column of the captions' ids; by default they are numbered.
        splits: for each of train, dev and test, the data set's own split or several,
            ``[train, restval]``; others are left out.
        split_column: column with the split of each row, instead of the data set's splits.
        images: folder that a column of paths starts from; default: that of the data set.
        strict: treat problems such as images without caption as errors.
    """

    example: ClassVar[str] = (
        "sightline prepare huggingface --path flickr30k --caption-column captions "
        "--out data/flickr30k"
    )
    writes: ClassVar[tuple[str, ...]] = WRITES

    kind: Literal["huggingface"] = "huggingface"
    path: Location = Path()
    name: str | None = Field(default=None, min_length=1)
    revision: str | None = Field(default=None, min_length=1)
    config: str | None = Field(default=None, min_length=1)
    image_column: str | None = None
    caption_column: str | list[str] | None = None
    caption_id_column: str | None = None
    splits: dict[str, str | list[str]] | None = None
    split_column: str | None = None
    images: Path | None = None
    strict: bool = False

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if self.name is not None and "path" in self.model_fields_set:
            raise ValueError("give `path` (on disk) or `name` (on the hub), but not both")
        if self.name is None and self.revision is not None:
            raise ValueError("`revision` belongs to a data set on the hub: give its `name`")
        values = (name for several in (self.splits or {}).values() for name in as_columns(several))
        for theirs, count in Counter(values).items():
            if count > 1:
                raise ValueError(
                    f"`splits` takes {theirs!r} for {count} splits; an image belongs to only one"
                )
        return self

    def inputs(self) -> list[Path | str]:
        """The input files and folders; a data set on the hub has none here."""
        inputs: list[Path | str] = [self.path] if self.name is None else []
        return inputs if self.images is None else [*inputs, self.images]

    def image_root(self, prepared: Path) -> Path | str:
        """Where the rows name them; asked only if `prepare` wrote no images."""
        if self.images is not None:
            return self.images
        path = Path(self.path)
        return path.parent if path.is_file() else path

    def _files(self, ignored: Counter[str]) -> tuple[Listing, dict[str, list[str]]]:
        """The data set's files: all, and those of each of its splits; see `on_disk`."""
        if self.name is not None:
            listing = on_hub(self.name, self.revision)
        elif is_url(self.path):
            listing = on_storage(str(self.path))
            if len(listing.names) == 1:
                return listing, {"": listing.tables}
        elif (path := Path(self.path)).is_file():
            return Listing(str(path), path.parent, frozenset({path.name})), {"": [path.name]}
        else:
            listing = on_disk(path, ignored)
        return listing, files_by_split(listing, self.config)

    def prepare(
        self, folder: Path, report: PrepareReport, progress: Progress | None = None
    ) -> None:
        """Write the manifests of the data set into ``folder`` and fill ``report``.

        Images that rows hold are written to tar files below ``images``. Rows of one split with the
        same image are one image with several captions.

        Raises:
            SightlineError: the data set is missing, damaged or cannot be fetched, a column or split
                is missing or has another type, or there are no images with captions.
        """
        listing, by_split = self._files(report.ignored)
        if self.name is not None:
            report.facts |= {_COMMIT: Path(listing.folder).name, HUB_DATASET: self.name}
        files = _chosen(self, listing.where, by_split)
        names = [name for name, _, _ in files]
        if self.name is not None:
            fetch(self.name, Path(listing.folder).name, list(map(glob.escape, names)))
        report.warn("missing_files", missing_numbers(Path(listing.folder, name) for name in names))
        if self.config is None and not listing.is_saved:
            listed = {name for names in by_split.values() for name in names}
            report.note("tables_not_read", sorted(set(listing.tables) - listed))
        columns = wanted_of_captions(
            self.image_column, self.caption_column, self.split_column, self.caption_id_column
        )
        splits = chosen_splits(self.splits) if self.split_column else None
        reader = CaptionTables(columns, splits, report, held=True)

        def samples(name: str, split: str) -> Samples:
            for sample in one_by_one(reader.samples(_opened(path_below(listing.folder, name)))):
                if not self.split_column:
                    sample.split = split
                yield sample

        def tables() -> Iterator[tuple[str, str, Samples]]:
            for name, theirs, ours in files:
                yield name, theirs, samples(name, ours)
            reader.finish()

        write_held(
            folder,
            tables(),
            report,
            images=self.images,
            beside=None if is_url(listing.folder) else Path(listing.folder),
            unit="files",
            where=listing.where,
            strict=self.strict,
            names=names,
            progress=progress,
        )


def _chosen(
    source: HuggingFaceSource, where: str, theirs_to_files: dict[str, list[str]]
) -> list[tuple[str, str, str]]:
    """The name of each file to read, its split in the data set, and our name for that."""
    if source.split_column:
        ours = dict.fromkeys(theirs_to_files, "")
    elif (chosen := chosen_splits(source.splits)) is None:
        hint = f"{where} (choose with `splits` or `split_column`)"
        ours = {name: split_name(name, hint) if name else "" for name in theirs_to_files}
    else:
        ours = chosen
        if unknown := sorted(ours.keys() - theirs_to_files.keys()):
            raise DatasetError(
                f"{where}: has no split {unknown[0]!r}; it has "
                f"{', '.join(name or 'no splits' for name in theirs_to_files)}"
            )
    return [(file, theirs, ours[theirs]) for theirs in ours for file in theirs_to_files[theirs]]


def _opened(path: str) -> OutsideTable:
    """A file of the data set, which must be there."""
    if not is_url(path) and not Path(path).is_file():
        raise DatasetError(f"{path}: no such file; get the complete data set")
    table = open_table(path, "a Parquet or Arrow file", OF_CAPTIONS[:2])
    if table.schema is None:
        raise DatasetError(f"{path}: is not a Parquet or Arrow file; give one, or a folder of them")
    return table
