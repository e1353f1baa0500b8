"""The tars of a data set: those that a pattern names, here or elsewhere, and what it leaves out."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence, Set
from pathlib import Path
from typing import NamedTuple

from pipeline.datasets.images import files_below, named_files, suffix_of
from pipeline.datasets.source import DatasetError, PrepareReport
from sightline import storage
from sightline.places import expanded, is_url, shown
from sightline.storage import Found, look

EVERY = "*.tar"
"""The pattern of a data set without one."""
_GLOB = re.compile(r"[*?[]")
_TAR = re.compile(r"^[^.].*\.(tar(\.\w+)?|tgz)$", re.IGNORECASE)


class Shard(NamedTuple):
    """A tar below the folder of the shards, and our split of its images."""

    name: str
    split: str
    found: Found


def find_shards(root: Path | str, patterns: Sequence[str]) -> dict[str, Found]:
    """The files below ``root`` that ``patterns`` name, by their names from there, sorted."""
    _require_folder(root)
    shards: dict[str, Found] = {}
    for pattern in patterns:
        if is_url(root) and not _GLOB.search(pattern):
            shards |= named_files(root, pattern)
            continue
        for glob in expanded(pattern):
            matches = _matches(root, glob)
            if not matches:
                of = "" if glob == pattern else f" (of {pattern})"
                raise DatasetError(
                    f"{shown(root)}: no shard matches {glob!r}{of}; check the pattern and the "
                    f"folder, which contains {_some_names(root)}"
                )
            shards |= matches
    return dict(sorted(shards.items(), key=lambda shard: shard[0].split("/")))


def _require_folder(root: Path | str) -> None:
    if is_url(root):
        return
    root = Path(root)
    if root.is_file():
        raise DatasetError(
            f"{root}: a file, expected the folder of the shards; give its folder as `images` and "
            f"{root.name!r} as `shards`"
        )
    if not root.is_dir():
        raise DatasetError(f"{root}: no such folder of shards; check the path")


def _matches(root: Path | str, glob: str) -> dict[str, Found]:
    if is_url(root):
        return storage.files_below(str(root), glob)
    paths = Path(root).glob(glob)
    looks = {path.relative_to(root).as_posix(): look(path) for path in paths}
    return {name: found for name, found in looks.items() if found is not None}


def _some_names(root: Path | str) -> str:
    names = storage.files_below(str(root)) if is_url(root) else os.listdir(root)  # noqa: PTH208
    return ", ".join(map(ascii, sorted(names)[:3])) or "nothing"


def note_others(root: Path | str, shards: Set[str], report: PrepareReport) -> None:
    """Record the files below ``root`` that the default pattern does not name."""
    if is_url(root):
        names = [*storage.files_below(str(root))]
    else:
        names = [*files_below(Path(root), Path(root), report.ignored)]
    others = sorted({*names} - shards, key=lambda name: name.split("/"))
    tars = [name for name in others if _TAR.search(name.rpartition("/")[2])]
    report.note("shards_not_read", tars)
    report.ignored += Counter(suffix_of(name) for name in {*others} - {*tars})
