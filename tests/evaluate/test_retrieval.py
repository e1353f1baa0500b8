"""The task of retrieval against plain rankings, on data sets and features made on the fly."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted_world import Folder, World, cosines, make_world, plain_recalls
from torch import nn

from sightline.cache import CacheError, key_of_text
from sightline.errors import SightlineError
from train.evaluate.evaluation import Evaluation
from train.evaluate.retrieval import CHANCE, METRICS, chance, evaluate_retrieval
from train.objectives.objective import FeatureNeed


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(tmp_path)


def scores(world: World, **settings: Any) -> Any:
    return world.folder.task(**settings).score(world.model)["retrieval"]  # pyright: ignore[reportArgumentType]


def test_scores_equal_plain_rankings_in_the_space_of_the_heads(world):
    found, expected = scores(world), world.expected()
    assert found.scores == pytest.approx(expected)
    assert tuple(found.scores) == METRICS
    assert found.notes == ()
    values = list(expected.values())
    assert len(set(values)) == 6  # neither perfect nor random, so the comparison means something
    assert 5 < min(values) < max(values) < 100
    assert scores(world, captions=2).scores == pytest.approx(world.expected(captions=2))


def test_folds_are_consecutive_images_and_scores_their_mean(world):
    names = world.folder.tested
    parts = [names[:8], names[8:16], names[16:]]  # 23 images in three folds
    each = [world.expected(images=part) for part in parts]
    expected = {metric: np.mean([part[metric] for part in each]) for metric in METRICS}
    found = scores(world, folds=3)
    assert found.scores == pytest.approx(expected)
    assert found.scores["T2I R@1"] > scores(world).scores["T2I R@1"]
    assert found.references[CHANCE]["T2I R@1"] == pytest.approx(
        np.mean([100 / 8, 100 / 8, 100 / 7])
    )


def test_a_perfect_space_recalls_everything_and_a_constant_one_nothing():
    images, image_of = np.eye(6), np.repeat(np.arange(6), 2)
    perfect = evaluate_retrieval(images, images[image_of], image_of, ks=(1,))
    assert set(perfect.values()) == {100.0}
    constant = evaluate_retrieval(np.ones((6, 3)), np.ones((12, 3)), image_of, ks=(1,))
    assert set(constant.values()) == {0.0}


@pytest.mark.parametrize(
    ("images", "image_of", "message"),
    [
        (np.eye(3), [0, 1], "every image to have a caption"),
        (np.eye(3)[:2], [0, 1, 1], "every one of 2 captions"),
        (np.eye(2), [0, 1], "in one space"),
        (np.array([[0.0, 0, 0], [1, 1, 1]]), [0, 1], r"zero or not finite \(image 0"),
    ],
)
def test_retrieval_refuses_mismatched_inputs(images, image_of, message):
    with pytest.raises(SightlineError, match=message):
        evaluate_retrieval(images, np.ones((2, 3)), np.array(image_of))


@pytest.mark.parametrize("image_of", [[0, 0, 0, 1, 1, 2], [0, 1, 2, 3], [0, 1, 1, 1, 1]])
def test_chance_is_the_share_of_all_orders_that_find_a_match(image_of):
    images, captions = max(image_of) + 1, len(image_of)
    found = chance(np.array(image_of), ks=(1, 2, 10))
    for k in (1, 2, 10):
        orders = list(itertools.permutations(range(captions)))
        hits = [
            np.mean([any(image_of[c] == i for c in order[:k]) for order in orders])
            for i in range(images)
        ]
        assert found[f"I2T R@{k}"] == pytest.approx(100 * np.mean(hits))
        assert found[f"T2I R@{k}"] == pytest.approx(100 * min(k, images) / images)


def test_images_without_features_are_left_out_and_counted(tmp_path):
    world = make_world(tmp_path, failed=("03", "11"))
    found = scores(world)
    kept = [name for name in world.folder.tested if name not in ("03", "11")]
    assert found.scores == pytest.approx(world.expected(images=kept))
    (note,) = found.notes
    assert "leaves out 2 of 23 images" in note
    assert "image/cnn has only an error for them" in note
    assert found.references[CHANCE]["T2I R@10"] == pytest.approx(100 * 10 / 21)
    all_of_a_fold = make_world(tmp_path / "fold", failed=tuple(f"{i:02d}" for i in range(8)))
    found = scores(all_of_a_fold, folds=3)
    assert found.scores == dict.fromkeys(METRICS)
    assert found.reasons["I2T R@1"] == "no image of a fold has features"
    assert set(found.references) == {CHANCE}


def test_features_and_splits_that_are_missing_or_other_are_an_error(world, tmp_path):
    world.model.needs[1] = FeatureNeed("image", "vit", head="of-pixels")
    needed = r"(?s)features/image/vit.*planted needs it: `sightline stage image-features data vit`"
    with pytest.raises(SightlineError, match=needed):
        scores(world)
    world.model.needs[1] = FeatureNeed("image", "cnn", head="of-pixels")
    world.model.fingerprint = "f" * 64
    with pytest.raises(SightlineError, match=r"expected ffffffffffffffff: .*different weights"):
        scores(world)
    few = {Folder.key(name): row for name, row in list(world.pixels.items())[:20]}
    other = Folder(tmp_path / "few", world.folder.images)
    world.model.fingerprint = other.write("image", "cnn", few)
    with pytest.raises(CacheError, match="3 of 23"):
        other.task().score(world.model)  # pyright: ignore[reportArgumentType]
    with pytest.raises(SightlineError, match=r"split 'dev'; found 'test' \(\d+\), 'train' \(1\)"):
        world.folder.task(split="dev")
    with pytest.raises(SightlineError, match=r"folds is 24, but the split 'test' .* 23 images"):
        world.folder.task(folds=24)


def test_what_is_left_out_of_a_split_is_a_warning(tmp_path):
    images = {"a": ["one", "two", "three"], "b": ["four"], "c": ["five"]}
    folder = Folder(tmp_path, images, same_bytes={"c": "b"}, uncaptioned=("d", "e"))
    surplus, twins, uncaptioned = sorted(folder.task(captions=2).warnings)
    assert "1 captions beyond the first" in surplus
    assert "1 images have the same bytes" in twins
    assert "2 images without captions are left out" in uncaptioned
    assert folder.task("neighbours").warnings == [twins]


def test_a_model_without_one_space_for_images_has_no_scores_but_the_references(world):
    world.model.no_heads = "it is not a training run of Sightline"
    task = world.folder.task().tasks["retrieval"]
    found = Evaluation({"a/b": task}).score(world.model)["a/b"]  # a task may be called anything
    metrics = [f"a/b: {name}" for name in METRICS]
    assert found.scores == dict.fromkeys(metrics)
    assert found.reasons == dict.fromkeys(metrics, "it is not a training run of Sightline")
    assert set(found.references) == {CHANCE}
    world.model.no_heads = ""
    world.model.needs[0] = FeatureNeed("image", "vit", head="of-words")
    choose = "it has heads for images of vit, cnn; choose one with `encoder`"
    assert scores(world).reasons["I2T R@1"] == choose
    assert scores(world, encoder="cnn").scores == pytest.approx(world.expected())
    other = scores(world, encoder="clip")
    assert other.reasons["I2T R@1"] == "it has heads for images of vit, cnn, not of clip"
    world.model.needs = [FeatureNeed("text", "cnn", head="of-words")]
    said = "its objective, foreign, projects no image features; runs that learned from images"
    assert scores(world).reasons["T2I R@5"].startswith(said)


def test_embeddings_that_cannot_be_ranked_have_no_score(world):
    nn.init.zeros_(world.model.sentence_head.weight)  # pyright: ignore[reportArgumentType]
    nn.init.zeros_(world.model.sentence_head.bias)  # pyright: ignore[reportArgumentType]
    found = scores(world)
    assert found.scores == dict.fromkeys(METRICS)
    assert "embeddings are zero or not finite (caption 0" in found.reasons["I2T R@1"]


def test_the_frozen_encoder_is_scored_on_its_own_features(world):
    folder, names = world.folder, world.folder.tested
    rng = np.random.default_rng(8)
    image_rows = {name: rng.normal(size=7) for name in names}
    text_rows = {
        text: image_rows[name] + 2 * rng.normal(size=7)
        for name in names
        for text in folder.images[name]
    }
    by_key = {Folder.key(name): row for name, row in image_rows.items()}
    texts_by_key = {key_of_text(text): row for text, row in text_rows.items()}
    folder.write("image", "clip", by_key, failed=("05",))
    folder.write("text", "clip", texts_by_key)
    found = scores(world, frozen="clip")
    kept = [name for name in names if name != "05"]
    pairs = [(i, t) for i, name in enumerate(kept) for t in folder.images[name][:5]]
    one = np.array([image_rows[name] for name in kept])
    two = np.array([text_rows[text] for _, text in pairs])
    expected = plain_recalls(cosines(one, two), [i for i, _ in pairs])
    assert found.references["clip (frozen)"] == pytest.approx(expected)
    assert list(found.references) == ["clip (frozen)", CHANCE]
    (note,) = found.notes
    assert "leaves out 1 of 23 images" in note
    assert "image/clip" in note
    assert found.scores == pytest.approx(world.expected())
    folder.write("text", "cnn", texts_by_key)
    folder.write("image", "one", by_key)
    folder.write("text", "one", texts_by_key, weights="2")
    for frozen, message in (
        ("cnn", r"6 wide.*7 wide.*do not come from one model"),
        ("one", "do not come from one model"),
        ("resnet", "`sightline stage image-features data resnet`"),
    ):
        with pytest.raises(SightlineError, match=message):
            scores(world, frozen=frozen)


def test_what_is_measured_is_identified_by_captions_images_and_their_pairs(tmp_path):
    base = {"a": ["one", "two"], "b": ["three"]}
    changed = [
        Folder(tmp_path / "caption", {"a": ["one", "two"], "b": ["four"]}),
        Folder(tmp_path / "image", base, same_bytes={"a": "c"}),
        Folder(tmp_path / "pairs", {"a": ["one"], "b": ["two", "three"]}),
    ]
    same = Folder(tmp_path / "more", {**base, "c!": ["a training caption"]})
    first = Folder(tmp_path / "base", base).task().evaluated_on["I2T R@1"]
    assert first.examples == 3
    assert same.task().evaluated_on["I2T R@1"] == first
    digests = {each.task().evaluated_on["I2T R@1"].sha256 for each in changed}
    assert len(digests | {first.sha256}) == 4
