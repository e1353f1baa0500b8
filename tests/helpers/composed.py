"""Every configuration that the docs and the papers' tables name, alone or with parts."""

from __future__ import annotations

from pathlib import Path

from pipeline.configure import configurations, parts
from train.report.published import every_entry

CONFIGS = Path(__file__).parents[2] / "configs"
STUDIES = ("margin", "pairs", "temperature", "terms")
OF_SCENES = ("teachers", "teachers-resnet", "weight")  # which have a part for scenes

COMPOSED = sorted(
    {
        *configurations(CONFIGS),
        *(name for entry in every_entry() for name, _ in entry.trainings),
        *(f"scenes three-seeds studies/{study}" for study in STUDIES),
        *(f"scenes three-seeds studies/{study}-scenes" for study in OF_SCENES),
        "flickr30k studies/temperature",
        "flickr8k mcse-only three-seeds",
        "own roberta",
    }
)
assert {f"studies/{study}-scenes" for study in OF_SCENES} < parts(CONFIGS).keys()
