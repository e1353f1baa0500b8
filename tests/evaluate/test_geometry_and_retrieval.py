"""Alignment, uniformity and recall against their definitions, written as plain loops."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from sightline.errors import SightlineError
from train.evaluate import geometry
from train.evaluate.geometry import alignment, evaluate_geometry, uniformity
from train.evaluate.retrieval import evaluate_retrieval
from train.evaluate.similarity import GradedPairs

RANDOM = np.random.default_rng(7)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def plain_uniformity(rows):
    rows = unit(rows)
    pairs = list(itertools.combinations(range(len(rows)), 2))
    kernel = [math.exp(-2 * ((rows[i] - rows[j]) ** 2).sum()) for i, j in pairs]
    return math.log(sum(kernel) / len(kernel))


def test_uniformity_is_over_the_whole_set_whatever_the_chunks(monkeypatch):
    rows = RANDOM.standard_normal((23, 5)) * 3
    expected = plain_uniformity(rows)
    assert uniformity(rows) == pytest.approx(expected, abs=1e-12)
    for chunk in (1, 4, 22, 23):
        monkeypatch.setattr(geometry, "_CHUNK", chunk)
        assert uniformity(rows) == pytest.approx(expected, abs=1e-12)


def test_uniformity_is_not_the_mean_over_batches():
    rows = RANDOM.standard_normal((24, 3))
    batches = np.mean([uniformity(part) for part in np.split(rows, 6)])
    assert abs(uniformity(rows) - batches) > 1e-3


def test_alignment_ignores_the_norms():
    one, two = RANDOM.standard_normal((6, 4)), RANDOM.standard_normal((6, 4))
    expected = ((unit(one) - unit(two)) ** 2).sum(1).mean()
    assert alignment(one * 9, two) == pytest.approx(expected)
    assert alignment(one, 2 * one) == pytest.approx(0, abs=1e-12)


def test_geometry_takes_pairs_above_four_and_each_sentence_once():
    points = {"a": [1.0, 0.0], "b": [0.0, 1.0], "c": [1.0, 1.0]}
    pairs = GradedPairs("toy", ("a", "a", "a"), ("b", "c", "b"), np.array([4.0, 4.01, 1.0]))
    result = evaluate_geometry(lambda texts: np.array([points[t] for t in texts]), pairs)
    assert (result.positive_pairs, result.sentences) == (1, 3)
    assert result.alignment == pytest.approx(2 - math.sqrt(2))  # a and c alone
    assert result.uniformity == pytest.approx(plain_uniformity(np.array(list(points.values()))))


def test_the_released_evaluation_takes_means_of_batches_in_order_of_length(monkeypatch):
    monkeypatch.setattr(geometry, "_RELEASED_BATCH", 3)
    texts = ["a b c", "a", "b b", "c c", "d", "e e e e", "f f"]
    points = {text: RANDOM.standard_normal(3) for text in texts}
    graded = [
        ("a b c", "a", 5.0),
        ("b b", "c c", 4.0),
        ("d", "e e e e", 1.0),
        ("d", "a", 4.5),
        ("f f", "a", 2.0),
    ]
    # by words of the first, then of the second sentence: d a, d e, f a | b c, a-b-c a
    batches = [[graded[3], graded[2], graded[4]], [graded[1], graded[0]]]
    close, spread = [], []
    for batch in batches:
        first, second = (unit(np.array([points[p[side]] for p in batch])) for side in (0, 1))
        positive = np.array([pair[2] >= 4 for pair in batch])
        close.append(((first - second) ** 2).sum(1)[positive].mean())
        spread.append(plain_uniformity(np.concatenate([first, second])))
    pairs = GradedPairs(
        "toy",
        tuple(pair[0] for pair in graded),
        tuple(pair[1] for pair in graded),
        np.array([pair[2] for pair in graded]),
    )
    result = evaluate_geometry(lambda some: np.array([points[text] for text in some]), pairs)
    assert result.alignment_released == pytest.approx(np.mean(close))
    assert result.uniformity_released == pytest.approx(np.mean(spread))
    assert result.alignment != pytest.approx(result.alignment_released)


def test_a_batch_without_a_positive_pair_counts_as_nothing(monkeypatch):
    monkeypatch.setattr(geometry, "_RELEASED_BATCH", 1)
    pairs = GradedPairs("toy", ("a", "b b"), ("c", "d d"), np.array([4.0, 1.0]))
    points = {"a": [1.0, 0.0], "c": [0.0, 1.0], "b b": [1.0, 1.0], "d d": [0.0, 1.0]}
    result = evaluate_geometry(lambda some: np.array([points[text] for text in some]), pairs)
    assert result.alignment_released == pytest.approx((2 + 0) / 2)
    assert result.alignment is None


def test_an_undefined_value_is_none_with_a_reason():
    pairs = GradedPairs("low", ("a", "b"), ("b", "c"), np.array([1.0, 2.0]))
    low = evaluate_geometry(lambda texts: np.eye(len(texts)), pairs)
    assert low.alignment is None
    assert low.uniformity == pytest.approx(-4.0)
    assert low.reasons == ("no pair has a gold score above 4",)
    zero = evaluate_geometry(lambda texts: np.zeros((len(texts), 2)), pairs)
    assert (zero.alignment, zero.uniformity) == (None, None)
    assert "3 of 3 embeddings are zero" in zero.reasons[0]


def test_recall_equals_a_plain_ranking():
    images, captions = RANDOM.standard_normal((7, 4)), RANDOM.standard_normal((14, 4))
    image_of = np.arange(14) % 7
    result = evaluate_retrieval(images, captions, image_of, ks=(1, 3))
    similarity = unit(captions) @ unit(images).T
    for k in (1, 3):
        text = [image_of[c] in np.argsort(-similarity[c])[:k] for c in range(14)]
        image = [i in image_of[np.argsort(-similarity[:, i])[:k]] for i in range(7)]
        assert result[f"T2I R@{k}"] == pytest.approx(100 * np.mean(text))
        assert result[f"I2T R@{k}"] == pytest.approx(100 * np.mean(image))


def test_a_perfect_space_recalls_everything_and_a_constant_one_nothing():
    images = np.eye(6)
    image_of = np.repeat(np.arange(6), 2)
    perfect = evaluate_retrieval(images, images[image_of], image_of, ks=(1,))
    assert set(perfect.values()) == {100.0}
    constant = evaluate_retrieval(np.ones((6, 3)), np.ones((12, 3)), image_of, ks=(1,))
    assert set(constant.values()) == {0.0}


@pytest.mark.parametrize(
    ("images", "image_of", "message"),
    [
        (np.eye(3), np.array([0, 1]), "every image to have a caption"),
        (np.eye(3)[:2], np.array([0, 1, 1]), "every one of 2 captions"),
        (np.eye(2), np.array([0, 1]), "in one space"),
        (
            np.array([[0.0, 0, 0], [1, 1, 1]]),
            np.array([0, 1]),
            r"embeddings are zero or not finite \(image 0",
        ),
    ],
)
def test_retrieval_refuses_mismatched_inputs(images, image_of, message):
    captions = np.ones((2, 3))
    with pytest.raises(SightlineError, match=message):
        evaluate_retrieval(images, captions, image_of)
