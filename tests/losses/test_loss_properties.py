"""Properties of the losses for any batch, tested with Hypothesis."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from train.losses import (
    LossError,
    adaptive_margin_nce,
    consistency_loss,
    cross_modal_alignment,
    derangement,
    info_nce,
    kl_alignment,
    list_mle,
    object_phrase_nce,
    removed_share,
)

modest = settings(max_examples=30, deadline=None)
seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 9)
widths = st.integers(2, 6)


def rows(seed, *shape):
    return torch.tensor(np.random.default_rng(seed).normal(size=shape))


def close(left, right):
    return torch.testing.assert_close(left, right, rtol=1e-8, atol=1e-9)


def every_value(queries, keys, third, labels, owners):
    """The losses of one batch, by name; `labels` is [N, N], the rest has N rows."""
    return {
        "info_nce": info_nce(queries, keys),
        "adaptive_margin_nce": adaptive_margin_nce(queries, keys, labels, threshold=0.5),
        "released": adaptive_margin_nce(
            queries, keys, labels, threshold=0.5, filter_scores=labels.mT, margin_gate=True
        ),
        "consistency_loss": consistency_loss(queries, keys, third),
        "cross_modal_alignment": cross_modal_alignment(queries, keys, third, keys, 0.5, 0.1),
        "object_phrase_nce": object_phrase_nce(queries, keys, owners),
    }


@modest
@given(seeds, sizes, widths)
def test_order_of_the_batch_does_not_matter(seed, size, width):
    queries, keys, third = rows(seed, 3, size, width)
    labels = rows(seed + 1, size, size).tanh()
    owners = torch.tensor(np.random.default_rng(seed).integers(0, 3, size))
    order = torch.tensor(np.random.default_rng(seed).permutation(size))
    here = every_value(queries, keys, third, labels, owners)
    there = every_value(
        queries[order], keys[order], third[order], labels[order][:, order], owners[order]
    )
    for name in here:
        close(here[name], there[name])
    close(removed_share(labels, 0.1), removed_share(labels[order][:, order], 0.1))


@modest
@given(seeds, sizes, widths)
def test_order_of_rows_and_of_columns_does_not_matter_to_lists(seed, size, width):
    student, teacher = rows(seed, 2, size, width)
    down = torch.tensor(np.random.default_rng(seed).permutation(size))
    across = torch.tensor(np.random.default_rng(seed).permutation(width))
    moved = [scores[down][:, across] for scores in (student, teacher)]
    close(list_mle(student, teacher), list_mle(*moved))
    close(kl_alignment(teacher, student, 0.5, 0.2), kl_alignment(moved[1], moved[0], 0.5, 0.2))


@modest
@given(seeds, sizes, widths, st.floats(-4, 4))
def test_norms_do_not_matter(seed, size, width, exponent):
    queries, keys, third = rows(seed, 3, size, width)
    labels = rows(seed + 1, size, size).tanh()
    owners = torch.zeros(size, dtype=torch.int64)
    norms = 10.0 ** (exponent * rows(seed + 2, 3, size, 1).tanh())
    here = every_value(queries, keys, third, labels, owners)
    there = every_value(queries * norms[0], keys * norms[1], third * norms[2], labels, owners)
    for name in here:
        close(here[name], there[name])


@modest
@given(seeds, sizes, widths, st.booleans(), st.floats(0.02, 2.0))
def test_without_margin_and_threshold_adaptive_margin_is_info_nce(
    seed, size, width, gate, temperature
):
    queries, keys = rows(seed, 2, size, width)
    labels = rows(seed + 1, size, size).tanh()
    plain = info_nce(queries, keys, temperature)
    close(adaptive_margin_nce(queries, keys, labels, 0.0, temperature, margin_gate=gate), plain)
    # Nor does a margin matter if the teacher calls every negative a match.
    close(adaptive_margin_nce(queries, keys, torch.ones_like(labels), 0.3, temperature), plain)


@modest
@given(seeds, st.integers(2, 9), widths, st.floats(0.0, 1.0), st.floats(-1.0, 1.0))
def test_a_margin_never_lowers_the_loss_and_a_filter_never_raises_it(
    seed, size, width, margin, threshold
):
    queries, keys = rows(seed, 2, size, width)
    labels = rows(seed + 1, size, size).tanh()
    plain = info_nce(queries, keys)
    widened = adaptive_margin_nce(queries, keys, labels, margin)
    assert widened >= plain - 1e-9
    thinned = adaptive_margin_nce(queries, keys, labels, margin, threshold=threshold)
    assert thinned <= widened + 1e-9
    if removed_share(labels, threshold) == 0.0:
        assert thinned == widened
    if removed_share(labels, threshold) == 1.0:
        assert thinned == 0.0


@modest
@given(seeds, st.integers(2, 5), st.integers(2, 5), widths)
def test_object_term_of_a_caption_does_not_depend_on_the_others(seed, ours, theirs, width):
    phrases, objects = rows(seed, 2, ours + theirs, width)
    owners = torch.tensor([3] * ours + [1] * theirs)
    apart = [
        object_phrase_nce(phrases[part], objects[part], owners[part])
        for part in (slice(0, ours), slice(ours, None))
    ]
    close(object_phrase_nce(phrases, objects, owners), (apart[0] + apart[1]) / 2)

    def gradient_of_ours(others):
        p, o = phrases.clone(), objects.clone()
        p[ours:], o[ours:] = rows(others, 2, theirs, width)
        p.requires_grad_(), o.requires_grad_()
        object_phrase_nce(p, o, owners).backward()
        assert p.grad is not None
        assert o.grad is not None
        return torch.cat([p.grad[:ours], o.grad[:ours]])

    close(gradient_of_ours(seed + 1), gradient_of_ours(seed + 2))


@modest
@given(seeds, st.integers(2, 5), widths, st.integers(1, 4))
def test_captions_with_one_pair_are_left_out_of_the_mean(seed, pairs, width, lonely):
    phrases, objects = rows(seed, 2, pairs + lonely, width)
    owners = torch.tensor([0] * pairs + [10 + k for k in range(lonely)])
    alone = object_phrase_nce(phrases[:pairs], objects[:pairs], owners[:pairs])
    close(object_phrase_nce(phrases, objects, owners), alone)


@modest
@given(seeds, sizes, widths, st.floats(-50, 50))
def test_list_mle_ignores_a_shift_and_the_teachers_scale(seed, size, width, shift):
    student, teacher = rows(seed, 2, size, width)
    here = list_mle(student, teacher)
    close(here, list_mle(student + shift, teacher))
    close(here, list_mle(student, teacher.exp() * 7))
    assert here >= 0.0


@modest
@given(seeds, sizes, widths, st.floats(0.05, 2.0))
def test_kl_is_zero_only_for_the_target_itself(seed, size, width, temperature):
    target, student = rows(seed, 2, size, width)
    same = kl_alignment(target, target / 2 + 1, temperature, temperature / 2)
    assert abs(float(same)) < 1e-9
    assume(float((torch.softmax(target, 1) - torch.softmax(student, 1)).abs().max()) > 1e-2)
    assert kl_alignment(target, student, 1.0, 1.0) > 1e-6


@modest
@given(seeds, st.integers(2, 40))
def test_derangement_moves_every_row_and_repeats(seed, size):
    order = derangement(size, torch.Generator().manual_seed(seed))
    assert sorted(order.tolist()) == list(range(size))
    assert all(place != row for place, row in enumerate(order.tolist()))
    assert torch.equal(order, derangement(size, torch.Generator().manual_seed(seed)))


def test_derangements_are_equally_likely():
    generator = torch.Generator().manual_seed(0)
    drawn = [tuple(derangement(4, generator).tolist()) for _ in range(1800)]
    counts = [drawn.count(order) for order in set(drawn)]
    assert len(counts) == 9  # there are 9 derangements of 4
    assert min(counts) > 140  # 200 expected of each, standard deviation 13
    assert max(counts) < 260


@pytest.mark.parametrize("size", [-1, 0, 1])
def test_a_single_row_has_no_derangement(size):
    with pytest.raises(LossError, match=rf"{size} row\(s\) cannot all change places"):
        derangement(size, torch.Generator())
