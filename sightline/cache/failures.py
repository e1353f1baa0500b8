"""failures.jsonl: paths and reasons of failed rows; machine-specific, so kept beside the set."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from sightline.cache.errors import CacheError
from sightline.files import write_bytes

Failure = dict[str, str]
"""``code``, ``path`` and ``reason`` of a row that could not be computed."""


class FailureList:
    """Details of failed rows, by key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._failures: dict[bytes, Failure] = {}

    def read(self) -> None:
        """Load what an earlier run wrote.

        Raises:
            CacheError: the file is not a list of failures.
        """
        if not self.path.is_file():
            return
        text = self.path.read_text(encoding="utf-8", errors="surrogateescape")
        for line in filter(None, text.split("\n")):
            try:
                about = json.loads(line)
                self._failures[bytes.fromhex(about.pop("key"))] = about
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise CacheError(
                    f"{self.path}: not a list of failures ({error}); delete it: only "
                    "the paths and reasons of failed rows are lost"
                ) from error

    def add(self, failed: dict[bytes, Failure]) -> None:
        """Add failed rows: key → code, path and reason."""
        self._failures.update(failed)

    def keep(self, keys: Collection[bytes]) -> None:
        """Drop all others."""
        self._failures = {key: about for key, about in self._failures.items() if key in keys}

    def write(self) -> None:
        """Replace the file with the current entries."""
        lines = [json.dumps(about, ensure_ascii=False) + "\n" for about in self.entries()]
        if lines or self.path.exists():
            write_bytes(self.path, "".join(lines).encode("utf-8", "surrogateescape"))

    def entries(self) -> list[Failure]:
        """Key, code, path and reason of every failed row, sorted by key."""
        return [{"key": key.hex(), **about} for key, about in sorted(self._failures.items())]
