"""The diagnosis looks at the very batches that a training draws."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import World
from feature_sets import Features

from train.data import TrainingData, first_paired
from train.diagnose.diagnosis import diagnose
from train.diagnose.settings import Settings, Terms
from train.objectives.kdmcse import KDMCSE, KDMCSEParams


@pytest.mark.parametrize("caption", ["all", "random"])
def test_the_removed_share_is_that_of_a_trainings_first_paired_steps(world: World, caption) -> None:
    features = Features(world, world.root / "sets")
    features.add("of-images", "image", 8)
    features.add("of-texts", "text", 8)
    params = KDMCSEParams(
        image="of-images",
        text="of-texts",
        caption=caption,
        data_seed=4,
        image_threshold=0.3,
        teacher_text_threshold=0.3,
    )
    sets = {f"{kind}-of-{kind}s": features.root / f"of-{kind}s" for kind in ("image", "text")}
    spec = world.spec(
        world.root / "unused", "kdmcse", seed=7, parameters=params.model_dump(), features=sets
    )
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
        configured=Terms(0.3, 0.3),
    )
    manifests = world.root / "captions.parquet", world.root / "images.parquet"
    found = diagnose(list(sets.values()), *manifests, settings)
    for each in found.filters[:2]:
        (removal,) = [removal for removal in each.removals if removal.configured]
        of_steps = [float(step[f"removed_{each.term}"]) for step in steps]
        assert removal.share == pytest.approx(np.mean(of_steps), abs=1e-7)
        assert 0 < removal.share < 1
        assert (removal.least, removal.greatest) == (min(of_steps), max(of_steps))
