"""File names and file types that lead a reader out of the folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forger import Attacks, Forger

from pipeline.cache.commit import FILE_NAME


def _rename_shard(name: str) -> Callable[[Forger], None]:
    def forge(f: Forger) -> None:
        body = f.body()
        body["shards"][0]["name"] = name.replace("SHARD", body["shards"][0]["name"])
        f.commit(body)

    return forge


def _instead(make: Callable[[Path, Forger], Any], which: str = "shard") -> Callable[[Forger], None]:
    def forge(f: Forger) -> None:
        path = f.folder / FILE_NAME if which == "record" else getattr(f, which)
        aside = f.folder.parent / f"{f.folder.name} aside"
        path.rename(aside)
        make(path, f)

    return forge


NAMES: Attacks = {
    "a name with ..": (_rename_shard("../SHARD"), "not allowed"),
    "an absolute name": (_rename_shard("/etc/passwd"), "not allowed"),
    "a name with a folder": (_rename_shard("more/SHARD"), "not allowed"),
    "a name with a zero": (_rename_shard("SHARD\0"), "not allowed"),
    "a name with a line end": (_rename_shard("SHARD\n"), "not allowed"),
    "an endless name": (_rename_shard("x" * 100_000), "not allowed"),
    "the record's own name": (_rename_shard(FILE_NAME), "not allowed"),
    "one name twice": (
        lambda f: f.commit({**(b := f.body()), "shards": [b["shards"][0], *b["shards"]]}),
        "lists a file twice",
    ),
    "a link for a shard": (
        _instead(lambda path, f: path.symlink_to(f.folder.parent / f"{f.folder.name} aside")),
        "not a plain file",
    ),
    "a link for the index": (
        _instead(
            lambda path, f: path.symlink_to(f.folder.parent / f"{f.folder.name} aside"), "index"
        ),
        "not a plain file",
    ),
    "a link for the record": (
        _instead(
            lambda path, f: path.symlink_to(f.folder.parent / f"{f.folder.name} aside"), "record"
        ),
        "is a link",
    ),
    "a link to nowhere": (_instead(lambda path, f: path.symlink_to("nowhere")), "not a plain file"),
    "a pipe for a shard": (_instead(lambda path, f: os.mkfifo(path)), "not a plain file"),
    "a pipe for the record": (
        _instead(lambda path, f: os.mkfifo(path), "record"),
        "no feature set here",
    ),
    "a folder for a shard": (_instead(lambda path, f: path.mkdir()), "not a plain file"),
}
