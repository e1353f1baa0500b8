"""The diagnosis looks at the very batches that a training draws."""

from __future__ import annotations

import numpy as np
import pytest
from cases import Case, Features

from sightline.cache.caption_choice import CaptionPolicy
from train.data import TrainingData, first_paired
from train.diagnose.diagnosis import diagnose
from train.diagnose.settings import Settings, Terms
from train.objectives.kdmcse import KDMCSE, KDMCSEParams


@pytest.mark.parametrize("caption", ["all", "random"])
def test_the_removed_share_is_that_of_a_trainings_first_paired_steps(
    features: Features, caption: CaptionPolicy
) -> None:
    params = KDMCSEParams(
        image="clip",
        text="clip",
        caption=caption,
        data_seed=4,
        image_threshold=0.9,
        teacher_text_threshold=0.9,
    )
    spec = Case(features, "kdmcse", params.model_dump()).spec().model_copy(update={"seed": 7})
    objective = KDMCSE(params)
    data = TrainingData(spec, objective)
    steps = [objective.statistics(batch) for batch in first_paired(data, 400, 30)]
    assert len(steps) == 30
    settings = Settings(
        batch_size=spec.train.batch_size,
        batches=30,
        caption=caption,
        data_seed=4,
        seed=7,
        configured=Terms(0.9, 0.9),
    )
    root = features.world.root
    manifests = (root / name for name in ("captions.parquet", "images.parquet"))
    found = diagnose(list(spec.features.values()), *manifests, settings)
    for each in found.filters[:2]:
        (removal,) = [removal for removal in each.removals if removal.configured]
        of_steps = [float(step[f"removed_{each.term}"]) for step in steps]
        assert removal.share == pytest.approx(np.mean(of_steps), abs=1e-7)
        assert 0 < removal.share < 1
        assert (removal.least, removal.greatest) == (min(of_steps), max(of_steps))
