"""Drawn scenes: the built-in demo, with images, captions, similarity, encoders and student."""

from __future__ import annotations

from pathlib import Path

from pipeline.datasets.folder import MANIFESTS
from pipeline.datasets.scenes.source import ScenesSource
from pipeline.datasets.source import PrepareReport, Progress

__all__ = ["WRITES", "ScenesSource", "prepare"]

WRITES = (*MANIFESTS, "phrases.parquet", "similarity/test.tsv", "student/config.json")


def prepare(
    source: ScenesSource, folder: Path, report: PrepareReport, progress: Progress | None = None
) -> None:
    """Draw and write everything into ``folder``; see `scenes.build`."""
    from pipeline.datasets.scenes.build import build

    build(source, folder, report, progress)
