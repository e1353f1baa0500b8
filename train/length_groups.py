"""Cutting a batch into groups of like length, so that less of what is computed is padding."""

from __future__ import annotations

from collections.abc import Sequence

_TOKENS_A_GROUP = 48
_WIDTH = 768
"""What one more group costs on a CPU, in tokens of a model of that width (bench/train_step.py)."""

# At a width of 128 the best overhead lies between 200 and 400 tokens (90 ms a step of the demo
# against 112 ms with one group), which a line through 48 at 768 meets.


def group_overhead(device: str, hidden: int) -> int | None:
    """What one more group costs, in tokens of a model with ``hidden`` units; None: too much.

    On a CPU time goes with the number of tokens, so several groups pay; a group's own time, that of
    launching its kernels and of passing over all weights once more, grows more slowly with the
    width than a token's does. A GPU that waits for kernels to be launched is best served by one
    group.
    """
    if device != "cpu":
        return None
    return round(_TOKENS_A_GROUP * _WIDTH / hidden)


def length_groups(lengths: Sequence[int], overhead: int | None) -> list[list[int]]:
    """The partition of a batch that costs least: Σ over groups of (rows × longest + overhead).

    Sorted by length, an optimal partition is a cut into runs that never part rows of one length;
    so this is a shortest path over the distinct lengths (at most 32 of them in training).

    Args:
        lengths: tokens of each row.
        overhead: cost of a group, in tokens; None makes one group.

    Returns:
        Row numbers of each group; the batch's own order where there is one group.
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
