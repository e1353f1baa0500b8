"""Sentences of others: a text file with one in a line, which is no table."""

from __future__ import annotations

import shlex
from pathlib import Path

from sightline.errors import SightlineError
from sightline.file_kinds import file_kind
from sightline.outside_tables import SUFFIXES, open_table, text_suffix
from sightline.user_files import read_lines, short


def is_table(path: Path) -> bool:
    """Whether a file is a table: a binary one by its content, a text by its suffix."""
    if not path.is_file():
        return False
    return file_kind(path) in ("parquet", "arrow") or text_suffix(path) in SUFFIXES


def read_sentence_lines(path: Path, expected: str) -> list[str]:
    """The lines of a text without outer white space, where a command takes no other table.

    Raises:
        SightlineError: as `sightline.user_files.read_lines`, or the file is a table.
    """
    if is_table(path):
        columns = ", ".join(map(short, open_table(path, expected).columns))
        raise SightlineError(
            f"{path}: a table (columns {columns}); expected {expected}; write its sentences into a "
            ".txt, one in each line, or prepare it: `sightline prepare sentences --set path="
            f"{shlex.quote(str(path))} --set column=NAME --out FOLDER`"
        )
    return [line.strip() for line in read_lines(path, expected)]
