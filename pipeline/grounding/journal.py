"""Finished blocks of an unpublished run: each is a few tables and one small file that counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.cache.atomic import fsync_folder, remove_leftovers, write_bytes
from pipeline.cache.records import Shard, shard_from_json, write_table


@dataclass(frozen=True)
class FinishedBlock:
    """One block's tables, and what is to be told of it beside them (JSON values)."""

    shard: Shard
    notes: Any


class BlockJournal:
    """Blocks in ``run_folder`` until they are moved to the output; a kill loses one at most.

    Args:
        run_folder: of the run; the caller holds its lock.
        out: folder that blocks are published in, on the same file system.
    """

    def __init__(self, run_folder: Path, out: Path) -> None:
        self._folder = run_folder / "blocks"
        self._out = out
        self._folder.mkdir(parents=True, exist_ok=True)
        for folder in (self._folder, run_folder, out):  # the lock says that nobody writes there
            remove_leftovers(folder)
        for torn in self._folder.glob("*.part"):
            torn.unlink()

    def finished(self, name: str) -> FinishedBlock | None:
        """The block of that name, if an earlier run finished it and its files are whole."""
        try:
            body = json.loads((self._folder / f"{name}.json").read_bytes())
            block = FinishedBlock(shard_from_json(body["shard"]), body["notes"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        for file in block.shard.values():
            places = (self._folder / file.name, self._out / file.name)
            if not any(path.is_file() and path.stat().st_size == file.bytes for path in places):
                return None
        return block

    def finish(self, name: str, tables: Mapping[str, pa.Table], notes: Any) -> FinishedBlock:
        """Write a block durably; it counts once this returns."""
        shard = {kind: write_table(self._folder, kind, table) for kind, table in tables.items()}
        body = {"shard": {kind: asdict(file) for kind, file in shard.items()}, "notes": notes}
        write_bytes(self._folder / f"{name}.json", json.dumps(body).encode())
        return FinishedBlock(shard, notes)

    def move_files(self, block: FinishedBlock) -> None:
        """Move the tables of a block to the output, where nothing reads them before the commit."""
        self._out.mkdir(parents=True, exist_ok=True)
        for file in block.shard.values():
            if (self._folder / file.name).is_file():
                (self._folder / file.name).replace(self._out / file.name)
        fsync_folder(self._out)

    def clear(self) -> None:
        """Forget every block: they are published, or of another plan."""
        for path in self._folder.iterdir():
            path.unlink()
