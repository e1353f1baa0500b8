"""Sentences, one per line: Wiki1M or any other text-only corpus."""

# pyarrow.compute makes its functions when it is imported:
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.datasets.captioned import visible
from pipeline.datasets.source import DatasetError, PrepareReport, Progress, Source
from sightline.cache.manifest import CAPTIONS, IMAGES, SENTENCES, write_manifest
from sightline.outside import read_lines


class SentencesSource(Source):
    """A UTF-8 text file, one sentence per line."""

    has_pairs: ClassVar[bool] = False

    path: Path = Path()


def prepare(
    source: SentencesSource, folder: Path, report: PrepareReport, progress: Progress | None = None
) -> None:
    """Write ``sentences.parquet``: every non-blank line, in order, duplicates kept.

    ``images.parquet`` and ``captions.parquet`` are written without rows, for stages that read them.

    Raises:
        SightlineError: as `sightline.outside.read_lines`, or the file has no sentences.
    """
    texts = pc.utf8_trim_whitespace(pa.array(read_lines(source.path), pa.string()))
    filled = texts.filter(visible(texts))
    if not len(filled):
        raise DatasetError(f"{source.path}: contains no sentences")
    report.counts["sentences"] = len(filled)
    report.counts["blank_lines"] = len(texts) - len(filled)
    report.counts["distinct_sentences"] = pc.count_distinct(filled).as_py()
    table = pa.table({"text": filled}, schema=SENTENCES)
    write_manifest(folder / "sentences.parquet", table, SENTENCES)
    write_manifest(folder / "images.parquet", IMAGES.empty_table(), IMAGES)
    write_manifest(folder / "captions.parquet", CAPTIONS.empty_table(), CAPTIONS)
    if progress is not None:
        progress("reading", len(filled), len(filled), "sentences")
