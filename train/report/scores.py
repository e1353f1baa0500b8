"""What is computed from scores: means over seeds, t-tests, differences and gains.

The control of MCSE (table 2) trains with shuffled images: the part of the gain that it recovers
does not come from the content of the images.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sightline.errors import SightlineError
from train.evaluate.results import UNTRAINED_FEATURES
from train.evaluate.sts import STS_AVERAGE
from train.report.tables import Cell, Column, Row, Table

ALPHA = 0.05
"""Differences with a smaller p-value are called significant, as in the papers."""
DECIMALS = 2
"""Of a score in a table."""


@dataclass(frozen=True)
class Comparison:
    """Three runs by name: how much `treatment`, and `control`, gain over `baseline`."""

    baseline: str
    treatment: str
    control: str | None = None


@dataclass(frozen=True)
class Change:
    """How far a run is from a baseline on one task or subset, in its unit.

    Attributes:
        change: (mean of the run − mean of the baseline) · `sign`.
        sign: −1 for a gain where lower is better, so that what is better is positive; else 1.
        p_value: from `t_test`.
        significant: whether the run differs from the baseline, in either direction.
        reason: why a figure is None.
        control: a run whose signal was removed on purpose; None: none is named.
        control_change: the same change of the control.
        share: control_change / change: 0 when the control recovers nothing, 1 when it recovers all.
            None where it says nothing: without a gain, for one that is not significant over the
            seeds, and where the control changes more than the run.
        untrained: which of these runs learned from encoders with random weights.
    """

    run: str
    baseline: str
    task: str
    change: float | None
    p_value: float | None
    significant: bool
    reason: str
    sign: int = 1
    control: str | None = None
    control_change: float | None = None
    share: float | None = None
    untrained: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """A gain as a sentence, for a terminal or a report."""
        if self.change is None:
            return f"{self.task}: no gain of {self.run} to report: {self.reason}."
        text = f"{self.task}: {self.named(self.run)} {self.change:+z.2f} over {self.baseline}"
        if self.p_value is not None:
            text += f" ({p_text(self.p_value)})"
        if self.control is not None:
            text += f"; {self.named(self.control)}"
            if self.control_change is not None:
                text += f" {self.control_change:+z.2f}"
            if self.share is not None:
                text += f", {round(100 * self.share)} % of it"
            else:
                text += f" ({self.reason})" if self.control_change is None else f": {self.reason}"
        return text + "."

    def named(self, run: str) -> str:
        """The run's name, marked where it learned from untrained encoders."""
        return _marked(run, run in self.untrained)


def mean_over(scores: Sequence[float]) -> Cell:
    """Mean and sample standard deviation of one score per seed."""
    sd = statistics.stdev(scores) if len(scores) > 1 else None
    return Cell(statistics.fmean(scores), sd, tuple(scores))


def t_test(treated: Cell, second: Cell) -> tuple[float | None, str]:
    """Student's t-test of two independent samples, two-sided, with equal variances.

    Returns:
        The p-value and "", or None and the reason why no test is possible.
    """
    if treated.value is None or second.value is None:
        return None, "a score is not defined"
    if treated.sd is None or second.sd is None or not treated.seeds or not second.seeds:
        return None, "a test needs at least two seeds of each"
    if treated.sd == second.sd == 0:
        # The t statistic would be 0/0 or infinite.
        return None, "neither varies over its seeds, so there is no spread to test against"
    from scipy.stats import ttest_ind_from_stats  # takes a second

    result: Any = ttest_ind_from_stats(
        treated.value, treated.sd, len(treated.seeds), second.value, second.sd, len(second.seeds)
    )
    return float(result.pvalue), ""


def p_text(p_value: float) -> str:
    """Such as "p = 0.012"."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:#.2g}"


def best(table: Table, column: Column) -> float | None:
    """The best mean among the runs, as a table prints it; None if they print only one."""
    cells = [row.cells[column.name] for row in table.measured.values() if column.name in row.cells]
    means = {round(cell.value, DECIMALS) for cell in cells if cell.value is not None}
    if len(means) < 2 or not column.better:
        return None
    return min(means) if column.better == "low" else max(means)


def with_best(table: Table) -> Table:
    """With the runs' best cells made strong; several may print the best mean."""
    best_of = {column.name: best(table, column) for column in table.columns}

    def marked(row: Row) -> Row:
        strong = {
            name: replace(cell, strong=True)
            for name, cell in row.cells.items()
            if row.measured and cell.value is not None
            if round(cell.value, DECIMALS) == best_of[name]
        }
        return replace(row, cells={**row.cells, **strong})

    return replace(table, rows=tuple(map(marked, table.rows)))


def changes_from(baseline: str, table: Table) -> tuple[Change, ...]:
    """Each run against the one named `baseline`, on the tasks that both have."""
    runs = table.measured
    return tuple(
        _change(runs[name], runs[baseline], task)
        for name in runs
        if name != baseline
        for task in table.names
        if task in runs[name].cells and task in runs[baseline].cells
    )


def gains_of(table: Table, comparisons: Sequence[Comparison]) -> tuple[Change, ...]:
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
        _gain(comparison, table, column)
        for comparison in comparisons
        for column in table.columns
        if column.name in rows[comparison.baseline].cells
        if column.name in rows[comparison.treatment].cells
    )


def headline(table: Table, gains: Sequence[Change]) -> list[Change]:
    """The gains to state in sentences: those of the average if there is one, else of every score.

    A task without a gain is left out if there is another. Only scores of the table's first part
    count, and of these not alignment and uniformity, which explain an embedding's score and do not
    say how good it is.
    """
    stated = _stated(table)
    scores = [gain for gain in gains if gain.task in stated]
    chosen = [gain for gain in scores if gain.task == STS_AVERAGE] or scores or list(gains)
    return [gain for gain in chosen if gain.change is not None] or chosen


def lead_of(table: Table, gains: Sequence[Change]) -> tuple[str, ...]:
    """What a report says first: which run is best, by how much, and what its control keeps."""
    chosen, stated = headline(table, gains), _stated(table)
    best_runs = (_best_run(table, gain) for gain in chosen if gain.task in stated)
    return tuple(dict.fromkeys([*filter(None, best_runs), *(gain.sentence for gain in chosen)]))


def _stated(table: Table) -> set[str]:
    """The tasks whose gains reports may state in a sentence."""
    return {column.name for column in table.columns if column.better == "high" and not column.part}


def _best_run(table: Table, gain: Change) -> str:
    """The best measured run on a gain's task beside the gain's baseline; empty without a score."""
    cells = {name: row.cells.get(gain.task) for name, row in table.measured.items()}
    scores = {name: cell.value for name, cell in cells.items() if cell and cell.value is not None}
    if not scores:
        return ""
    name = max(scores, key=lambda name: scores[name])
    label = _marked(name, _learned_from_untrained(table.measured[name]))
    text = f"{gain.task}: {label} is best with {scores[name]:z.2f}"
    if name != gain.baseline and gain.baseline in scores:
        text += f", {scores[name] - scores[gain.baseline]:+z.2f} over {gain.baseline}"
    return text + "."


def _change(run: Row, baseline: Row, task: str, sign: int = 1) -> Change:
    cell, base = run.cells[task], baseline.cells[task]
    p_value, reason = t_test(cell, base)
    change = _minus(cell, base, sign)
    if change is None:
        reason = cell.hint or base.hint
    significant = p_value is not None and p_value < ALPHA
    return Change(run.name, baseline.name, task, change, p_value, significant, reason, sign)


def _gain(comparison: Comparison, table: Table, column: Column) -> Change:
    rows, task = table.measured, column.name
    names = (comparison.baseline, comparison.treatment, comparison.control)
    untrained = tuple(name for name in names if name and _learned_from_untrained(rows[name]))
    baseline, treatment = rows[comparison.baseline], rows[comparison.treatment]
    gain = _change(treatment, baseline, task, -1 if column.better == "low" else 1)
    control_change, share, reason = None, None, ""
    if gain.change is None:
        lacks = baseline if baseline.cells[task].value is None else treatment
        reason = f"{lacks.name} has no score"
    elif comparison.control is not None:
        cell = rows[comparison.control].cells.get(task)
        control_change = None if cell is None else _minus(cell, baseline.cells[task], gain.sign)
        reason = _no_share(gain.change, control_change, gain.p_value)
        share = None if reason or control_change is None else control_change / gain.change
    return replace(
        gain,
        reason=reason,
        control=comparison.control,
        control_change=control_change,
        share=share,
        untrained=untrained,
    )


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


def _minus(cell: Cell, base: Cell, sign: int) -> float | None:
    return None if cell.value is None or base.value is None else sign * (cell.value - base.value)


def _learned_from_untrained(row: Row) -> bool:
    return UNTRAINED_FEATURES in row.marks


def _marked(run: str, untrained: bool) -> str:
    return f"{run} ({UNTRAINED_FEATURES})" if untrained else run
