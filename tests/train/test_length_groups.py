"""The partition of a batch into groups of similar length."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from train.model import length_groups


def cost(lengths: list[int], groups: list[list[int]], overhead: int) -> int:
    return sum(len(g) * max(lengths[i] for i in g) + overhead for g in groups)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(0, 30))
@settings(max_examples=80, deadline=None)
def test_no_cut_of_the_sorted_batch_is_cheaper(lengths: list[int], overhead: int) -> None:
    groups = length_groups(lengths, overhead)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    cheapest = min(
        cost(lengths, [order[a:b] for a, b in pairwise((0, *cuts, len(order)))], overhead)
        for count in range(len(order))
        for cuts in combinations(range(1, len(order)), count)
    )
    assert cost(lengths, groups, overhead) == cheapest


def test_without_an_overhead_given_there_is_one_group_in_order() -> None:
    assert length_groups([3, 9, 1], None) == [[0, 1, 2]]
