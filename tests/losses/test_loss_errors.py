"""A loss refuses meaningless input, and its message names the argument and what was found."""

from functools import partial

import pytest
import torch

from sightline.errors import SightlineError
from train.losses import (
    LossError,
    adaptive_margin_nce,
    consistency_loss,
    cross_modal_alignment,
    info_nce,
    kl_alignment,
    list_mle,
    object_phrase_nce,
    removed_share,
)
from train.objectives.dalr import derangement

ROWS = torch.eye(4, 6)
SQUARE = torch.eye(4)
OWNERS = torch.tensor([0, 0, 1, 1])
margin_nce = partial(adaptive_margin_nce, ROWS, ROWS)
cross_modal = partial(cross_modal_alignment, ROWS, ROWS)
objects = partial(object_phrase_nce, ROWS, ROWS)

WITH_TEMPERATURE = {
    "info_nce": lambda t: info_nce(ROWS, ROWS, t),
    "adaptive_margin_nce": lambda t: margin_nce(SQUARE, temperature=t),
    "object_phrase_nce": lambda t: objects(OWNERS, t),
    "kl_alignment: target_": lambda t: kl_alignment(SQUARE, SQUARE, t, 1.0),
    "kl_alignment: student_": lambda t: kl_alignment(SQUARE, SQUARE, 1.0, t),
    "kl_alignment: target_temperature": lambda t: cross_modal(ROWS, ROWS, t, 1.0),
    "kl_alignment: student_temperature": lambda t: cross_modal(ROWS, ROWS, 1.0, t),
}


@pytest.mark.parametrize("name", WITH_TEMPERATURE)
def test_temperature_must_be_above_zero(name):
    for temperature in (0, 0.0, -0.05, float("inf"), float("nan")):
        with pytest.raises(LossError) as caught:
            WITH_TEMPERATURE[name](temperature)
        assert f"temperature is {temperature}; give a finite number above 0" in str(caught.value)
        assert str(caught.value).startswith(name)
        assert isinstance(caught.value, SightlineError)


NAN = float("nan")
REFUSED = [
    (lambda: info_nce(ROWS, ROWS[:3]), r"queries \[4, 6\], keys \[3, 6\]"),
    (lambda: info_nce(ROWS[0], ROWS[0]), r"keys \[6\]; expected queries \[n, d\], keys \[n, d\]"),
    (lambda: info_nce(ROWS[:0], ROWS[:0]), r"queries \[0, 6\], keys \[0, 6\]; a mean over no rows"),
    (lambda: margin_nce(SQUARE[:3]), r"soft_labels \[3, 4\].*expected .*soft_labels \[n, n\]"),
    (
        lambda: margin_nce(SQUARE, threshold=0.9, filter_scores=SQUARE[:, :2]),
        r"filter_scores \[4, 2\]; expected .*filter_scores \[n, n\]",
    ),
    (lambda: margin_nce(SQUARE, filter_scores=SQUARE), "threshold is None"),
    (lambda: margin_nce(SQUARE, margin=-0.1), "margin is -0.1; give a number from 0 to 3.14"),
    (lambda: margin_nce(SQUARE, margin=NAN), "margin is nan; give a finite number"),
    (lambda: margin_nce(SQUARE, threshold=NAN), "threshold is nan; give a finite number"),
    (lambda: removed_share(ROWS, 0.9), r"scores \[4, 6\]; expected scores \[n, n\]"),
    (lambda: consistency_loss(ROWS, ROWS, ROWS[:3]), r"mismatched_image \[3, 6\]"),
    (
        lambda: consistency_loss(ROWS, ROWS, ROWS, margin=1.01),
        "margin is 1.01; give a number from -1 to 1",
    ),
    (
        lambda: cross_modal(ROWS[:2], ROWS, 1.0, 1.0),
        r"the shapes do not fit: .*teacher_text \[2, 6\]",
    ),
    (
        lambda: kl_alignment(SQUARE, ROWS, 1.0, 1.0),
        r"target_scores \[4, 4\], student_scores \[4, 6\]",
    ),
    (lambda: list_mle(SQUARE, ROWS), r"student_scores \[4, 4\], teacher_scores \[4, 6\]"),
    (
        lambda: objects(OWNERS[:3]),
        r"phrases \[4, 6\], objects \[4, 6\], owners \[3\]; expected .*owners \[p\]",
    ),
    (lambda: objects(OWNERS.float()), "owners is torch.float32; give integers"),
    (lambda: derangement(1, torch.Generator()), r"1 row\(s\) cannot all change places"),
    (lambda: derangement(0, torch.Generator()), r"0 row\(s\) cannot all change places"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_the_message_says_what_was_found_and_what_to_give(call, message):
    with pytest.raises(LossError, match=message):
        call()


def test_margins_on_their_bounds_are_allowed():
    assert torch.isfinite(consistency_loss(ROWS, ROWS, ROWS, margin=1))
    assert torch.isfinite(consistency_loss(ROWS, ROWS, ROWS, margin=-1))
    assert torch.isfinite(margin_nce(SQUARE, margin=0))


def test_a_nan_in_the_rows_reaches_the_value():
    """The trainer stops on a loss that is not a number; no loss may hide one behind a mask."""
    broken = ROWS.clone()
    broken[1, 2] = NAN
    for value in (
        info_nce(broken, ROWS),
        adaptive_margin_nce(broken, ROWS, SQUARE, threshold=-1.0),
        consistency_loss(broken, ROWS, ROWS),
        cross_modal_alignment(broken, ROWS, ROWS, ROWS, 1.0, 1.0),
        kl_alignment(ROWS, broken, 1.0, 1.0),
        list_mle(broken, ROWS),
        object_phrase_nce(broken, ROWS, OWNERS),
    ):
        assert torch.isnan(value)
