"""Drawn scenes: the built-in demo, with pictures, captions, similarity, encoders and student."""

from __future__ import annotations

from pathlib import Path

from pipeline.datasets.base import PrepareReport, Progress
from pipeline.datasets.scenes.source import ScenesSource

__all__ = ["ScenesSource", "prepare"]


def prepare(source: ScenesSource, out: Path, progress: Progress | None = None) -> PrepareReport:
    """Draw and write everything into ``out``, whole or not at all; see `scenes.build`."""
    from pipeline.datasets.folder import building
    from pipeline.datasets.scenes.build import build

    with building(out) as folder:
        return build(source, folder, progress)
