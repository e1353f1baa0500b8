"""The files of a Hugging Face data set, by split; runs no code of it.

The library `datasets` tells the splits from names and descriptions. It is shown a folder of empty
files of those names: a path of the user's could mean something to it (``parquet`` is one of its
readers, ``*`` a pattern), and nothing needs to be fetched before the splits are known.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pydantic import BaseModel, Field, TypeAdapter

from pipeline.datasets.images import files_below, named_files
from pipeline.datasets.source import DatasetError
from sightline.errors import first_lines
from sightline.files.file_kinds import kind_of_names, unexpected
from sightline.files.places import base_of, shown
from sightline.files.storage import files_below as files_elsewhere
from sightline.models.pretrained import from_hub, quiet
from sightline.optional_imports import require
from sightline.tables.outside_columns import OF_CAPTIONS
from sightline.user_files import read_json

TABLES = (".parquet", ".arrow")
DESCRIPTIONS = ("README.md", ".huggingface.yaml", "dataset_infos.json")
_PLAIN = ("/tmp", "/var/tmp")
"""Where empty files are shown to `datasets` if the temporary folder has a name for it."""
_SPLITS, _STATE = "dataset_dict.json", "state.json"  # of save_to_disk
_PARTITION = re.compile(r"(?:.*/)?split=([^/]+)/.*")  # as Hive, Spark and pandas have it
_NUMBERED = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<rest>.*)")


class _SavedSplits(BaseModel):
    splits: list[str]


class _SavedFile(BaseModel):
    filename: str


class _SavedState(BaseModel):
    files: list[_SavedFile] = Field(alias="_data_files")
    indices: None = Field(default=None, alias="_indices_data_files")


class Listing(NamedTuple):
    """A data set and the names of its files.

    Attributes:
        where: the folder or the name on the hub, for messages.
        folder: holds its descriptions, and on disk all of its files; or the URL of all.
        names: POSIX, relative.
    """

    where: str
    folder: Path | str
    names: frozenset[str]

    @property
    def tables(self) -> list[str]:
        """The names of Parquet and Arrow files, sorted."""
        return sorted(name for name in self.names if PurePosixPath(name).suffix.lower() in TABLES)

    @property
    def is_saved(self) -> bool:
        """Whether `save_to_disk` wrote it."""
        return not {_SPLITS, _STATE}.isdisjoint(self.names)


def on_disk(path: Path, ignored: Counter[str]) -> Listing:
    """The files below a folder, hidden folders left out, and counted in ``ignored``."""
    if not path.is_dir():
        raise DatasetError(f"{path}: no such file or folder; check the path")
    return Listing(str(path), path, frozenset(files_below(path, path, ignored)))


def on_storage(url: str) -> Listing:
    """Parquet files elsewhere: one, those that braces name, or those of a folder."""
    base = base_of(url)
    pattern = shown(url).removeprefix(f"{shown(base)}/") if base != url else ""
    if not pattern and shown(url).endswith(".parquet"):
        folder, mark, query = url.partition("?")
        base, _, pattern = folder.rpartition("/")
        base += mark + query
    names = named_files(base, pattern) if pattern else files_elsewhere(url)
    listing = Listing(shown(url), base, frozenset(n for n in names if n.endswith(".parquet")))
    if not listing.names:
        raise DatasetError(f"{listing.where}: contains no Parquet files; check the address")
    return listing


def on_hub(name: str, revision: str | None) -> Listing:
    """The files of a data set of the hub; its descriptions are fetched into this machine's cache.

    With HF_HUB_OFFLINE, or where no hub answers, they are those in the cache.
    """
    from huggingface_hub import HfApi, constants

    folder = fetch(name, revision, [*DESCRIPTIONS, _SPLITS, _STATE, f"*/{_STATE}"])
    with from_hub(name, "data set"), quiet():
        if constants.HF_HUB_OFFLINE:
            where = f"{name} (in this machine's cache: HF_HUB_OFFLINE is set, or no hub answers)"
            return on_disk(folder, Counter())._replace(where=where)
        names = HfApi().list_repo_files(name, repo_type="dataset", revision=folder.name)
    return Listing(name, folder, frozenset(names))


def fetch(name: str, revision: str | None, patterns: list[str]) -> Path:
    """The folder of a data set of the hub in this machine's cache; fetches what is missing there.

    Args:
        patterns: of the files to fetch (`glob.escape` makes one of a name); with HF_HUB_OFFLINE,
            nothing is.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        with from_hub(name, "data set"), quiet():
            folder = snapshot_download(
                name,
                repo_type="dataset",
                revision=revision,
                allow_patterns=patterns,
                # offline, huggingface_hub 1 would still ask the hub for the files of a commit
                local_files_only=constants.HF_HUB_OFFLINE,
            )
    except HFValidationError as error:
        raise DatasetError(
            f"{name}: not a valid name of a data set on the hub ({first_lines(error, 1)}); for one "
            "on disk give `path`"
        ) from error
    return Path(folder)


def files_by_split(listing: Listing, config: str | None) -> dict[str, list[str]]:
    """Split → names of its Arrow or Parquet files, in order; without splits, the split is "".

    They are as `save_to_disk` recorded them, or as in the folders ``split=NAME``, else as names and
    descriptions say on the hub.
    """
    if listing.is_saved:
        return _saved(listing)
    if not listing.tables:
        if kind := kind_of_names(listing.names):
            raise unexpected(listing.where, kind, "Parquet or Arrow files", OF_CAPTIONS[:2])
        raise DatasetError(
            f"{listing.where}: contains no Parquet or Arrow files; for tar files use the kind "
            "`webdataset`, for a folder of images `pairs`, with its metadata.jsonl by "
            "`captions`, this folder too"
        )
    matches = filter(None, map(_PARTITION.fullmatch, listing.tables))
    splits = [(match[1], match[0]) for match in matches]
    if config is None and len(splits) == len(listing.tables):
        return {split: [name for of, name in splits if of == split] for split, _ in splits}
    datasets = require("datasets", "a Hugging Face data set")
    with tempfile.TemporaryDirectory(dir=_plain_folder()) as scratch:
        shown = Path(scratch, "shown").resolve()
        _show(listing, shown)
        try:
            with quiet():
                builder = datasets.load_dataset_builder(
                    str(shown), name=config, cache_dir=str(Path(scratch, "cache"))
                )
        except Exception as error:  # the library has no base class for errors of its files
            names = _configurations(datasets, shown)
            if len(names) > 1 and config not in names:
                raise DatasetError(
                    f"{listing.where}: has the configurations {', '.join(names)}, and "
                    f"{'none is chosen' if config is None else f'no {config!r}'}; choose one with "
                    "`config`"
                ) from None
            fault = first_lines(error).replace(str(shown), listing.where)
            raise DatasetError(
                f"{listing.where}: not a data set that `datasets` can read "
                f"({type(error).__name__}: {fault}); expected a folder of save_to_disk, or of "
                "Parquet or Arrow files (on the hub: revision refs/convert/parquet)"
            ) from error
        return {
            str(split): [_named(listing, os.path.relpath(file, shown)) for file in files]
            for split, files in builder.config.data_files.items()
        }


def _configurations(datasets: Any, shown: Path) -> list[str]:
    """The names of a data set's configurations; none if its description is faulty."""
    with suppress(Exception), quiet():
        return datasets.get_dataset_config_names(str(shown))
    return []


def _plain_folder() -> str:
    """A folder for temporary files whose path is no pattern, and no address, to `datasets`."""
    for name in (tempfile.gettempdir(), *_PLAIN):
        folder = os.path.realpath(name)
        if glob.escape(folder) == folder and "::" not in folder and os.access(folder, os.W_OK):
            return folder
    raise DatasetError(
        f"{tempfile.gettempdir()}: `datasets` takes the path of this temporary folder for a "
        "pattern or an address; set TMPDIR to a folder without *, ?, [ and :: in its path"
    )


def _show(listing: Listing, folder: Path) -> None:
    """Empty files of the tables' names in a new ``folder``, and the data set's descriptions."""
    folder.mkdir()
    for name in listing.tables:
        if not (name.startswith("/") or ".." in PurePosixPath(name).parts):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
    for name in DESCRIPTIONS:
        if Path(listing.folder, name).is_file():
            shutil.copyfile(Path(listing.folder, name), folder / name)


def _saved(listing: Listing) -> dict[str, list[str]]:
    expected = "a folder of save_to_disk, without indices (`flatten_indices` before saving)"
    folder, splits = Path(listing.folder), {"": _STATE}
    if _SPLITS in listing.names:
        saved = read_json(folder / _SPLITS, TypeAdapter(_SavedSplits), expected)
        splits = {split: f"{split}/{_STATE}" for split in saved.splits}
    return {
        split: [
            _named(listing, os.path.normpath(PurePosixPath(state).parent / file.filename))
            for file in read_json(
                Path(listing.folder, state), TypeAdapter(_SavedState), expected
            ).files
        ]
        for split, state in splits.items()
    }


def _named(listing: Listing, name: str) -> str:
    """A name that a description of the data set gives, which is one of its files."""
    if name not in listing.names:
        raise DatasetError(
            f"{listing.where}: its description names {name}, which is not among its files; get the "
            "complete data set, or correct the description"
        )
    return name


def missing_numbers(files: Iterable[Path]) -> list[str]:
    """What is missing of files that are named as in ``train-00000-of-00012.parquet``."""
    counts: Counter[tuple[Path, str, str, int]] = Counter()
    for file in files:
        if match := _NUMBERED.fullmatch(file.name):
            # save_to_disk has the same names in the folder of every split
            counts[file.parent, match["stem"], match["rest"], int(match["count"])] += 1
    return [
        f"{present} of {count} files {stem}-*-of-{count:05d}{suffix} are in {folder.name}; get the "
        "others too"
        for (folder, stem, suffix, count), present in counts.items()
        if present != count
    ]
