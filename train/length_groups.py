"""Cutting a batch into groups of similar length, so that less computation is spent on padding."""

from __future__ import annotations

from collections.abc import Sequence

_TOKENS_A_GROUP = 48
_WIDTH = 768
"""Cost of one more group on a CPU, in tokens of a model of that width (bench/train_step.py)."""

# At a width of 128 the best overhead is between 200 and 400 tokens (90 ms a step of the demo
# against 112 ms with one group), which agrees with 48 at 768 divided by the width.


def group_overhead(device: str, hidden: int) -> int | None:
    """Cost of one more group, in tokens of a model with ``hidden`` units; None if it is too high.

    On a CPU time is proportional to the number of tokens, so several groups pay off; the overhead
    of a group, for launching its kernels and reading all weights once more, grows more slowly with
    the width than the time of a token. A GPU that waits for kernel launches is fastest with one
    group.
    """
    if device != "cpu":
        return None
    return round(_TOKENS_A_GROUP * _WIDTH / hidden)


def length_groups(lengths: Sequence[int], overhead: int | None) -> list[list[int]]:
    """The partition of a batch with the lowest cost: Σ over groups of (rows × longest + overhead).

    Sorted by length, an optimal partition is a cut into runs that never separates rows of equal
    length; so this is a shortest path over the distinct lengths (at most 32 of them in training).

    Args:
        lengths: tokens of each row.
        overhead: cost of a group, in tokens; None makes one group.

    Returns:
        Row numbers of each group; in the batch's own order if there is only one group.
    """
    if overhead is None:
        return [list(range(len(lengths)))]
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    # ends[i]: rows no longer than the i-th distinct length
    ends = [i + 1 for i in range(len(order)) if i + 1 == len(order) or _differ(lengths, order, i)]
    best, cut = [0], [0]
    for end in ends:
        longest = lengths[order[end - 1]]
        starts = [0, *ends[: len(best) - 1]]
        costs = [best[i] + (end - start) * longest + overhead for i, start in enumerate(starts)]
        cheapest = min(range(len(costs)), key=costs.__getitem__)
        best.append(costs[cheapest])
        cut.append(cheapest)
    groups: list[list[int]] = []
    position = len(ends)
    while position:
        start = ends[cut[position] - 1] if cut[position] else 0
        groups.append(order[start : ends[position - 1]])
        position = cut[position]
    return groups[::-1] if len(groups) > 1 else [list(range(len(lengths)))]


def _differ(lengths: Sequence[int], order: list[int], i: int) -> bool:
    return lengths[order[i]] != lengths[order[i + 1]]
