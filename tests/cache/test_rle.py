"""COCO's run-length encoding: any mask round-trips, and known strings match."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sightline.cache.rle import (
    compress_counts,
    cutout_key,
    decode_mask,
    encode_mask,
    expand_counts,
    run_lengths,
)
from sightline.errors import CacheError

masks = hnp.arrays(bool, st.tuples(st.integers(1, 40), st.integers(1, 40)))


@given(masks)
def test_any_mask_survives(mask):
    code = encode_mask(mask)
    assert (decode_mask(code["size"], code["counts"]) == mask).all()


@given(st.lists(st.integers(0, 2**31)))
def test_any_run_lengths_survive(runs):
    assert expand_counts(compress_counts(runs)) == runs


def test_runs_go_down_the_columns_and_start_with_background():
    mask = np.array([[1, 0, 0], [1, 1, 0]], dtype=bool)
    assert run_lengths(mask) == [0, 2, 1, 1, 2]


@pytest.mark.parametrize(
    ("runs", "counts"),
    [
        # worked by hand from rleToString of COCO's maskApi.c
        ([0, 2, 1, 1, 2], "021O1"),
        ([15, 16, 31], "?`0o0"),
        ([1000], "Xo0"),
        ([], ""),
    ],
)
def test_known_strings(runs, counts):
    assert compress_counts(runs) == counts
    assert expand_counts(counts) == runs


@pytest.mark.parametrize(
    ("size", "counts", "message"),
    [
        ((2, 3), "04", "4 pixels for 2 × 3; expected 6"),
        ((2, 3), "0~", "'~' is not valid"),
        ((2, 3), "0h", "ends inside a number"),
        ((1, 1), "0O2", "expected 1"),
    ],
)
def test_a_damaged_code_is_refused(size, counts, message):
    with pytest.raises(CacheError, match=message):
        decode_mask(size, counts)


def test_a_cutout_key_depends_on_each_of_its_parts():
    parts = (b"i" * 32, [2, 3], "021O1", "rule/1")
    others = (b"j" * 32, [3, 2], "024", "rule/2")
    keys = {cutout_key(*parts)}
    for i, other in enumerate(others):
        keys.add(cutout_key(*parts[:i], other, *parts[i + 1 :]))
    assert len(keys) == 5
    assert {len(key) for key in keys} == {32}
