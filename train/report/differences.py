"""What a run differs from a baseline by, whether that is more than its seeds do, and gains.

The control of MCSE (table 2) trains with shuffled images: the part of the gain that it recovers
does not come from the content of the images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sightline.errors import SightlineError
from train.evaluate.results import UNTRAINED_FEATURES
from train.evaluate.sts import AVERAGE
from train.report.table import Cell, Row, Table

ALPHA = 0.05
"""Differences with a smaller p-value are called significant, as in the papers."""


@dataclass(frozen=True)
class Difference:
    """One run against the baseline on one task or subset.

    Attributes:
        difference: mean of the run − mean of the baseline, in the task's unit.
        p_value: from `t_test`.
        reason: why a figure is None.
        significant: whether the run differs from the baseline, in either direction.
    """

    run: str
    task: str
    difference: float | None
    p_value: float | None
    reason: str
    significant: bool


@dataclass(frozen=True)
class Comparison:
    """Three runs by name: how much `treatment`, and `control`, gain over `baseline`."""

    baseline: str
    treatment: str
    control: str | None = None


@dataclass(frozen=True)
class Gain:
    """A comparison on one task, in the task's unit; positive is better.

    Attributes:
        gain: mean of the treatment − mean of the baseline (the other way round if lower is
            better).
        control_gain: the same for the control.
        share: control_gain / gain: 0 when the control recovers nothing, 1 when it recovers all.
            None where it says nothing: without a gain, for one that is not significant over the
            seeds, and where the control changes more than the treatment.
        p_value: of treatment against baseline.
        reason: why a figure is None.
        untrained: which of the three runs used features from encoders with random weights.
        stated: whether reports may state it in a sentence.
    """

    task: str
    comparison: Comparison
    gain: float | None
    control_gain: float | None
    share: float | None
    p_value: float | None
    reason: str
    untrained: tuple[str, ...]
    stated: bool

    @property
    def sentence(self) -> str:
        """The gain as a sentence, for a terminal or a report."""
        names = self.comparison
        if self.gain is None:
            return f"{self.task}: no gain of {names.treatment} to report: {self.reason}."
        gain = f"{self.gain:+z.2f}"
        text = f"{self.task}: {self.named(names.treatment)} {gain} over {names.baseline}"
        if self.p_value is not None:
            text += f" ({p_text(self.p_value)})"
        if names.control is not None:
            text += f"; {self.named(names.control)}"
            if self.control_gain is not None:
                text += f" {self.control_gain:+z.2f}"
            if self.share is not None:
                text += f", {round(100 * self.share)} % of it"
            else:
                text += f" ({self.reason})" if self.control_gain is None else f": {self.reason}"
        return text + "."

    def named(self, run: str) -> str:
        """The run's name, marked where it learned from untrained encoders."""
        return _marked(run, run in self.untrained)


def _marked(run: str, untrained: bool) -> str:
    return f"{run} ({UNTRAINED_FEATURES})" if untrained else run


def t_test(treated: Cell, second: Cell) -> tuple[float | None, str]:
    """Student's t-test of two independent samples, two-sided, with equal variances.

    Returns:
        The p-value and "", or None and the reason why no test is possible.
    """
    if treated.mean is None or second.mean is None:
        return None, "a score is not defined"
    if treated.sd is None or second.sd is None or not treated.seeds or not second.seeds:
        return None, "a test needs at least two seeds of each"
    if treated.sd == second.sd == 0:
        # The t statistic would be 0/0 or infinite.
        return None, "neither varies over its seeds, so there is no spread to test against"
    from scipy.stats import ttest_ind_from_stats  # takes a second

    result: Any = ttest_ind_from_stats(
        treated.mean, treated.sd, len(treated.seeds), second.mean, second.sd, len(second.seeds)
    )
    return float(result.pvalue), ""


def p_text(p_value: float) -> str:
    """Such as "p = 0.012"."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:#.2g}"


def differences_from(baseline: str, table: Table) -> tuple[Difference, ...]:
    """Each run against the one named `baseline`, on the tasks that both have."""
    reference = table.measured[baseline]
    return tuple(
        _difference(row, reference, task)
        for row in table.measured.values()
        if row is not reference
        for task in table.tasks
        if task in row.cells and task in reference.cells
    )


def compute_gains(table: Table, comparisons: Sequence[Comparison]) -> tuple[Gain, ...]:
    """Every comparison on every task that its baseline and treatment have."""
    rows = table.measured
    for comparison in comparisons:
        for name in (comparison.baseline, comparison.treatment, comparison.control):
            if name is not None and name not in rows:
                raise SightlineError(
                    f"a comparison names the run {name!r}, which has no result; "
                    f"there are {', '.join(rows)}"
                )
    return tuple(
        _gain(task, comparison, table)
        for comparison in comparisons
        for task in table.tasks
        if task in rows[comparison.baseline].cells and task in rows[comparison.treatment].cells
    )


def headline(gains: Sequence[Gain]) -> list[Gain]:
    """The gains to state in sentences: those of the average if there is one, else of every score.

    A task without a gain is left out if there is another. Only scores of the table's first part
    count, and of these not alignment and uniformity, which explain an embedding's score and do not
    say how good it is.
    """
    scores = [gain for gain in gains if gain.stated]
    chosen = [gain for gain in scores if gain.task == AVERAGE] or scores or list(gains)
    return [gain for gain in chosen if gain.gain is not None] or chosen


def lead_of(table: Table, gains: Sequence[Gain]) -> tuple[str, ...]:
    """What a report says first: which run is best, by how much, and what its control keeps."""
    chosen = headline(gains)
    best = (_best(table, gain) for gain in chosen if gain.stated)
    return tuple(dict.fromkeys([*filter(None, best), *(gain.sentence for gain in chosen)]))


def _best(table: Table, gain: Gain) -> str:
    """The best measured run on a gain's task beside the gain's baseline; empty without a score."""
    cells = {name: row.cells.get(gain.task) for name, row in table.measured.items()}
    scores = {name: cell.mean for name, cell in cells.items() if cell and cell.mean is not None}
    if not scores:
        return ""
    name = max(scores, key=lambda name: scores[name])
    label = _marked(name, UNTRAINED_FEATURES in table.measured[name].marks)
    text, baseline = (
        f"{gain.task}: {label} is best with {scores[name]:z.2f}",
        gain.comparison.baseline,
    )
    if name != baseline and baseline in scores:
        text += f", {scores[name] - scores[baseline]:+z.2f} over {baseline}"
    return text + "."


def _difference(row: Row, reference: Row, task: str) -> Difference:
    cell, baseline = row.cells[task], reference.cells[task]
    p_value, reason = t_test(cell, baseline)
    difference = _minus(cell, baseline)
    if difference is None:
        reason = cell.reason or baseline.reason
    significant = p_value is not None and p_value < ALPHA
    return Difference(row.name, task, difference, p_value, reason, significant)


def _gain(task: str, comparison: Comparison, table: Table) -> Gain:
    rows, sign = table.measured, -1 if task in table.lower_is_better else 1
    names = (comparison.baseline, comparison.treatment, comparison.control)
    untrained = tuple(name for name in names if name and UNTRAINED_FEATURES in rows[name].marks)
    stated = sign > 0 and not table.titles.get(task)
    baseline, treatment = rows[names[0]].cells[task], rows[names[1]].cells[task]
    gain, control_gain, share = _minus(treatment, baseline, sign), None, None
    p_value, reason = t_test(treatment, baseline)[0], ""
    if gain is None:
        reason = f"{names[0] if baseline.mean is None else names[1]} has no score"
    elif comparison.control is not None:
        control = rows[comparison.control].cells.get(task)
        control_gain = None if control is None else _minus(control, baseline, sign)
        reason = _no_share(gain, control_gain, p_value)
        share = None if reason or control_gain is None else control_gain / gain
    return Gain(task, comparison, gain, control_gain, share, p_value, reason, untrained, stated)


def _no_share(gain: float, control_gain: float | None, p_value: float | None) -> str:
    """Why the control's part of ``gain`` says nothing; empty if it does say something."""
    if control_gain is None:
        return "no score"
    if gain <= 0:
        return "there is no gain to recover"
    if p_value is not None and p_value >= ALPHA:
        return "the gain is not significant"
    if abs(control_gain) > gain:
        return "more than the gain" if control_gain > 0 else "it loses more than the gain"
    return ""


def _minus(cell: Cell, base: Cell, sign: int = 1) -> float | None:
    return None if cell.mean is None or base.mean is None else sign * (cell.mean - base.mean)
