"""The files of a Hugging Face data set, by split; runs no code of it."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.datasets.source import DatasetError
from sightline.errors import first_lines
from sightline.optional_imports import require
from sightline.pretrained import from_hub, quiet

_TABLES = ("parquet", "arrow")
_SAVED = ("dataset_dict.json", "state.json")
_FETCHED = ["*.parquet", "*.arrow", "README.md", *(f"*{name}" for name in _SAVED)]
_FETCHED += ["*dataset_info.json"]
_NUMBERED = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<rest>.*)")


def fetch(name: str, revision: str | None) -> Path:
    """The folder of a data set of the hub in this machine's cache; fetches what is missing there.

    Only Parquet and Arrow files and their descriptions are fetched. Nothing is with HF_HUB_OFFLINE.

    Raises:
        SightlineError: it is not cached and cannot be fetched, or the name is not valid.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        with from_hub(name, "data set"), quiet():
            folder = snapshot_download(
                name, repo_type="dataset", revision=revision, allow_patterns=_FETCHED
            )
    except HFValidationError as error:
        raise DatasetError(
            f"{name}: not a valid name of a data set on the hub ({first_lines(error, 1)}); for one "
            "on disk give `path`"
        ) from error
    return Path(folder)


def files_by_split(path: Path, config: str | None) -> dict[str, list[Path]]:
    """Split → its Arrow or Parquet files, in order; a data set without splits has the split "".

    Args:
        path: a file, a folder of `save_to_disk`, or a folder of Parquet or Arrow files, whose
            README and names tell splits and configurations as on the hub.

    Raises:
        DatasetError: nothing there, other kinds of files, or a data set that needs its own code.
    """
    if path.is_file():
        return {"": [path]}
    if not path.is_dir():
        raise DatasetError(f"{path}: no such file or folder; check the path")
    datasets = require("datasets", "a Hugging Face data set")
    saved = any((path / name).is_file() for name in _SAVED)
    try:
        with quiet():
            return _saved(datasets, path) if saved else _loose(datasets, path, config)
    except DatasetError:
        raise
    except Exception as error:  # the library has no base class for errors of its files
        raise DatasetError(
            f"{path}: not a data set that `datasets` can read ({type(error).__name__}: "
            f"{first_lines(error)}); expected a folder of save_to_disk, or of Parquet or Arrow "
            "files (on the hub: revision refs/convert/parquet)"
        ) from error


def _saved(datasets: Any, path: Path) -> dict[str, list[Path]]:
    loaded = datasets.load_from_disk(str(path), keep_in_memory=False)
    parts = loaded if isinstance(loaded, datasets.DatasetDict) else {"": loaded}
    return {
        split: [Path(file["filename"]) for file in part.cache_files]
        for split, part in parts.items()
    }


def _loose(datasets: Any, path: Path, config: str | None) -> dict[str, list[Path]]:
    attempts: list[dict[str, str]] = [{"path": str(path)}]
    # beside many images, the library takes a folder for one of images
    attempts += [
        {"path": kind, "data_dir": str(path)}
        for kind in _TABLES
        if next(path.rglob(f"*.{kind}"), None) is not None
    ]
    for attempt in attempts:
        with tempfile.TemporaryDirectory() as scratch:
            builder = datasets.load_dataset_builder(**attempt, name=config, cache_dir=scratch)
        splits: dict[str, list[Path]] = {}
        for split, files in (builder.config.data_files or {}).items():
            if tables := [Path(file) for file in files if Path(file).suffix[1:] in _TABLES]:
                splits[str(split)] = tables
        if splits:
            return splits
    raise DatasetError(
        f"{path}: contains no Parquet or Arrow files; for tar files use the kind `webdataset`, for "
        "a folder of images `pairs`"
    )


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
