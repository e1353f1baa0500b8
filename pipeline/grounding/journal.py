"""Finished blocks of an unpublished run: each is a few tables and one small file that counts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.cache.record import TableShard
from pipeline.cache.tables import TABLES, write_table
from sightline.files import remove_leftovers, write_bytes
from sightline.output import Output

_OURS = re.compile(rf"(rest-)?[0-9a-f]{{64}}\.json|({'|'.join(TABLES)})-[0-9a-f]{{32}}\.parquet")


@dataclass(frozen=True)
class FinishedBlock:
    """One block's tables, and what is to be told of it beside them (JSON values)."""

    shard: TableShard
    notes: Any


class BlockJournal:
    """Blocks in ``run_folder`` until they are moved to the output; a kill loses one at most.

    Args:
        output: that blocks are published in; the caller has entered it.
    """

    def __init__(self, output: Output) -> None:
        self._folder = output.run_folder / "blocks"
        self._output = output
        self._folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self._folder, output.abandoned)

    def finished(self, name: str) -> FinishedBlock | None:
        """The block of that name, if an earlier run finished it and its files are whole."""
        try:
            body = json.loads((self._folder / f"{name}.json").read_bytes())
            block = FinishedBlock(TableShard.model_validate(body["shard"]), body["notes"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        for file in block.shard.tables.values():
            places = (self._folder / file.name, self._output.folder / file.name)
            if not any(path.is_file() and path.stat().st_size == file.bytes for path in places):
                return None
        return block

    def finish(self, name: str, tables: Mapping[str, pa.Table], notes: Any) -> FinishedBlock:
        """Write a block durably; it counts once this returns."""
        files = {name: write_table(self._folder, name, table) for name, table in tables.items()}
        shard = TableShard(tables=files)
        body = {"shard": shard.model_dump(mode="json"), "notes": notes}
        write_bytes(self._folder / f"{name}.json", json.dumps(body).encode())
        return FinishedBlock(shard, notes)

    def move_files(self, block: FinishedBlock) -> None:
        """Move the tables of a block to the output, where nothing reads them before the commit."""
        paths = {file.name: self._folder / file.name for file in block.shard.tables.values()}
        self._output.move({name: path for name, path in paths.items() if path.is_file()})

    def clear(self) -> None:
        """Forget every block: they are published, or of another plan."""
        for path in self._folder.iterdir():
            if _OURS.fullmatch(path.name):
                path.unlink()
        with suppress(OSError):  # it holds something else
            self._folder.rmdir()
