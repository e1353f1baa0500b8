"""Controls and ablations: each removes the signal that it names, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import Case, Features, case_of

from sightline.errors import SightlineError
from train.batch import Batch
from train.data import TrainingData
from train.objectives import make_objective
from train.run_inputs import RunInputs


def controlled(features: Features, **parameters: Any) -> TrainingData:
    return case_of(features, "kdmcse", **parameters).data()


def batches(features: Features, **parameters: Any) -> list[Batch]:
    """The paired batches of a few passes."""
    data = controlled(features, **parameters)
    return [batch for batch in map(data.__getitem__, range(40)) if batch.stream == "pairs"]


def rows_by_key(found: list[Batch], feature: str) -> dict[bytes, set[bytes]]:
    """What each caption was given, over all batches."""
    given: dict[bytes, set[bytes]] = {}
    for batch in found:
        for key, row in zip(batch.keys, batch.features[feature].numpy(), strict=True):
            given.setdefault(key.tobytes(), set()).add(row.tobytes())
    return given


def own(features: Features, name: str) -> dict[bytes, set[bytes]]:
    rows = features.rows[name]
    return {key: {row.astype(np.float32).tobytes()} for key, row in rows.items()}


def test_without_controls_every_caption_has_its_own_rows(features):
    found = batches(features)
    for feature, name in (("image-clip", "image/clip"), ("text-clip", "text/clip")):
        truth = own(features, name)
        for key, rows in rows_by_key(found, feature).items():
            assert rows == truth[key]


def test_shuffled_images_leave_no_caption_its_own_and_keep_captions_together(features):
    truth = own(features, "image/clip")
    found = rows_by_key(batches(features, shuffle_images=True), "image-clip")
    assert all(len(rows) == 1 and rows != truth[key] for key, rows in found.items())
    moved: dict[bytes, set[bytes]] = {}
    for key, rows in found.items():
        moved.setdefault(next(iter(truth[key])), set()).update(rows)
    assert all(len(rows) == 1 for rows in moved.values())  # one image goes to one other
    targets = [next(iter(rows)) for rows in moved.values()]
    assert len(set(targets)) == len(targets)


def test_random_images_are_drawn_once_and_separate_the_captions_of_an_image(features):
    truth = own(features, "image/clip")
    found = rows_by_key(batches(features, random_images=True), "image-clip")
    assert all(len(rows) == 1 for rows in found.values())
    moved: dict[bytes, set[bytes]] = {}
    for key, rows in found.items():
        moved.setdefault(next(iter(truth[key])), set()).update(rows)
    assert max(len(rows) for rows in moved.values()) > 1
    kept = [found[key] == truth[key] for key in found]
    assert np.mean(kept) < 0.3


def test_shuffled_teachers_leave_images_alone(features):
    found = batches(features, shuffle_teachers=True)
    truth = own(features, "image/clip")
    assert all(rows == truth[key] for key, rows in rows_by_key(found, "image-clip").items())
    texts = own(features, "text/clip")
    assert all(rows != texts[key] for key, rows in rows_by_key(found, "text-clip").items())


@pytest.mark.parametrize("control", ["shuffle_images", "random_images", "shuffle_teachers"])
def test_a_control_depends_only_on_the_data_seed(features, control):
    feature = "text-clip" if control == "shuffle_teachers" else "image-clip"

    def of(data_seed: int, **changes: Any) -> dict[bytes, set[bytes]]:
        found = batches(features, **{control: True, "data_seed": data_seed, **changes})
        return rows_by_key(found, feature)

    assert of(0) == of(0, margin=0.2)
    assert of(0) != of(1)


def test_fewer_pairs_repeat_more_often_in_as_many_steps(features):
    all_of_them, few = controlled(features), controlled(features, pairs=12)
    assert few.schedule.steps_per_epoch == all_of_them.schedule.steps_per_epoch
    streams = [[data[k].stream for k in range(40)] for data in (few, all_of_them)]
    assert streams[0] == streams[1]
    found = rows_by_key(batches(features, pairs=12), "image-clip")
    assert len(found) == 12
    more = rows_by_key(batches(features, pairs=20), "image-clip")
    assert found.keys() < more.keys()  # a larger draw contains a smaller one


def test_the_pairs_drawn_depend_only_on_the_data_seed_and_are_part_of_the_digest(features):
    def of(seed: int, **parameters: Any) -> tuple[set[bytes], str]:
        case = case_of(features, "kdmcse", **parameters)
        spec = case.spec().model_copy(update={"seed": seed})
        inputs = RunInputs.open(spec)
        keys = {key.tobytes() for k in range(40) for key in _keys_of_pairs(inputs.data[k])}
        return keys, inputs.digest

    first, first_digest = of(0, pairs=12)
    assert of(0, pairs=12) == (first, first_digest)
    assert of(1, pairs=12)[0] == first
    other, other_digest = of(0, pairs=12, data_seed=1)
    assert other != first
    digests = {of(0)[1], first_digest, other_digest, of(0, pairs=13)[1]}
    assert len(digests) == 4


def _keys_of_pairs(batch: Batch) -> np.ndarray:
    return batch.keys if batch.stream == "pairs" else batch.keys[:0]


def test_more_pairs_than_available(features):
    with pytest.raises(SightlineError, match="pairs is 5,000, but there are 54 to draw from"):
        controlled(features, pairs=5000)


def test_both_controls_of_images():
    with pytest.raises(SightlineError, match="shuffle_images and random_images are both on"):
        make_objective("mcse", {"image": "clip", "shuffle_images": True, "random_images": True})


@pytest.mark.parametrize(
    ("objective", "parameters", "message"),
    [
        (
            "simcse",
            {"shuffle_images": True},
            "shuffle_images is on, but objective simcse reads",
        ),
        ("simcse", {"shuffle_teachers": True}, "reads no teacher or text features"),
        ("mcse", {"image": "clip", "shuffle_objects": True}, "reads no object features"),
        ("mcse", {"image": "clip", "weight": 0, "random_images": True}, "reads no image features"),
    ],
)
def test_a_control_of_features_that_are_not_read(features, objective, parameters, message):
    with pytest.raises(SightlineError, match=message):
        Case(features, objective, parameters).data()


def test_teacher_rows_that_do_not_match_by_key(features):
    features.write("text/cut-short", dict(list(features.rows["text/clip"].items())[7:]))
    case = replace(case_of(features, "kdmcse"), sets={"text-clip": "text/cut-short"})
    expected = r"(?s)cut-short: \d of 54 keys are missing.*for text-clip: text features of clip"
    with pytest.raises(SightlineError, match=expected):
        case.data()
