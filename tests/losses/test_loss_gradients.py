"""Every loss has the gradient of its value, finite on kinks, at extremes and under bfloat16."""

import math

import numpy as np
import pytest
import torch
from loss_batches import SHAPES, owners_of, pair, soft_labels, tensors
from torch.autograd import gradcheck

from train.losses import (
    adaptive_margin_nce,
    consistency_loss,
    cross_modal_alignment,
    info_nce,
    kl_alignment,
    list_mle,
    object_phrase_nce,
)


def labels_for(rows):
    """Soft labels for the rows, in float64 for float64 and else in float32: never rounded."""
    dtype = torch.promote_types(rows.dtype, torch.float32)
    return torch.tensor(soft_labels(len(rows)), dtype=dtype)


def owners_for(rows):
    return torch.tensor(owners_of(len(rows)))


# name → (queries, keys, third) → loss; every tensor has one row for each row of the batch.
LOSSES = {
    "info_nce": lambda q, k, t: info_nce(q, k),
    "adaptive_margin_nce": lambda q, k, t: adaptive_margin_nce(q, k, labels_for(q), threshold=0.7),
    "adaptive_margin_nce, released": lambda q, k, t: adaptive_margin_nce(
        q, k, labels_for(q), margin=0.15, margin_gate=True
    ),
    "adaptive_margin_nce, all filtered": lambda q, k, t: adaptive_margin_nce(
        q, k, labels_for(q), threshold=-2.0
    ),
    "consistency_loss": lambda q, k, t: consistency_loss(q, k, t),
    "cross_modal_alignment": lambda q, k, t: cross_modal_alignment(q, k, t, k, 0.5, 0.0225),
    "kl_alignment": lambda q, k, t: kl_alignment(t, q, 0.5, 0.0225),
    "list_mle": lambda q, k, t: list_mle(q, t),
    "object_phrase_nce": lambda q, k, t: object_phrase_nce(q, k, owners_for(q)),
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
every_shape = pytest.mark.parametrize("shape", SHAPES)


def batch(shape, dtype, seed=0):
    queries, keys = pair(shape, seed)
    given = tensors(dtype, queries, keys, np.roll(pair(shape, seed + 1)[1], 1, axis=0))
    return [tensor.requires_grad_() for tensor in given]


def gradients(loss, given):
    return torch.autograd.grad(loss(*given), given, allow_unused=True)


def assert_finite(loss, given):
    value = loss(*given)
    assert torch.isfinite(value)
    for gradient in gradients(loss, given):
        assert gradient is None or torch.isfinite(gradient).all()


@every_loss
@pytest.mark.parametrize("shape", ["random", "one row", "two rows", "matched"])
def test_gradient_is_that_of_the_value(loss, shape):
    queries, keys, third = batch(shape, torch.float64)
    assert gradcheck(loss, (queries, keys, third), atol=1e-6, rtol=1e-4)


def test_soft_labels_have_a_gradient_too():
    queries, keys, _ = batch("random", torch.float64)
    labels = labels_for(queries).requires_grad_()
    assert gradcheck(adaptive_margin_nce, (queries, keys, labels))


@every_loss
@every_shape
def test_gradient_is_finite_on_adversarial_batches(loss, shape):
    for dtype in (torch.float64, torch.float32):
        assert_finite(loss, batch(shape, dtype))


@every_loss
def test_rows_of_zeros_have_finite_gradients(loss):
    given = [torch.zeros(3, 4, requires_grad=True) for _ in range(3)]
    assert_finite(loss, given)
    mixed = [torch.eye(3, 4).mul(torch.tensor([[0.0], [1.0], [1.0]])).requires_grad_()] * 3
    assert_finite(lambda q: loss(q, q, q), mixed[:1])


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
        assert_finite(
            lambda q, k, labels=labels: adaptive_margin_nce(
                q, k, labels, margin=0.5, margin_gate=gate
            ),
            [queries, keys],
        )


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
    assert_finite(lambda t, i: consistency_loss(t, i, mismatched, 0.6), [text, image])


@every_loss
@pytest.mark.parametrize("shape", ["random", "matched", "nearly identical", "nearly opposite"])
def test_float32_gradient_is_that_of_float64(loss, shape):
    exact = gradients(loss, batch(shape, torch.float64))
    single = gradients(loss, batch(shape, torch.float32))
    for wanted, found in zip(exact, single, strict=True):
        if wanted is not None and found is not None:
            scale = max(float(wanted.abs().max()), 1e-3)
            assert float((found.double() - wanted).abs().max()) <= 2e-3 * scale


@every_loss
@every_shape
def test_bfloat16_is_computed_in_float32(loss, shape):
    """Autocast must not reach inside: the value is bit for bit that of the same rows in float32."""
    given = [x.detach().bfloat16().requires_grad_() for x in batch(shape, torch.float32)]
    with torch.autocast("cpu", torch.bfloat16):
        value = loss(*given)
        assert_finite(loss, given)
    assert value.dtype == torch.float32
    assert value == loss(*[x.detach().float() for x in given])


@every_loss
def test_autocast_does_not_reach_float32_and_float64_rows(loss):
    for dtype in (torch.float32, torch.float64):
        given = batch("random", dtype)
        with torch.autocast("cpu", torch.bfloat16):
            inside = loss(*given)
        assert inside.dtype == dtype
        assert inside == loss(*given)


@every_loss
def test_loss_repeats_and_leaves_the_global_random_state_alone(loss):
    given = batch("random", torch.float32)
    before = torch.get_rng_state()
    first, again = gradients(loss, given), gradients(loss, given)
    assert torch.equal(before, torch.get_rng_state())
    assert loss(*given) == loss(*given)
    for one, two in zip(first, again, strict=True):
        assert (one is None and two is None) or torch.equal(one, two)
