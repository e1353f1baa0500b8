"""Drawn scenes: the built-in demo, with images, captions, similarity, encoders and student."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pipeline.datasets.source import MANIFESTS, PrepareReport, Progress, Source

Count = Annotated[int, Field(ge=1)]
Steps = Annotated[int, Field(ge=0)]


class ScenesSource(Source):
    """The built-in demo data: drawn scenes with captions, and small encoders trained on them.

    params.yaml has the demo's parameters.

    Attributes:
        scenes: number of images to draw.
        sentences: number of sentences in the text-only corpus, about undrawn scenes.
        seed: seed of all random choices.
        image_size: edge of an image in pixels.
        train_pairs: graded pairs that teach the sentence encoder (the teacher).
        dev_pairs: graded pairs for model selection.
        test_pairs: graded pairs for the final score.
        resnet_steps: optimiser steps of the ResNet; 0 keeps its initial weights.
        clip_steps: optimiser steps of the CLIP.
        teacher_steps: optimiser steps of the sentence encoder.
        student_layers: layers of the untrained student.
        student_hidden: hidden size of the student, a multiple of its 4 attention heads.
    """

    drawn_by: ClassVar[str] = "pipeline.datasets.scenes"
    example: ClassVar[str] = "sightline prepare scenes --scenes 200 --out data/scenes"
    licence: ClassVar[str] = "drawn by Sightline itself; no rights of others"
    writes: ClassVar[tuple[str, ...]] = (
        *MANIFESTS,
        *("phrases.parquet", "similarity/test.tsv", "student/config.json"),
    )

    kind: Literal["scenes"] = "scenes"
    scenes: Annotated[int, Field(ge=20)] = 3000  # fewer may leave a split empty
    sentences: Count = 6000
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 0
    image_size: Annotated[int, Field(ge=32, le=512, multiple_of=32)] = 64
    train_pairs: Count = 3000
    dev_pairs: Count = 1000
    test_pairs: Count = 2000
    resnet_steps: Steps = 200
    clip_steps: Steps = 200
    teacher_steps: Steps = 300
    student_layers: Count = 2
    student_hidden: Annotated[int, Field(ge=32, multiple_of=4)] = 128

    def prepare(
        self, folder: Path, report: PrepareReport, progress: Progress | None = None
    ) -> None:
        """Draw and write everything into ``folder``; see `scenes.build`."""
        from pipeline.datasets.scenes.build import build

        build(self, folder, report, progress)
