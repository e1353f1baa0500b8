"""Every loss has the value of the paper's equation, on ordinary and on adversarial batches."""

import itertools
import math

import loss_oracles as oracles
import numpy as np
import pytest
import torch
from loss_batches import SHAPES, exact, owners_of, pair, soft_labels, tensors

from train.losses import (
    adaptive_margin_nce,
    consistency_loss,
    cross_modal_alignment,
    info_nce,
    kl_alignment,
    list_mle,
    object_phrase_nce,
    removed_share,
)

PRECISIONS = {"float64": (torch.float64, 1e-6), "float32": (torch.float32, 1e-4)}
every_shape = pytest.mark.parametrize("shape", SHAPES)
every_precision = pytest.mark.parametrize("precision", PRECISIONS)


def assert_value(found, expected, precision):
    dtype, tolerance = PRECISIONS[precision]
    assert found.dtype == dtype
    assert found.shape == ()
    expected = float(expected)
    error = abs(float(found) - expected)
    assert error <= tolerance * max(abs(expected), 1e-3), (float(found), expected, error)


@every_precision
@every_shape
@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_info_nce(shape, precision, temperature):
    queries, keys = pair(shape)
    found = info_nce(*tensors(PRECISIONS[precision][0], queries, keys), temperature)
    assert_value(found, oracles.info_nce(queries, keys, temperature), precision)


MARGINS = {
    "paper": {"margin": 0.125},
    "paper, filtered": {"margin": 0.125, "threshold": 0.4},
    "everything filtered": {"margin": 0.125, "threshold": -2.0},
    "released": {"margin": 0.15, "margin_gate": True},
    "margin beyond the angle": {"margin": 1.5, "threshold": 0.9},
    "no margin": {"margin": 0.0},
}


@every_precision
@every_shape
@pytest.mark.parametrize("setting", MARGINS)
def test_adaptive_margin(shape, precision, setting):
    queries, keys = pair(shape, seed=1)
    labels = soft_labels(len(queries))
    arguments = {"temperature": 0.05, **MARGINS[setting]}
    given = tensors(PRECISIONS[precision][0], queries, keys, labels)
    found = adaptive_margin_nce(*given, **arguments)
    assert_value(found, oracles.adaptive_margin_nce(queries, keys, labels, **arguments), precision)
    if setting == "everything filtered":
        assert float(found) == 0.0


@every_precision
@pytest.mark.parametrize("threshold", [0.0, 0.3, 9.0])
def test_adaptive_margin_with_separate_filter_scores(precision, threshold):
    queries, keys = pair("random", seed=2)
    labels, scores = soft_labels(len(queries)), 3 * soft_labels(len(queries), seed=1)
    dtype = PRECISIONS[precision][0]
    queries_, keys_, labels_, scores_ = tensors(dtype, queries, keys, labels, scores)
    found = adaptive_margin_nce(
        queries_, keys_, labels_, threshold=threshold, filter_scores=scores_
    )
    expected = oracles.adaptive_margin_nce(
        queries, keys, labels, 0.125, 0.05, threshold, filter_scores=scores
    )
    assert_value(found, expected, precision)
    share = float(removed_share(scores_, threshold))
    assert share == pytest.approx(oracles.removed_share(scores, threshold))


def test_threshold_removes_scores_that_equal_it_and_never_the_positive():
    scores = torch.full((3, 3), 0.5, dtype=torch.float64)
    assert float(removed_share(scores, 0.5)) == 1.0
    assert float(removed_share(scores, 0.5000001)) == 0.0
    assert float(removed_share(scores, None)) == 0.0
    assert float(removed_share(scores[:1, :1], 0.1)) == 0.0


@every_precision
@every_shape
@pytest.mark.parametrize("margin", [0.2, -1.0])
def test_consistency(shape, precision, margin):
    text, image = pair(shape)
    mismatched = np.roll(image, 1, axis=0)
    given = tensors(PRECISIONS[precision][0], text, image, mismatched)
    expected = oracles.consistency_loss(text, image, mismatched, margin)
    assert_value(consistency_loss(*given, margin), expected, precision)


@every_precision
@pytest.mark.parametrize("temperatures", [(1.0, 1.0), (0.5, 0.45), (0.5, 0.0225)])
@every_shape
def test_kl_alignment(shape, precision, temperatures):
    queries, keys = pair(shape)
    student, target = exact(oracles.cosines(queries, keys)), exact(oracles.cosines(keys, keys))
    given = tensors(PRECISIONS[precision][0], target, student)
    expected = oracles.kl_alignment(target, student, *temperatures)
    assert_value(kl_alignment(*given, *temperatures), expected, precision)


@every_precision
@pytest.mark.parametrize("distance", [0.0, 1e-4, 1e-3])
def test_kl_of_nearly_equal_distributions_is_not_lost_in_rounding(precision, distance):
    """Two rounded logarithms differ by 1e-7 where the divergence itself is 1e-9."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        target = exact(rng.uniform(-1, 1, (1, 64)))
        student = exact(target + distance * rng.uniform(-1, 1, (1, 64)) + 0.5)
        found = kl_alignment(*tensors(PRECISIONS[precision][0], target, student), 0.5, 0.5)
        assert_value(found, oracles.kl_alignment(target, student, 0.5, 0.5), precision)


@every_precision
@pytest.mark.parametrize("temperatures", [(1.0, 1.0), (0.5, 0.45), (0.5, 0.0225)])
@every_shape
def test_cross_modal_alignment(shape, precision, temperatures):
    text, image = pair(shape, seed=3)
    teacher_text, teacher_image = pair(shape, seed=4)
    teacher_image = teacher_image[:, :5]  # an encoder's width is its own
    given = tensors(PRECISIONS[precision][0], text, image, teacher_text, teacher_image)
    expected = oracles.cross_modal_alignment(
        text, image, teacher_text, teacher_image, *temperatures
    )
    assert_value(cross_modal_alignment(*given, *temperatures), expected, precision)


@every_precision
@pytest.mark.parametrize("scale", [1e-4, 1.0, 20.0, 300.0])
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (6, 6), (3, 40), (2, 1)])
def test_list_mle(shape, precision, scale):
    rng = np.random.default_rng(5)
    student, teacher = exact(scale * rng.uniform(-1, 1, shape)), exact(rng.uniform(-1, 1, shape))
    found = list_mle(*tensors(PRECISIONS[precision][0], student, teacher))
    assert_value(found, oracles.list_mle(student, teacher), precision)


@every_precision
@every_shape
def test_list_mle_of_cosines(shape, precision):
    queries, keys = pair(shape)
    student = exact(np.array(oracles.cosines(queries, keys)) / 0.05)
    teacher = exact(np.random.default_rng(6).uniform(-1, 1, student.shape))
    found = list_mle(*tensors(PRECISIONS[precision][0], student, teacher))
    assert_value(found, oracles.list_mle(student, teacher), precision)


@every_precision
@pytest.mark.parametrize("gap", [1.0, 5.0, 10.0, 25.0, 40.0])
def test_list_mle_keeps_its_digits_when_the_order_is_right(precision, gap):
    teacher = np.arange(5.0)[None]
    student = gap * teacher - 2 * gap
    found = list_mle(*tensors(PRECISIONS[precision][0], student, teacher))
    assert_value(found, oracles.list_mle(student, teacher), precision)


@pytest.mark.parametrize("gap", [19.0, 21.0, 25.0, 30.0])
def test_list_mle_keeps_its_digits_when_the_order_is_wrong(gap):
    student = torch.tensor([[0.0, gap]], dtype=torch.float64, requires_grad=True)
    found = list_mle(student, torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    assert float(found) == pytest.approx(gap + math.log1p(math.exp(-gap)), rel=0, abs=1e-14)
    (gradient,) = torch.autograd.grad(found, student)
    assert float(gradient[0, 1]) == pytest.approx(1 / (1 + math.exp(-gap)), rel=0, abs=1e-14)


@every_precision
def test_list_mle_of_equal_scores_is_the_logarithm_of_the_number_of_orders(precision):
    scores = torch.full((3, 6), 20.0, dtype=PRECISIONS[precision][0])
    assert_value(list_mle(scores, scores), math.log(math.factorial(6)), precision)


def test_ties_are_broken_at_random_within_the_tie_and_reproducibly():
    student = torch.tensor([[0.3, -1.0, 2.0, 0.9, 0.1]], dtype=torch.float64)
    teacher = torch.tensor([[0.5, 0.9, 0.5, 0.5, 0.1]], dtype=torch.float64)
    allowed = [
        float(oracles.list_mle_of_order(student[0].tolist(), [1, *tied, 4]))
        for tied in itertools.permutations([0, 2, 3])
    ]

    def value(seed):
        return float(list_mle(student, teacher, torch.Generator().manual_seed(seed)))

    drawn = [value(seed) for seed in range(300)]
    counts = [sum(abs(x - y) < 1e-9 for x in drawn) for y in allowed]
    assert sum(counts) == 300
    assert min(counts) > 25, counts  # 50 expected of each of the six orders
    assert drawn == [value(seed) for seed in range(300)]
    assert list_mle(student, teacher) == value(0) == list_mle(student, teacher)


def test_ties_of_two_rows_are_broken_independently():
    student = torch.arange(6.0, dtype=torch.float64).repeat(8, 1)
    rows = [float(list_mle(student[:1], student[:1] * 0)) for _ in range(2)]
    assert rows[0] == rows[1]
    together = float(list_mle(student, student * 0))
    assert together != pytest.approx(rows[0])


@every_precision
@every_shape
@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_object_phrase(shape, precision, temperature):
    phrases, objects = pair(shape)
    owners = owners_of(len(phrases))
    given = tensors(PRECISIONS[precision][0], phrases, objects)
    found = object_phrase_nce(*given, torch.tensor(owners), temperature)
    expected = oracles.object_phrase_nce(phrases, objects, owners, temperature)
    assert_value(found, expected, precision)


def test_defaults_are_the_papers():
    queries, keys = pair("random")
    labels, others = soft_labels(len(queries)), np.roll(keys, 1, axis=0)
    owners = owners_of(len(queries))
    q, k, alpha, wrong = tensors(torch.float64, queries, keys, labels, others)
    for found, expected in [
        (info_nce(q, k), oracles.info_nce(queries, keys, 0.05)),
        (
            adaptive_margin_nce(q, k, alpha),
            oracles.adaptive_margin_nce(queries, keys, labels, 0.125, 0.05),
        ),
        (consistency_loss(q, k, wrong), oracles.consistency_loss(queries, keys, others, 0.2)),
        (
            object_phrase_nce(q, k, torch.tensor(owners)),
            oracles.object_phrase_nce(queries, keys, owners, 0.05),
        ),
    ]:
        assert_value(found, expected, "float64")


@pytest.mark.parametrize("owners", [[], [3], [0, 1, 2, 7]])
def test_object_phrase_without_a_caption_of_two_pairs_is_zero_with_a_graph(owners):
    phrases = torch.randn(len(owners), 4, requires_grad=True)
    objects = torch.randn(len(owners), 4, requires_grad=True)
    value = object_phrase_nce(phrases, objects, torch.tensor(owners, dtype=torch.int64))
    assert value == 0.0
    value.backward()
    for tensor in (phrases, objects):
        assert tensor.grad is not None
        assert not tensor.grad.any()
