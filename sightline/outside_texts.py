"""Sentences of others: a text file with one in a line, or a column of a table."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import NamedTuple

from sightline.errors import SightlineError
from sightline.file_kinds import file_kind
from sightline.outside_tables import SUFFIXES, Wanted, as_columns, choose, open_table, text_suffix
from sightline.user_files import read_lines, short

EXPECTED = "one sentence per line, or a table of sentences: CSV, TSV, JSON, Parquet or Arrow"


class Sentences(NamedTuple):
    """The sentences of a file, in its order.

    Attributes:
        texts: as they stand there; empty where a row has none.
        notes: what was chosen unasked.
        not_read: other columns of a table.
    """

    texts: list[str]
    notes: list[str]
    not_read: list[str]


def is_table(path: Path) -> bool:
    """Whether a file is a table: a binary one by its content, a text by its suffix."""
    if not path.is_file():
        return False
    return file_kind(path) in ("parquet", "arrow") or text_suffix(path) in SUFFIXES


def read_sentences(path: Path, column: str | None = None) -> Sentences:
    """The lines of a text, or a column of a table.

    Args:
        column: its name; a file that has it is a table, whatever its suffix. None: one that is
            known as a column of sentences, or of a text no column.

    Raises:
        SightlineError: no such file, no such column or several, or a value that is no text.
    """
    if column is None and not is_table(path):
        return Sentences(read_lines(path, EXPECTED), [], [])
    table = open_table(path, EXPECTED)
    (chosen,) = choose(table, {"sentence": Wanted(as_columns(column), "column")})["sentence"]
    texts: list[str] = []
    for number, (value,) in table.read([chosen]):
        if not isinstance(value, str | None):
            raise table.error(number, f"{chosen}: found {short(value)}, expected text")
        texts.append(value or "")
    return Sentences(texts, table.notes, table.not_read)


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
