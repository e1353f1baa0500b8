"""Whether two runs differ by more than their seeds do."""

from __future__ import annotations

from typing import Any

from train.report.table import Cell

ALPHA = 0.05
"""Differences with a smaller p-value are called significant, as in the papers."""


def t_test(one: Cell, other: Cell) -> tuple[float | None, str]:
    """Student's t-test of two independent samples, two-sided, with equal variances.

    Returns:
        The p-value and "", or None and the reason why no test is possible.
    """
    if one.mean is None or other.mean is None:
        return None, "a score is not defined"
    if one.sd is None or other.sd is None or not one.seeds or not other.seeds:
        return None, "a test needs at least two seeds of each"
    if one.sd == other.sd == 0:
        # The t statistic would be 0/0 or infinite.
        return None, "neither varies over its seeds, so there is no spread to test against"
    from scipy.stats import ttest_ind_from_stats  # takes a second

    result: Any = ttest_ind_from_stats(
        one.mean, one.sd, len(one.seeds), other.mean, other.sd, len(other.seeds)
    )
    return float(result.pvalue), ""


def p_text(p_value: float) -> str:
    """Such as "p = 0.012"."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:#.2g}"
