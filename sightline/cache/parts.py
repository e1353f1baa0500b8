"""What a run has finished but not published: shards of rows, one per block, and failed rows."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from sightline.atomic_files import write_bytes
from sightline.cache.keys import Keys, as_keys
from sightline.cache.record import ShardRecord, Spec
from sightline.cache.shards import Computed, format_of, note_in
from sightline.errors import CacheError

FOLDER, FAILURES = "parts", "failures.jsonl"
_NAME = re.compile(r"part-[0-9a-f]{32}\.(?:h5|parquet)")
Failure = dict[str, str]
"""``code``, ``path`` and ``reason`` of a row that could not be computed."""


@dataclass(frozen=True)
class Part:
    """A finished block.

    Attributes:
        name: name of its file.
        shard: the file as a shard of the rows that were computed; None: all failed.
        keys: uint8 [n, 32] of those rows.
        failed: key → code, path and reason of failed rows.
        computed: device, library versions and sizes used to compute the block.
    """

    name: str
    shard: ShardRecord | None
    keys: Keys
    failed: dict[bytes, Failure]
    computed: Computed


class Parts:
    """The finished blocks in a run folder: each a shard, as in the set, with a note about the run.

    The note is JSON: fingerprint, number of rows, failed rows, and how the rows were computed. A
    part is named by the BLAKE3 of its file. Opening the folder loads every part with this
    fingerprint, regardless of its plan.

    Args:
        run_folder: parent of the parts' folder.
        spec: description of the rows.
        unfinished: folder to make parts in (`Output.unfinished`).

    Attributes:
        parts: sorted by file name, then in the order added or found.
        damaged: names of damaged files.
    """

    def __init__(self, run_folder: Path, spec: Spec, unfinished: Path | None = None) -> None:
        self.folder = run_folder / FOLDER
        self.parts: list[Part] = []
        self.damaged: list[str] = []
        self._spec, self._format, self._unfinished = spec, format_of(spec), unfinished
        self._seen: set[str] = set()
        self.refresh()

    def append(
        self, keys: Keys, rows: Any, failed: Mapping[bytes, Failure], computed: Mapping[str, Any]
    ) -> Part:
        """Write one block durably; it is complete once this returns.

        Args:
            keys: uint8 [n, 32] of the computed rows, in any order.
            rows: n rows, as the set's format has them.
            failed: key → code, path and reason of failed rows.
            computed: how the rows were computed, as in `Part`.

        Raises:
            OSError: the disk is full or failing; earlier parts remain.
        """
        about = {
            "fingerprint": self._spec.fingerprint,
            "rows": len(keys),
            "failed": {key.hex(): failed[key] for key in sorted(failed)},
            "computed": dict(computed),
        }
        data = self._format.encode(keys, rows, json.dumps(about).encode())
        digest = blake3(data).hexdigest()
        name = f"part-{digest[:32]}.{self._format.suffix}"
        write_bytes(self.folder / name, data, via=self._unfinished)
        shard = _shard(name, digest, len(data), len(keys), dict(computed))
        self._seen.add(name)
        self.parts.append(Part(name, shard, keys, dict(failed), dict(computed)))
        return self.parts[-1]

    def refresh(self) -> None:
        """Load the parts that other workers have finished in the meantime."""
        for path in sorted(_parts_in(self.folder)):
            if path.name in self._seen:
                continue
            self._seen.add(path.name)
            try:
                part = self._read(path)
            except FileNotFoundError:  # the run beside has published
                continue
            except (CacheError, OSError, ValueError, KeyError, TypeError, AttributeError):
                self.damaged.append(path.name)
                continue
            if part is not None:
                self.parts.append(part)

    def remove_unusable(self) -> None:
        """Remove damaged parts and those of another fingerprint; no other process writes here."""
        used = {part.name for part in self.parts}
        for path in _parts_in(self.folder):
            if path.name not in used:
                path.unlink()

    def clear(self) -> None:
        """Remove every part: published or unusable."""
        self.parts = []
        self.remove_unusable()
        self.leave()

    def leave(self) -> None:
        """Remove the folder if it is empty."""
        with suppress(OSError):
            self.folder.rmdir()

    def _read(self, path: Path) -> Part | None:
        """The part of this file, or None if it has another fingerprint.

        Raises:
            CacheError, OSError, ValueError, …: it is damaged, or cannot be read.
        """
        data = path.read_bytes()
        digest = blake3(data).hexdigest()
        if digest[:32] not in path.name:
            raise CacheError(f"{path}: damaged")
        about = json.loads(note_in(path))
        if about["fingerprint"] != self._spec.fingerprint:
            return None
        failed = {bytes.fromhex(key): reason for key, reason in about["failed"].items()}
        shard = _shard(path.name, digest, len(data), about["rows"], about["computed"])
        keys = as_keys([]) if shard is None else np.array(self._format.open(self.folder, shard)[0])
        return Part(path.name, shard, keys, failed, about["computed"])


def _shard(name: str, digest: str, size: int, rows: int, computed: Computed) -> ShardRecord | None:
    """The record of a part's file as a shard; None if it has no rows."""
    if not rows:
        return None
    return ShardRecord(name=name, blake3=digest, bytes=size, rows=rows, computed=computed)


def rows_in_parts(run_folder: Path, omitted: Collection[str]) -> int:
    """How many rows are in finished parts, failed ones included, except in those ``omitted``."""
    parts = _parts_in(run_folder / FOLDER)
    return sum(_rows_of(path) for path in parts if path.name not in omitted)


def _parts_in(folder: Path) -> list[Path]:
    with suppress(OSError):
        return [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    return []  # there is no such folder


@cache
def _rows_of(path: Path) -> int:
    try:
        about = json.loads(note_in(path))
        return about["rows"] + len(about["failed"])
    except (CacheError, OSError, ValueError, KeyError, TypeError):
        return 0


def read_failures(run_folder: Path) -> dict[bytes, Failure]:
    """Code, path and reason of failed rows, by key, as `write_failures` left them.

    Raises:
        CacheError: the file is not a list of failures.
    """
    path = run_folder / FAILURES
    if not path.is_file():
        return {}
    failures: dict[bytes, Failure] = {}
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    for line in filter(None, text.split("\n")):
        try:
            about = json.loads(line)
            failures[bytes.fromhex(about.pop("key"))] = about
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CacheError(
                f"{path}: not a list of failures ({error}); delete it: only "
                "the paths and reasons of failed rows are lost"
            ) from error
    return failures


def write_failures(
    run_folder: Path, failures: Mapping[bytes, Failure], unfinished: Path | None = None
) -> None:
    """Replace the list of failed rows: they are of this machine, so it is beside the set.

    Args:
        unfinished: folder to make the file in.
    """
    path = run_folder / FAILURES
    entries = ({"key": key.hex(), **failures[key]} for key in sorted(failures))
    text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
    if text or path.exists():
        write_bytes(path, text.encode("utf-8", "surrogateescape"), via=unfinished)
