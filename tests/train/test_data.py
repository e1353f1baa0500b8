"""Batches from the cache: their order and content, the controls, and an error for each mistake."""

from __future__ import annotations

import shutil

import numpy as np
import pyarrow as pa
import pytest
import torch
from cases import Case, case_of
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from training_world import make_world

from sightline.cache import (
    CAPTIONS,
    FeatureSet,
    TokenSet,
    key_of_text,
    read_manifest,
    write_manifest,
)
from sightline.cache.caption_choice import choose_captions
from sightline.errors import SightlineError
from train.data import TrainingData, first_paired
from train.diagnose.diagnosis import diagnose
from train.diagnose.settings import DiagnosisSettings
from train.objectives import make_objective
from train.objectives.kdmcse import KDMCSE
from train.run_inputs import RunInputs
from train.run_spec import TrainConfig
from train.schedule import Schedule, batches_per_pass


def load(world, objective="mcse", **changes):
    spec = world.spec(world.root / "unused", objective, **changes)
    return TrainingData(spec, make_objective(spec.objective, spec.parameters))


# ---- the schedule of METHODS §6 -----------------------------------------------------------------

ROWS = st.integers(0, 60).filter(lambda n: n != 1)


@given(pairs=ROWS, text=ROWS, batch_size=st.integers(2, 9), seed=st.integers(0, 3))
@example(pairs=0, text=20, batch_size=4, seed=0)
@example(pairs=20, text=0, batch_size=4, seed=0)
@settings(max_examples=80, deadline=None)
def test_each_pass_of_a_stream_holds_every_row_once_in_batches_without_gaps(
    pairs, text, batch_size, seed
):
    assume(pairs + text)
    schedule = Schedule(pairs, text, batch_size, seed)
    total = {"pairs": pairs, "text": text}
    batches = {"pairs": schedule.pair_batches, "text": schedule.text_batches}
    seen = {"pairs": 0, "text": 0}
    passes: dict[tuple[str, int], list[int]] = {}
    for k in range(3 * schedule.steps_per_epoch):
        draw = schedule.draw(k)
        assert draw.pass_number * batches[draw.stream] + draw.position == seen[draw.stream]
        seen[draw.stream] += 1
        rows = schedule.rows(draw)
        assert 2 <= len(rows) <= batch_size + 1
        passes.setdefault((draw.stream, draw.pass_number), []).extend(rows.tolist())
    for (stream, number), rows in passes.items():
        assert len(set(rows)) == len(rows)
        if (stream, number + 1) in passes:  # the pass is over
            assert sorted(rows) == list(range(total[stream]))


def test_two_or_more_text_batches_a_pair_batch_follow_the_released_rule():
    schedule = Schedule(pairs=20, text=73, batch_size=10, seed=0)  # 2 and 8 batches: r = 4
    paired = [schedule.draw(k).stream == "pairs" for k in range(schedule.steps_per_epoch)]
    assert paired == [k % 4 == 0 for k in range(10)]


@pytest.mark.parametrize(("pairs", "text"), [(50, 90), (90, 50), (50, 50), (500, 20)])
def test_fewer_are_spread_evenly_and_every_epoch_is_one_pass(pairs, text):
    schedule = Schedule(pairs, text, batch_size=10, seed=0)
    steps = schedule.steps_per_epoch
    p = schedule.pair_batches / steps
    paired = np.array([schedule.draw(k).stream == "pairs" for k in range(2 * steps)])
    assert paired[:steps].sum() == paired[steps:].sum() == schedule.pair_batches
    k = np.arange(2 * steps)
    assert (np.abs(np.cumsum(paired) - (k + 1) * p) <= 1).all()


def test_a_last_batch_of_one_row_joins_the_one_before():
    assert [batches_per_pass(n, 4) for n in (0, 1, 2, 4, 5, 6, 8, 9)] == [0, 1, 1, 1, 1, 2, 2, 2]
    schedule = Schedule(pairs=9, text=0, batch_size=4, seed=0)
    assert [len(schedule.rows(schedule.draw(k))) for k in range(4)] == [4, 5, 4, 5]


def test_seed_stream_and_pass_each_change_the_order():
    orders = set()
    for seed, k in ((0, 0), (0, 1), (0, 2), (1, 0), (0, 2)):
        schedule = Schedule(pairs=64, text=64, batch_size=64, seed=seed)
        orders.add(tuple(schedule.rows(schedule.draw(k)).tolist()))
    assert len(orders) == 4  # the last is the third again


@pytest.mark.parametrize(("pairs", "text", "batch"), [(0, 0, 4), (1, 9, 4), (9, 1, 4), (9, 9, 1)])
def test_too_few_rows_to_contrast_are_refused(pairs, text, batch):
    with pytest.raises(ValueError, match=r"too few|no negatives"):
        Schedule(pairs, text, batch, 0)


# ---- the rows of a batch ------------------------------------------------------------------------


def test_features_and_ids_of_a_batch_belong_to_its_texts(world):
    data = load(world)
    captions = read_manifest(world.root / "captions.parquet", CAPTIONS).to_pylist()
    image_of = {key_of_text(row["text"]): int(row["image_id"][:2]) for row in captions}
    features = FeatureSet.open(world.root / "features")
    tokens = TokenSet.open(world.root / "tokens")
    seen = 0
    for k in range(len(data)):
        batch = data[k]
        flat, lengths = tokens.gather(tokens.rows(batch.keys))
        found = batch.sentences
        assert found.lengths.tolist() == lengths.tolist()
        inside = torch.arange(found.input_ids.shape[1]) < torch.from_numpy(found.lengths)[:, None]
        assert found.input_ids[inside].tolist() == flat.tolist()
        assert (found.input_ids[~inside] == tokens.header.pad_token_id).all()
        if batch.stream == "pairs":
            keys = [world.image_keys[image_of[key.tobytes()]] for key in batch.keys]
            expected = features.take(keys).astype(np.float32)
            assert torch.equal(batch.features["image-tiny-cnn"], torch.from_numpy(expected))
            seen += len(batch)
        else:
            assert batch.features == {}
    assert seen == 18  # the dev split's two images are excluded


def test_rows_of_one_image_in_a_batch_are_counted(world):
    parameters = {"image": "tiny-cnn", "weight": 0.5, "caption": "all"}
    data = load(world, parameters=parameters, sentences=None)
    captions = read_manifest(world.root / "captions.parquet", CAPTIONS).to_pylist()
    image_of = {key_of_text(row["text"]): row["image_id"] for row in captions}
    for batches in (2, len(data)):
        images = [[image_of[key.tobytes()] for key in data[k].keys] for k in range(batches)]
        shared = sum(batch.count(image) > 1 for batch in images for image in batch)
        assert data.repeats(batches) == (shared, sum(map(len, images)))
        assert shared
    assert load(world).repeats(4)[0] == 0  # one caption an image


def test_dev_pairs_of_one_score_are_refused_before_anything_is_trained(world, tmp_path):
    (tmp_path / "dev.tsv").write_text("score\tsentence1\tsentence2\n1\ta\tb\n1\tc\td\n")
    with pytest.raises(SightlineError, match=r"dev\.tsv: all 2 pairs have the score 1; give a dev"):
        RunInputs.open(world.spec(tmp_path / "run", dev=tmp_path / "dev.tsv"))


def test_caption_policies():
    images = ["a", "a", "b", "a", "b"]
    texts = ["two elephants", "a red dog", "x", "a small dog", "y"]
    assert choose_captions(images, texts, "all", 0).tolist() == [0, 1, 2, 3, 4]
    assert choose_captions(images, texts, "longest", 0).tolist() == [2, 3]
    drawn = {tuple(choose_captions(images, texts, "random", seed).tolist()) for seed in range(40)}
    assert drawn == {tuple(sorted((a, b))) for a in (0, 1, 3) for b in (2, 4)}
    # which one depends on the image alone
    alone = choose_captions(["b"] * 5, list("vwxyz"), "random", 3)
    among = choose_captions(["a", "a", *["b"] * 5], list("..vwxyz"), "random", 3)
    assert among[-1] - 2 == alone[0]


def test_pairs_whose_image_failed_are_dropped_and_counted(tmp_path):
    for name in ("three", "all"):
        (tmp_path / name).mkdir()
    data = load(make_world(tmp_path / "three", failed=3))
    assert data.dropped_pairs == 3
    assert data.schedule.pairs == 15
    with pytest.raises(SightlineError, match="the images of all 18 pairs"):
        load(make_world(tmp_path / "all", failed=20))


# ---- mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": {}}, r"a feature set for image-tiny-cnn \(image features of tiny-cnn f"),
        ({"features": {"image-tiny-cnn": "nowhere"}}, "nowhere: not a feature set"),
        ({"features": {"image-tiny-cnn": "", "audio": ""}}, "does not read features for audio"),
        ({"pairs": None}, "needs pairs"),
        ({"student": {"max_length": 12}}, "truncated to 16 tokens"),
        ({"student": {"max_length": 20}}, "truncated to 16 tokens"),
    ],
)
def test_mismatched_inputs_are_one_error(world, changes, message):
    if "features" in changes:
        real = world.root / "features"
        changes = {"features": {name: path or real for name, path in changes["features"].items()}}
    with pytest.raises(SightlineError, match=message):
        load(world, "mcse", **changes)


def test_captions_that_cannot_be_trained_on_are_one_error(world, tmp_path):
    captions = read_manifest(world.root / "captions.parquet", CAPTIONS)
    row = {"caption_id": "x#0", "image_id": "00.png", "text": "never seen", "split": ""}
    unseen = pa.concat_tables([captions, pa.Table.from_pylist([row], CAPTIONS)])
    tests = pa.array(["test"] * len(captions))
    only_one = pa.array(["train"] + ["test"] * (len(captions) - 1))
    parameters = {"caption": "all", "image": "tiny-cnn"}
    for table, message in (
        (unseen, "1 of 55 keys are missing"),
        (captions.set_column(3, "split", tests), "splits are 'test', expected 'train'"),
        (captions.set_column(3, "split", only_one), r"too few rows to train on \(1\)"),
    ):
        write_manifest(tmp_path / "captions.parquet", table, CAPTIONS)
        shutil.copy(world.root / "images.parquet", tmp_path)
        with pytest.raises(SightlineError, match=message):
            load(world, "mcse", pairs=tmp_path, parameters=parameters)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 1, "max_steps": 5}, "set only one of them"),
        ({"chunk": 1}, "greater than or equal to 2"),
        ({"chunk": 65}, r"chunk is 65, but a batch has 64 rows \(batch_size\); give a smaller ch"),
    ],
)
def test_settings_of_a_training_that_cannot_be(changes, message):
    with pytest.raises(ValidationError, match=message):
        TrainConfig(**changes)


# ---- controls and ablations: each removes the signal that it names, and nothing else ------------


def rows_of(features, feature, **parameters):
    """The rows that KDMCSE's paired batches of a few passes give to each caption."""
    data = case_of(features, "kdmcse", **parameters).data()
    found: dict[bytes, set[bytes]] = {}
    for batch in first_paired(data, 40):
        for key, row in zip(batch.keys, batch.features[feature].numpy(), strict=True):
            found.setdefault(key.tobytes(), set()).add(row.tobytes())
    return found


def own_rows(features, name):
    """The rows of a set by caption, as `rows_of` has them."""
    rows = features.rows[name]
    return {key: {row.astype(np.float32).tobytes()} for key, row in rows.items()}


def moved_to(found, truth):
    """A caption's own row → the rows that the captions of that image, or text, were given."""
    moved: dict[bytes, set[bytes]] = {}
    for key, rows in found.items():
        (own,) = truth[key]
        moved.setdefault(own, set()).update(rows)
    return moved


def test_shuffled_images_leave_no_caption_its_own_and_keep_captions_together(features):
    truth = own_rows(features, "image/clip")
    found = rows_of(features, "image-clip", shuffle_images=True)
    assert all(len(rows) == 1 and rows != truth[key] for key, rows in found.items())
    moved = moved_to(found, truth)
    assert all(len(rows) == 1 for rows in moved.values())  # one image goes to one other
    assert len({row for (row,) in moved.values()}) == len(moved)


def test_random_images_are_drawn_once_and_separate_the_captions_of_an_image(features):
    truth = own_rows(features, "image/clip")
    found = rows_of(features, "image-clip", random_images=True)
    assert all(len(rows) == 1 for rows in found.values())
    assert max(len(rows) for rows in moved_to(found, truth).values()) > 1
    assert np.mean([found[key] == truth[key] for key in found]) < 0.3


def test_shuffled_teachers_leave_images_alone(features):
    truth = own_rows(features, "image/clip")
    found = rows_of(features, "image-clip", shuffle_teachers=True)
    assert all(rows == truth[key] for key, rows in found.items())
    texts = own_rows(features, "text/clip")
    found = rows_of(features, "text-clip", shuffle_teachers=True)
    assert all(rows != texts[key] for key, rows in found.items())


@pytest.mark.parametrize("control", ["shuffle_images", "random_images", "shuffle_teachers"])
def test_a_control_depends_only_on_the_data_seed(features, control):
    feature = "text-clip" if control == "shuffle_teachers" else "image-clip"
    found = rows_of(features, feature, **{control: True, "data_seed": 0})
    assert found == rows_of(features, feature, **{control: True, "data_seed": 0, "margin": 0.2})
    assert found != rows_of(features, feature, **{control: True, "data_seed": 1})


def test_fewer_pairs_repeat_more_often_in_as_many_steps(features):
    every, few = (case_of(features, "kdmcse", pairs=pairs).data() for pairs in (None, 12))
    assert few.schedule.steps_per_epoch == every.schedule.steps_per_epoch
    assert [few[k].stream for k in range(40)] == [every[k].stream for k in range(40)]
    found = rows_of(features, "image-clip", pairs=12)
    assert len(found) == 12
    more = rows_of(features, "image-clip", pairs=20)
    assert found.keys() < more.keys()  # a larger draw contains a smaller one
    with pytest.raises(SightlineError, match="pairs is 5,000, but there are 54 to draw from"):
        case_of(features, "kdmcse", pairs=5000).data()


def test_the_pairs_drawn_depend_only_on_the_data_seed_and_are_part_of_the_digest(features):
    def drawn(seed, **parameters):
        case = case_of(features, "kdmcse", **parameters)
        inputs = RunInputs.open(case.spec().model_copy(update={"seed": seed}))
        keys = {key.tobytes() for batch in first_paired(inputs.data, 40) for key in batch.keys}
        return keys, inputs.digest

    first, first_digest = drawn(0, pairs=12)
    assert drawn(0, pairs=12) == (first, first_digest)
    assert drawn(1, pairs=12)[0] == first
    other, other_digest = drawn(0, pairs=12, data_seed=1)
    assert other != first
    digests = {drawn(0)[1], first_digest, other_digest, drawn(0, pairs=13)[1]}
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("objective", "parameters", "message"),
    [
        ("simcse", {"shuffle_images": True}, "shuffle_images is on, but objective simcse reads"),
        ("simcse", {"shuffle_teachers": True}, "reads no teacher or text features"),
        ("mcse", {"image": "clip", "shuffle_objects": True}, "reads no object features"),
        ("mcse", {"image": "clip", "weight": 0, "random_images": True}, "reads no image features"),
        (
            "mcse",
            {"image": "clip", "shuffle_images": True, "random_images": True},
            "shuffle_images and random_images are both on",
        ),
    ],
)
def test_a_control_of_features_that_are_not_read_or_a_second_one(
    features, objective, parameters, message
):
    with pytest.raises(SightlineError, match=message):
        Case(features, objective, parameters).data()


# ---- the diagnosis looks at the very batches that a training draws ------------------------------


@pytest.mark.parametrize("caption", ["all", "random"])
def test_the_removed_share_is_that_of_a_trainings_first_paired_steps(features, caption):
    thresholds = {"image_threshold": 0.9, "teacher_text_threshold": 0.9}
    params = KDMCSE(image="clip", text="clip", caption=caption, data_seed=4, **thresholds)
    spec = Case(features, "kdmcse", params.model_dump()).spec().model_copy(update={"seed": 7})
    data = TrainingData(spec, params)
    steps = [params.statistics(batch) for batch in first_paired(data, 400, 30)]
    told = {"batch_size": 6, "batches": 30, "caption": caption, "data_seed": 4, "seed": 7}
    root = features.world.root
    manifests = (root / "captions.parquet", root / "images.parquet")
    sets = list(spec.features.values())
    configured = {"image": 0.9, "teacher_text": 0.9}
    diagnosis = diagnose(sets, *manifests, DiagnosisSettings(**told, configured=configured))
    assert len(diagnosis["filters"]) == 2
    for tried in diagnosis["filters"]:
        (share,) = [each["share"] for each in tried["removals"] if each["configured"]]
        of_steps = [float(step[f"removed_{tried['term']}"]) for step in steps]
        assert len(of_steps) == 30
        assert share == pytest.approx(np.mean(of_steps), abs=1e-7)
        assert 0 < share < 1


def test_the_micro_batches_of_an_epoch_are_what_it_iterates_over(world):
    data = load(world)
    assert [batch.k for batch in data] == list(range(len(data)))
