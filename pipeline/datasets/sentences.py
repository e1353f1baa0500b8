"""Sentences, one per line: Wiki1M or any other text-only corpus."""

# pyarrow.compute makes its functions when it is imported:
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from pipeline.datasets.manifests import cleaned, count_trimmed, visible
from pipeline.datasets.source import DatasetError, PrepareReport, Progress, Source
from sightline.cache.manifest import CAPTIONS, IMAGES, SENTENCES, write_manifest
from sightline.tables.outside_columns import Wanted, as_columns, choose
from sightline.tables.outside_tables import is_table, open_table, require_one_column
from sightline.user_files import read_lines, short

EXPECTED = "one sentence per line, or a table of sentences: CSV, TSV, JSON, Parquet or Arrow"


class SentencesSource(Source):
    """Plain sentences, such as Wiki1M.

    Attributes:
        path: a UTF-8 text file, one sentence per line; or a table (CSV, TSV, JSON lines, JSON,
            Parquet, Arrow).
        column: the table's column of sentences; default: the one that is called sentence or text.
    """

    example: ClassVar[str] = (
        "sightline prepare sentences --path wiki1m_for_simcse.txt --out data/wiki"
    )
    has_pairs: ClassVar[bool] = False

    kind: Literal["sentences"] = "sentences"
    path: Path = Path()
    column: str | None = Field(default=None, min_length=1)

    def prepare(
        self, folder: Path, report: PrepareReport, progress: Progress | None = None
    ) -> None:
        """Write ``sentences.parquet``: every sentence that is not blank, in order, with duplicates.

        ``images.parquet`` and ``captions.parquet`` are written without rows, for stages that read
        them.

        Raises:
            SightlineError: no such file, no such column or several, a value that is no text, or
                no sentences.
        """
        lines = pa.array(self._read(report), pa.large_string())
        texts = cleaned(lines)
        kept = visible(texts)
        count_trimmed(lines, texts, kept, "sentences", report)
        texts = texts.filter(kept)
        if not len(texts):
            raise DatasetError(f"{self.path}: contains no sentences")
        report.counts["sentences"] = len(texts)
        report.counts["blank_lines"] = len(lines) - len(texts)
        report.counts["distinct_sentences"] = pc.count_distinct(texts).as_py()
        table = pa.table({"text": texts}, SENTENCES)
        write_manifest(folder / "sentences.parquet", table, SENTENCES)
        write_manifest(folder / "images.parquet", IMAGES.empty_table(), IMAGES)
        write_manifest(folder / "captions.parquet", CAPTIONS.empty_table(), CAPTIONS)
        if progress is not None:
            progress("reading", len(lines), len(lines), "sentences")

    def _read(self, report: PrepareReport) -> list[str]:
        """The lines of a text, or a column of a table; a file that has it is one, by any suffix."""
        if self.column is None and not is_table(self.path):
            return require_one_column(self.path, read_lines(self.path, EXPECTED))
        table = open_table(self.path, EXPECTED, ["sentence"])
        columns = {"sentence": Wanted(as_columns(self.column), "column")}
        (column,) = choose(table, columns)["sentence"]
        texts: list[str] = []
        for number, (value,) in table.read([column]):
            if not isinstance(value, str | None):
                raise table.error(number, f"{column}: found {short(value)}, expected text")
            texts.append(value or "")
        report.guess(*table.notes)  # of its rows too
        report.leave_columns(table.not_read)
        return texts
