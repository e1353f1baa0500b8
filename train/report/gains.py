"""What a system gains over a baseline, and how much of it a control recovers.

The control of MCSE (table 2) trains with shuffled images: the part of the gain that it recovers
does not come from the content of the images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sightline.errors import SightlineError
from train.report.significance import ALPHA, p_text, t_test
from train.report.table import Cell, Row, Table

AVERAGE = "Avg"
"""Name of the task that is a mean over others; `StsScores.average` fills it."""


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
        p_value: independent two-sided t-test of treatment against baseline; needs two seeds each.
        reason: why a figure is None.
        headline: whether reports state it in a sentence.
        untrained: which of the three runs used features from encoders with random weights.
    """

    task: str
    comparison: Comparison
    gain: float | None
    control_gain: float | None = None
    share: float | None = None
    p_value: float | None = None
    reason: str = ""
    untrained: tuple[str, ...] = ()
    headline: bool = True

    @property
    def sentence(self) -> str:
        """The gain as a sentence, for a terminal or a report."""
        names = self.comparison
        if self.gain is None:
            return f"{self.task}: no gain of {names.treatment} to report: {self.reason}."
        text = f"{self.task}: {self.named(names.treatment)} {self.gain:+.2f} over {names.baseline}"
        if self.p_value is not None:
            text += f" ({p_text(self.p_value)})"
        if names.control is not None:
            text += f"; {self.named(names.control)}"
            if self.control_gain is not None:
                text += f" {self.control_gain:+.2f}"
            if self.share is not None:
                text += f", {round(100 * self.share)} % of it"
            else:
                text += f" ({self.reason})" if self.control_gain is None else f": {self.reason}"
        return text + "."

    def named(self, run: str) -> str:
        """The run's name, marked where it learned from untrained encoders."""
        return f"{run} (untrained weights)" if run in self.untrained else run

    def to_json(self) -> dict[str, Any]:
        """As a flat JSON object."""
        body = asdict(self)
        del body["headline"]
        return {"task": body.pop("task"), **body.pop("comparison"), **body}


def compute_gains(table: Table, comparisons: Sequence[Comparison]) -> list[Gain]:
    """Every comparison on every task that its baseline and treatment have.

    Raises:
        SightlineError: a comparison names a run that the table does not have.
    """
    rows = {row.name: row for row in table.rows if row.measured}
    for comparison in comparisons:
        for name in (comparison.baseline, comparison.treatment, comparison.control):
            if name is not None and name not in rows:
                raise SightlineError(
                    f"a comparison names the run {name!r}, which has no result; "
                    f"there are {', '.join(rows)}"
                )
    return [
        _gain(task, comparison, rows, table)
        for comparison in comparisons
        for task in table.tasks
        if task in rows[comparison.baseline].cells and task in rows[comparison.treatment].cells
    ]


def headline(gains: Sequence[Gain]) -> list[Gain]:
    """The gains to state in sentences: those of the average if there is one, else of every score.

    A task without a gain is left out if there is another. Only scores of the table's first part
    count, and of these not alignment and uniformity, which explain an embedding's score and do not
    say how good it is.
    """
    scores = [gain for gain in gains if gain.headline]
    chosen = [gain for gain in scores if gain.task == AVERAGE] or scores or list(gains)
    return [gain for gain in chosen if gain.gain is not None] or chosen


def _gain(task: str, comparison: Comparison, rows: dict[str, Row], table: Table) -> Gain:
    lower = task in table.lower_is_better
    stated = not lower and not table.titles.get(task)
    names = (comparison.baseline, comparison.treatment, comparison.control)
    untrained = tuple(name for name in names if name is not None and rows[name].untrained)
    baseline = rows[comparison.baseline].cells[task]
    treatment = rows[comparison.treatment].cells[task]
    gain = _difference(treatment, baseline, lower)
    if gain is None:
        unscored = comparison.baseline if baseline.mean is None else comparison.treatment
        reason = f"{unscored} has no score"
        return Gain(task, comparison, None, None, None, None, reason, untrained, stated)
    p_value, _ = t_test(treatment, baseline)
    control_gain, share, reason = None, None, ""
    if comparison.control is not None:
        control = rows[comparison.control].cells.get(task)
        control_gain = None if control is None else _difference(control, baseline, lower)
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


def _difference(one: Cell, other: Cell, lower_is_better: bool) -> float | None:
    if one.mean is None or other.mean is None:
        return None
    difference = one.mean - other.mean
    return -difference if lower_is_better else difference
