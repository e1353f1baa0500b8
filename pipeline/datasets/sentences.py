"""Sentences, one per line: Wiki1M or any other text-only corpus."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from pipeline.datasets.manifests import write_sentences
from pipeline.datasets.source import PrepareReport, Progress, Source
from sightline.outside_texts import read_sentences


class SentencesSource(Source):
    """Plain sentences, such as Wiki1M.

    Attributes:
        path: a UTF-8 text file, one sentence per line; or a table (CSV, TSV, JSON lines, JSON,
            Parquet, Arrow).
        column: the table's column of sentences; default: the one that is called sentence or text.
    """

    example: ClassVar[str] = (
        "sightline prepare sentences --set path=wiki1m_for_simcse.txt --out data/wiki"
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
            SightlineError: as `sightline.outside_texts.read_sentences`, or there are no sentences.
        """
        texts, notes, not_read = read_sentences(self.path, self.column)
        for note in notes:
            report.guess(note)
        report.leave_columns(not_read)
        write_sentences(folder, texts, report, where=self.path)
        if progress is not None:
            progress("reading", len(texts), len(texts), "sentences")
