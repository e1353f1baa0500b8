"""Every loss is the paper's equation, has its gradient, and is computed in float32 or better."""

import itertools
import math
from types import SimpleNamespace

import loss_oracles as oracles
import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from train import losses
from train.losses import (
    adaptive_margin_nce,
    consistency_loss,
    image_term,
    info_nce,
    kl_alignment,
    list_mle,
    object_phrase_nce,
    removed_share,
)
from train.objectives.dalr import derangement

# ---- batches and losses -------------------------------------------------------------------------


def first(rows):
    return rows[:1].expand_as(rows)


def of_norm(norm, rows):
    return norm * rows / rows.norm(dim=1, keepdim=True)


SHAPES = {
    # number of rows, and the queries and keys that are made of so many random rows each
    "random": (7, lambda q, k: (q, k)),
    "one row": (1, lambda q, k: (q, k)),
    "two rows": (2, lambda q, k: (q, k)),
    "identical rows": (5, lambda q, k: (first(q), first(q))),
    "opposite rows": (5, lambda q, k: (first(q), -1.7 * first(q))),
    "opposite pairs": (5, lambda q, k: (q, -q)),
    "nearly identical": (5, lambda q, k: (first(q) + 1e-3 * k, first(q) - 1e-3 * q)),
    "nearly opposite": (5, lambda q, k: (first(q) + 1e-3 * k, 1e-3 * q - first(q))),
    "matched": (6, lambda q, k: (q, q + 0.05 * k)),
    "positive is worst": (6, lambda q, k: (q, q.roll(1, dims=0) - q)),
    "norm 1e-4": (6, lambda q, k: (of_norm(1e-4, q), of_norm(1e-4, k))),
    "norm 1e4": (6, lambda q, k: (of_norm(1e4, q), of_norm(1e4, k))),
    "mixed norms": (6, lambda q, k: (10 ** (4 * q[:, :1].tanh()) * q, of_norm(1e-4, k))),
}


def batch_of(shape, dtype=torch.float64):
    """Rows [n, 8] and matrices [n, n] of numbers that float32 holds exactly, and owners [n].

    Some `labels` are above 1, as a teacher's rounded features make them.
    """
    (count, make), rng = SHAPES[shape], np.random.default_rng(0)
    rows, more = (torch.tensor(rng.normal(size=(2, count, 8))) for _ in range(2))
    queries, keys = make(*rows)
    cosines = [torch.tensor(oracles.cosines(rows, keys)) for rows in (queries, keys)]
    labels, filters, scores = torch.tensor(rng.uniform(-1, 1.1, (3, count, count)))
    numbers = {
        **{"queries": queries, "keys": keys, "others": make(*more)[1].roll(1, dims=0)},
        **{"cosines": cosines[0], "targets": cosines[1], "logits": cosines[0] / 0.05},
        **{"labels": labels, "filters": 3 * filters, "wide": 300 * scores, "narrow": 1e-4 * scores},
    }
    numbers = {name: values.float().to(dtype) for name, values in numbers.items()}
    # captions of 3, 1, 2, 0 and 1 pairs, some of them side by side
    owners = torch.tensor([0, 2, 2, 0, 1, 0, 4][:count])
    return SimpleNamespace(**numbers, owners=owners)


def changed(batch, **tensors):
    return SimpleNamespace(**{**vars(batch), **tensors})


def adaptive(of, b, margin=0.125, **options):
    return of.adaptive_margin_nce(b.queries, b.keys, b.labels, margin, 0.05, **options)


def kl(of, b, *temperatures):
    return of.kl_alignment(b.targets, b.cosines, *temperatures)


def cross_modal(of, b, *temperatures):
    """An encoder's width is its own."""
    rows = b.queries, b.keys, b.others, b.keys[:, :5]
    return of.cross_modal_alignment(*rows, *temperatures)


def objects(of, b, temperature):
    owners = b.owners.tolist() if of is oracles else b.owners
    return of.object_phrase_nce(b.queries, b.keys, owners, temperature)


LOSSES = {
    # the loss of a batch, by `of`: train.losses, or the oracles
    "info_nce": lambda of, b: of.info_nce(b.queries, b.keys, 0.05),
    "info_nce, warm": lambda of, b: of.info_nce(b.queries, b.keys, 1.0),
    "image_term": lambda of, b: of.image_term(b.queries, b.others, b.keys, 0.05),
    "adaptive": adaptive,
    "adaptive, filtered": lambda of, b: adaptive(of, b, threshold=0.4),
    "adaptive, all filtered": lambda of, b: adaptive(of, b, threshold=-2.0),
    "adaptive, released": lambda of, b: adaptive(of, b, 0.15, margin_gate=True),
    "adaptive, beyond the angle": lambda of, b: adaptive(of, b, 1.5, threshold=0.9),
    "adaptive, no margin": lambda of, b: adaptive(of, b, 0.0),
    "adaptive, other filter": lambda of, b: adaptive(of, b, threshold=0.3, filter_scores=b.filters),
    "consistency": lambda of, b: of.consistency_loss(b.queries, b.keys, b.others, 0.2),
    "consistency, all wrong": lambda of, b: of.consistency_loss(b.queries, b.keys, b.others, -1.0),
    "kl": lambda of, b: kl(of, b, 1.0, 1.0),
    "kl, one division": lambda of, b: kl(of, b, 0.5, 0.45),
    "kl, released": lambda of, b: kl(of, b, 0.5, 0.0225),
    "cross_modal": lambda of, b: cross_modal(of, b, 1.0, 1.0),
    "cross_modal, one division": lambda of, b: cross_modal(of, b, 0.5, 0.45),
    "cross_modal, released": lambda of, b: cross_modal(of, b, 0.5, 0.0225),
    "list_mle": lambda of, b: of.list_mle(b.logits, b.labels),
    "list_mle, wide": lambda of, b: of.list_mle(b.wide, b.labels),
    "list_mle, narrow": lambda of, b: of.list_mle(b.narrow[:, :3], b.labels[:, :3]),
    "objects": lambda of, b: objects(of, b, 0.05),
    "objects, warm": lambda of, b: objects(of, b, 1.0),
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
every_shape = pytest.mark.parametrize("shape", SHAPES)


def gradients(loss, batch):
    """Tensor of the batch → its gradient, of those that the loss depends on."""
    leaves = {
        name: tensor.detach().clone().requires_grad_()
        for name, tensor in vars(batch).items()
        if tensor.is_floating_point()
    }
    value = loss(losses, changed(batch, **leaves))
    found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    return {n: each for n, each in zip(leaves, found, strict=True) if each is not None}


def assert_finite(loss, batch):
    assert torch.isfinite(loss(losses, batch))
    assert all(torch.isfinite(each).all() for each in gradients(loss, batch).values())


# ---- values -------------------------------------------------------------------------------------

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}


def assert_value(found, expected, dtype):
    assert found.dtype == dtype
    assert found.shape == ()
    expected = float(expected)
    error = abs(float(found) - expected)
    assert error <= TOLERANCE[dtype] * max(abs(expected), 1e-3), (float(found), expected, error)


@every_loss
@every_shape
def test_value_is_that_of_the_equation_and_the_gradient_is_finite(loss, shape):
    expected = loss(oracles, batch_of(shape))
    for dtype in TOLERANCE:
        batch = batch_of(shape, dtype)
        assert_value(loss(losses, batch), expected, dtype)
        assert_finite(loss, batch)


def test_without_negatives_the_loss_is_exactly_zero():
    batch = batch_of("random")
    assert adaptive(losses, batch, threshold=-2.0) == 0.0
    assert info_nce(batch.queries[:1], batch.keys[:1]) == 0.0


def test_threshold_removes_scores_that_equal_it_and_never_the_positive():
    scores = torch.full((3, 3), 0.5, dtype=torch.float64)
    assert float(removed_share(scores, 0.5)) == 1.0
    assert float(removed_share(scores, 0.5000001)) == 0.0
    assert float(removed_share(scores, None)) == 0.0
    assert float(removed_share(scores[:1, :1], 0.1)) == 0.0
    filters = batch_of("random").filters
    share = oracles.removed_share(filters, 0.3)
    assert float(removed_share(filters, 0.3)) == pytest.approx(share)
    assert 0 < share < 1


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("distance", [0.0, 1e-4, 1e-3])
def test_kl_of_nearly_equal_distributions_is_not_lost_in_rounding(dtype, distance):
    """Two rounded logarithms differ by 1e-7 where the divergence itself is 1e-9."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        target = torch.tensor(rng.uniform(-1, 1, (1, 64))).float().double()
        noise = torch.tensor(rng.uniform(-1, 1, (1, 64)))
        student = (target + distance * noise + 0.5).float().double()
        found = kl_alignment(target.to(dtype), student.to(dtype), 0.5, 0.5)
        assert_value(found, oracles.kl_alignment(target, student, 0.5, 0.5), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("gap", [1.0, 5.0, 10.0, 25.0, 40.0])
def test_list_mle_keeps_its_digits_when_the_order_is_right(dtype, gap):
    teacher = torch.arange(5.0, dtype=dtype)[None]
    student = gap * teacher - 2 * gap
    assert_value(list_mle(student, teacher), oracles.list_mle(student, teacher), dtype)


@pytest.mark.parametrize("gap", [19.0, 21.0, 25.0, 30.0])
def test_list_mle_keeps_its_digits_when_the_order_is_wrong(gap):
    student = torch.tensor([[0.0, gap]], dtype=torch.float64, requires_grad=True)
    found = list_mle(student, torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    assert found.item() == pytest.approx(gap + math.log1p(math.exp(-gap)), rel=0, abs=1e-14)
    (gradient,) = torch.autograd.grad(found, student)
    assert float(gradient[0, 1]) == pytest.approx(1 / (1 + math.exp(-gap)), rel=0, abs=1e-14)


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
    assert list_mle(student, teacher) == value(0) == list_mle(student, teacher)
    # those of two rows independently
    rows = torch.arange(6.0, dtype=torch.float64).repeat(8, 1)
    assert float(list_mle(rows, rows * 0)) != pytest.approx(float(list_mle(rows[:1], rows[:1] * 0)))


def test_defaults_are_the_papers():
    b = batch_of("random")
    for found, expected in (
        (info_nce(b.queries, b.keys), LOSSES["info_nce"](oracles, b)),
        (image_term(b.queries, b.others, b.keys), LOSSES["image_term"](oracles, b)),
        (adaptive_margin_nce(b.queries, b.keys, b.labels), adaptive(oracles, b)),
        (consistency_loss(b.queries, b.keys, b.others), LOSSES["consistency"](oracles, b)),
        (object_phrase_nce(b.queries, b.keys, b.owners), objects(oracles, b, 0.05)),
    ):
        assert_value(found, expected, torch.float64)


@pytest.mark.parametrize("owners", [[], [3], [0, 1, 2, 7]])
def test_object_phrase_without_a_caption_of_two_pairs_is_zero_with_a_graph(owners):
    phrases = torch.randn(len(owners), 4, requires_grad=True)
    cutouts = torch.randn(len(owners), 4, requires_grad=True)
    value = object_phrase_nce(phrases, cutouts, torch.tensor(owners, dtype=torch.int64))
    assert value == 0.0
    value.backward()
    for tensor in (phrases, cutouts):
        assert tensor.grad is not None
        assert not tensor.grad.any()


# ---- gradients ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "inputs"),
    [
        ("info_nce", {"queries", "keys"}),
        ("image_term", {"queries", "keys", "others"}),
        ("adaptive", {"queries", "keys", "labels"}),
        ("consistency", {"queries", "keys", "others"}),
        ("kl", {"cosines", "targets"}),
        ("cross_modal", {"queries", "keys", "others"}),
        ("list_mle", {"logits"}),
        ("objects", {"queries", "keys"}),
    ],
)
def test_every_input_has_a_gradient_but_the_teachers_order(loss, inputs):
    assert gradients(LOSSES[loss], batch_of("random")).keys() == inputs


@every_loss
@pytest.mark.parametrize("shape", ["random", "two rows", "matched"])
def test_gradient_is_that_of_the_value(loss, shape):
    batch = batch_of(shape)
    names = list(gradients(loss, batch))
    leaves = [getattr(batch, name).requires_grad_() for name in names]

    def value(*tensors):
        return loss(losses, changed(batch, **dict(zip(names, tensors, strict=True))))

    assert gradcheck(value, leaves, atol=1e-6, rtol=1e-4)


@every_loss
@pytest.mark.parametrize("shape", ["random", "matched", "nearly identical", "nearly opposite"])
def test_float32_gradient_is_that_of_float64(loss, shape):
    if "nearly" in shape and "cosines" in gradients(loss, batch_of(shape)):
        shape = "random"  # distributions of equal cosines are equal, and the rest is rounding
    found = gradients(loss, batch_of(shape, torch.float32))
    for name, wanted in gradients(loss, batch_of(shape)).items():
        scale = max(float(wanted.abs().max()), 1e-3)
        assert float((found[name].double() - wanted).abs().max()) <= 2e-3 * scale


@every_loss
def test_rows_of_zeros_have_finite_gradients(loss):
    batch = batch_of("random", torch.float32)
    names = "queries", "keys", "others"
    assert_finite(loss, changed(batch, **{name: torch.zeros(7, 8) for name in names}))
    mixed = batch.queries.clone()
    mixed[0] = 0.0
    assert_finite(loss, changed(batch, **dict.fromkeys(names, mixed)))


def on_circle(*degrees):
    radians = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([radians.cos(), radians.sin()], dim=1).requires_grad_()


@pytest.mark.parametrize("angle", [0.0, 0.25, 0.5, math.pi])
@pytest.mark.parametrize("gate", [False, True])
def test_adaptive_margin_on_its_kinks(angle, gate):
    """θ = 0, θ = mΔ, θ = m and θ = π, with m = 0.5 and Δ = ½ or 1."""
    queries, keys = on_circle(0.0, 90.0), on_circle(math.degrees(angle), math.degrees(angle))
    for label in (0.0, 0.5):
        labels = torch.full((2, 2), label, dtype=torch.float64)
        batch = SimpleNamespace(queries=queries, keys=keys, labels=labels)
        assert_finite(lambda of, b: adaptive(of, b, 0.5, margin_gate=gate), batch)


def test_adaptive_margin_is_smooth_where_the_widened_angle_reaches_zero():
    """Both sides of θ = mΔ have gradient 0 there, so gradcheck passes on the cut itself."""
    queries, keys = on_circle(0.0, 90.0), on_circle(40.0, math.degrees(0.5))
    labels = torch.zeros(2, 2, dtype=torch.float64)
    assert gradcheck(
        lambda q, k: adaptive_margin_nce(q, k, labels, margin=0.5), (queries, keys), atol=1e-4
    )


def test_consistency_on_its_kinks():
    """Matched cosines of 1 and −1, and a mismatched one that is the margin to the last bit."""
    text, image = on_circle(0.0, 0.0), on_circle(0.0, 180.0)
    mismatched = torch.tensor([[3.0, 4.0]] * 2, dtype=torch.float64)  # cosine 3/5
    assert consistency_loss(text, text, mismatched, 0.6) == 0.0
    batch = SimpleNamespace(queries=text, keys=image, others=mismatched)
    assert_finite(lambda of, b: of.consistency_loss(b.queries, b.keys, b.others, 0.6), batch)


# ---- precision and randomness -------------------------------------------------------------------


@every_loss
@pytest.mark.parametrize("shape", ["random", "mixed norms"])
def test_bfloat16_is_computed_in_float32_and_autocast_changes_nothing(loss, shape):
    """Bit for bit: the value is that of the same rows in float32; labels are never rounded."""
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        batch = batch_of(shape, torch.promote_types(dtype, torch.float32))
        numbers = {n: each for n, each in vars(batch).items() if n not in ("labels", "owners")}
        rounded = changed(batch, **{name: each.to(dtype) for name, each in numbers.items()})
        exact = {name: getattr(rounded, name).to(batch.labels.dtype) for name in numbers}
        expected = loss(losses, changed(batch, **exact))
        with torch.autocast("cpu", torch.bfloat16):
            found = loss(losses, rounded)
            assert_finite(loss, rounded)
        assert found.dtype == batch.labels.dtype
        assert found == expected


@every_loss
def test_loss_repeats_and_leaves_the_global_random_state_alone(loss):
    batch, before = batch_of("random", torch.float32), torch.get_rng_state()
    one, other = gradients(loss, batch), gradients(loss, batch)
    assert all(torch.equal(each, other[name]) for name, each in one.items())
    assert loss(losses, batch) == loss(losses, batch)
    assert torch.equal(before, torch.get_rng_state())


def test_derangements_move_every_row_are_equally_likely_and_repeat():
    def drawn():
        generator = torch.Generator().manual_seed(0)
        return [tuple(derangement(4, generator).tolist()) for _ in range(1800)]

    orders = drawn()
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 9  # there are 9 derangements of 4
    assert min(counts) > 140  # 200 expected of each, standard deviation 13
    assert max(counts) < 260
    for order in set(orders):
        assert sorted(order) == [0, 1, 2, 3]
        assert all(place != row for place, row in enumerate(order))
    assert orders == drawn()
    assert derangement(2, torch.Generator()).tolist() == [1, 0]
