"""The two-stream schedule of METHODS §6."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from train.schedule import Schedule, batches_per_pass

ROWS = st.integers(0, 60).filter(lambda n: n != 1)


@given(pairs=ROWS, text=ROWS, batch_size=st.integers(2, 9), seed=st.integers(0, 3))
@settings(max_examples=80, deadline=None)
def test_each_pass_holds_every_row_once(pairs: int, text: int, batch_size: int, seed: int) -> None:
    assume(pairs + text)
    schedule = Schedule(pairs, text, batch_size, seed)
    passes: dict[tuple[str, int], list[int]] = {}
    for k in range(3 * schedule.steps_per_epoch):
        draw = schedule.draw(k)
        rows = schedule.rows(draw)
        assert 2 <= len(rows) <= batch_size + 1
        passes.setdefault((draw.stream, draw.pass_number), []).extend(rows.tolist())
    for (stream, number), rows in passes.items():
        total = pairs if stream == "pairs" else text
        assert len(set(rows)) == len(rows)
        if (stream, number + 1) in passes:  # the pass is over
            assert sorted(rows) == list(range(total))


@given(pairs=ROWS, text=ROWS, batch_size=st.integers(2, 9))
@settings(max_examples=80, deadline=None)
def test_a_stream_is_read_in_order_without_gaps(pairs: int, text: int, batch_size: int) -> None:
    assume(pairs + text)
    schedule = Schedule(pairs, text, batch_size, 0)
    seen = {"pairs": 0, "text": 0}
    for k in range(2 * schedule.steps_per_epoch + 3):
        draw = schedule.draw(k)
        size = schedule.pair_batches if draw.stream == "pairs" else schedule.text_batches
        assert draw.pass_number * size + draw.position == seen[draw.stream]
        seen[draw.stream] += 1


def test_two_or_more_text_batches_a_pair_batch_follow_the_released_rule() -> None:
    schedule = Schedule(pairs=20, text=73, batch_size=10, seed=0)  # 2 and 8 batches: r = 4
    paired = [schedule.draw(k).stream == "pairs" for k in range(schedule.steps_per_epoch)]
    assert paired == [k % 4 == 0 for k in range(10)]


@pytest.mark.parametrize(("pairs", "text"), [(50, 90), (90, 50), (50, 50), (500, 20)])
def test_fewer_are_spread_evenly_and_every_epoch_is_one_pass(pairs: int, text: int) -> None:
    schedule = Schedule(pairs, text, batch_size=10, seed=0)
    steps = schedule.steps_per_epoch
    p = schedule.pair_batches / steps
    paired = np.array([schedule.draw(k).stream == "pairs" for k in range(2 * steps)])
    assert paired[:steps].sum() == paired[steps:].sum() == schedule.pair_batches
    k = np.arange(2 * steps)
    assert (np.abs(np.cumsum(paired) - (k + 1) * p) <= 1).all()


def test_an_epoch_has_the_batches_of_both_streams() -> None:
    assert Schedule(pairs=29_783, text=1_000_000, batch_size=64, seed=0).steps_per_epoch == (
        -(-29_783 // 64) + 15_625
    )


def test_a_last_batch_of_one_row_joins_the_one_before() -> None:
    assert [batches_per_pass(n, 4) for n in (0, 1, 2, 4, 5, 6, 8, 9)] == [0, 1, 1, 1, 1, 2, 2, 2]
    schedule = Schedule(pairs=9, text=0, batch_size=4, seed=0)
    assert [len(schedule.rows(schedule.draw(k))) for k in range(4)] == [4, 5, 4, 5]


@pytest.mark.parametrize(("pairs", "text", "stream"), [(0, 20, "text"), (20, 0, "pairs")])
def test_with_one_stream_empty_every_step_is_the_other(pairs: int, text: int, stream: str) -> None:
    schedule = Schedule(pairs, text, batch_size=4, seed=0)
    assert {schedule.draw(k).stream for k in range(25)} == {stream}


def test_seed_stream_and_pass_each_change_the_order() -> None:
    def rows(seed: int, k: int) -> list[int]:
        schedule = Schedule(pairs=64, text=64, batch_size=64, seed=seed)
        return schedule.rows(schedule.draw(k)).tolist()

    orders = [rows(0, 0), rows(0, 1), rows(0, 2), rows(1, 0)]
    assert len({tuple(order) for order in orders}) == 4
    assert rows(0, 2) == rows(0, 2)


@pytest.mark.parametrize(("pairs", "text", "batch"), [(0, 0, 4), (1, 9, 4), (9, 1, 4), (9, 9, 1)])
def test_too_few_rows_to_contrast_are_refused(pairs: int, text: int, batch: int) -> None:
    with pytest.raises(ValueError, match=r"too few|no negatives"):
        Schedule(pairs, text, batch, 0)
