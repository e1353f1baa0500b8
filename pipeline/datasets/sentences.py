"""Sentences, one per line: Wiki1M or any other text-only corpus."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pipeline.datasets.manifests import write_sentences
from pipeline.datasets.source import PrepareReport, Progress, Source
from sightline.user_files import read_lines


class SentencesSource(Source):
    """Plain sentences, such as Wiki1M.

    Attributes:
        path: a UTF-8 text file, one sentence per line.
    """

    example: ClassVar[str] = (
        "sightline prepare sentences --set path=wiki1m_for_simcse.txt --out data/wiki"
    )
    has_pairs: ClassVar[bool] = False

    kind: Literal["sentences"] = "sentences"
    path: Path = Path()

    def prepare(
        self, folder: Path, report: PrepareReport, progress: Progress | None = None
    ) -> None:
        """Write ``sentences.parquet``: every non-blank line, in order, duplicates kept.

        ``images.parquet`` and ``captions.parquet`` are written without rows, for stages that read
        them.

        Raises:
            SightlineError: as `sightline.user_files.read_lines`, or the file has no sentences.
        """
        lines = read_lines(self.path)
        write_sentences(folder, lines, report, where=self.path)
        if progress is not None:
            progress("reading", len(lines), len(lines), "sentences")
