"""What the stages that run side by side say: lines with their names, or a status line for each."""

from __future__ import annotations

import re
import sys
from collections import deque
from threading import Lock
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

_KEPT = 60
"""Last lines of a stage that are shown on a terminal if it fails."""
_OF_DVC = re.compile(
    r"Running stage '.*':$|> |(Generating|Updating) lock file "
    r"|To (track the changes with git|enable auto staging), run:$|\t(git add|dvc config) "
    r"|Use `dvc push` to send your updates"
)
"""Lines that DVC prints about every stage alike."""


class Lines:
    """Prints lines of several stages; on a terminal, their last ones in place of each other."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._last: dict[str, deque[str]] = {}
        console = Console(file=sys.stdout, highlight=False, markup=False)
        self._live = (
            Live(console=console, transient=True, get_renderable=self._status)
            if console.is_terminal
            else None
        )

    def __enter__(self) -> Lines:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def read(self, name: str, output: IO[bytes]) -> None:
        """Take what a stage says, until it ends."""
        with self._lock:
            self._last[name] = deque(maxlen=_KEPT)
        for raw in output:
            line = raw.decode(errors="replace").rstrip()
            if line and not _OF_DVC.match(line):
                with self._lock:
                    self._last[name].append(line)
                    if self._live is None:
                        self._print(f"{name}: {line}")

    def done(self, name: str, how: str) -> None:
        """A stage has ended well."""
        with self._lock:
            last = self._last.pop(name)
            self._print(f"{name}: {how}" + (f": {last[-1]}" if self._live and last else ""))

    def failed(self, name: str, how: str) -> None:
        """A stage has failed; on a terminal its last lines have not been seen together yet."""
        with self._lock:
            for line in self._last.pop(name, ()) if self._live else ():
                self._print(f"{name}: {line}")
            self._print(f"{name}: {how}")

    def _print(self, line: str) -> None:
        if self._live is None:
            print(line, flush=True)
            return
        self._live.console.print(Text(line), soft_wrap=True)

    def _status(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for name, lines in list(self._last.items()):
            table.add_row(name, lines[-1] if lines else "")
        return table
