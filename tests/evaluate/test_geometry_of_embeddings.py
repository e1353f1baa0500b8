"""Geometry of embeddings against its definitions: neighbours, alignment, uniformity."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from sightline.errors import SightlineError
from train.evaluate import geometry, ranking
from train.evaluate.similarity import GradedPairs

RANDOM = np.random.default_rng(5)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def plain_neighbours(query, candidates, k, skip=None):
    """Rows by descending cosine, the earlier of two equal ones first."""
    cosines = [round(float(one), 9) for one in unit(candidates) @ unit(query[None])[0]]
    rows = sorted((i for i in range(len(candidates)) if i != skip), key=lambda i: (-cosines[i], i))
    return rows[:k], [cosines[i] for i in rows[:k]]


@pytest.mark.parametrize("k", [1, 3, 40])
def test_neighbours_are_those_of_plain_loops_whatever_the_chunks(monkeypatch, k):
    queries = RANDOM.standard_normal((7, 5))
    candidates = np.concatenate([RANDOM.standard_normal((20, 5)), 3 * queries[:2]])
    left_out = {0: 20, 3: 4}
    for held, chunk in ((1 << 23, 4096), (60, 3)):
        monkeypatch.setattr(ranking, "_HELD", held)
        monkeypatch.setattr(ranking, "_CHUNK", chunk)
        found = ranking.nearest(queries, candidates, k, left_out)
        assert not found.constant
        for i, query in enumerate(queries):
            rows, cosines = plain_neighbours(query, candidates, k, left_out.get(i))
            assert found.rows[i].tolist() == rows
            assert found.cosines[i] == pytest.approx(cosines, abs=1e-12)


def test_equal_cosines_keep_the_order_of_the_candidates():
    one, two = np.array([[1.0, 2.0, 3.0]]), np.array([[-1.0, 1.0, 0.5]])
    candidates = np.concatenate([two, one * 7, one / 3, two * 2, one]).astype(np.float32)
    assert ranking.nearest(one, candidates, 5).rows[0].tolist() == [1, 2, 4, 0, 3]
    constant = ranking.nearest(np.ones((2, 3)), np.full((4, 3), 0.2), 3)
    assert constant.constant
    assert constant.rows[1].tolist() == [0, 1, 2]
    assert not ranking.nearest(one, two, 3).constant  # one candidate is no tie
    with pytest.raises(SightlineError, match="nothing to find neighbours among"):
        ranking.nearest(one, np.ones((0, 3)), 2)


def plain_uniformity(rows):
    rows = unit(rows)
    pairs = list(itertools.combinations(range(len(rows)), 2))
    kernel = [math.exp(-2 * ((rows[i] - rows[j]) ** 2).sum()) for i, j in pairs]
    return math.log(sum(kernel) / len(kernel))


def test_uniformity_is_over_the_whole_set_whatever_the_chunks(monkeypatch):
    rows = RANDOM.standard_normal((24, 5)) * 3
    expected = plain_uniformity(rows)
    for chunk in (1, 23, 24, 1024):
        monkeypatch.setattr(geometry, "_CHUNK", chunk)
        assert geometry.uniformity(rows) == pytest.approx(expected, abs=1e-12)


def graded(*rows):
    first, second, gold = zip(*rows, strict=True)
    return GradedPairs("toy", first, second, np.array(gold))


def planted(points):
    """An encoder that looks the texts up."""
    return lambda texts: np.array([points[text] for text in texts])


def test_geometry_takes_pairs_above_four_and_each_sentence_once():
    points = {"a": [1.0, 0.0], "b": [0.0, 1.0], "c": [1.0, 1.0]}
    pairs = graded(("a", "b", 4.0), ("a", "c", 4.01), ("a", "b", 1.0))
    scores = geometry.evaluate_geometry(planted(points), pairs).scores
    assert scores["alignment"] == pytest.approx(2 - math.sqrt(2))  # a and c alone
    assert scores["uniformity"] == pytest.approx(plain_uniformity(np.array(list(points.values()))))


def test_the_released_evaluation_takes_means_of_batches_in_order_of_length(monkeypatch):
    monkeypatch.setattr(geometry, "_RELEASED_BATCH", 2)
    texts = ["a b c", "a", "b b", "c c", "d", "e e e e", "f f"]
    points = {text: RANDOM.standard_normal(3) for text in texts}
    # by words of the first, then of the second sentence
    batches = [
        [("d", "a", 4.5), ("d", "e e e e", 1.0)],
        [("f f", "a", 2.0), ("b b", "c c", 4.0)],
        [("a b c", "a", 5.0)],
    ]
    close, spread = [], []
    for batch in batches:
        first, second = (unit(np.array([points[p[side]] for p in batch])) for side in (0, 1))
        positive = np.array([pair[2] >= 4 for pair in batch])
        close.append(((first - second) ** 2).sum(1)[positive].mean())
        spread.append(plain_uniformity(np.concatenate([first, second])))
    unordered = [row for batch in reversed(batches) for row in reversed(batch)]
    scores = geometry.evaluate_geometry(planted(points), graded(*unordered)).scores
    assert scores["alignment_released"] == pytest.approx(np.mean(close))
    assert scores["uniformity_released"] == pytest.approx(np.mean(spread))
    assert scores["alignment"] != pytest.approx(scores["alignment_released"])


def test_what_is_not_defined_has_a_reason_and_a_released_batch_without_pairs_counts_as_nothing(
    monkeypatch,
):
    monkeypatch.setattr(geometry, "_RELEASED_BATCH", 1)
    pairs = graded(("a", "c", 4.0), ("b b", "a", 1.0))
    low = geometry.evaluate_geometry(planted({"a": [1.0, 0], "b b": [1, 1], "c": [0, 1.0]}), pairs)
    assert low.scores["alignment"] is None
    assert low.reasons == {"alignment": "no pair has a gold score above 4"}
    assert low.scores["alignment_released"] == pytest.approx((2 + 0) / 2)
    zero = geometry.evaluate_geometry(lambda texts: np.zeros((len(texts), 2)), pairs)
    assert zero.scores == dict.fromkeys(geometry.GEOMETRY)
    assert all("3 of 3 embeddings are zero" in zero.reasons[name] for name in geometry.GEOMETRY)
