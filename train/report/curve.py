"""A score against one parameter, from results: runs that differ in nothing else are a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from sightline.errors import SightlineError
from sightline.settings import flatten, unknown
from train.evaluate.results import RunResult
from train.evaluate.sts import AVERAGE
from train.report.comparison import FoundRun, comparable
from train.report.table import Row, Table, differing, make_table

RUN = "run"
"""In place of a parameter: every run is a value of its own, such as a term that was left out."""


@dataclass(frozen=True)
class Point:
    """One run of a curve.

    Attributes:
        value: of the parameter, as in the results; None where it is null.
    """

    value: Any
    row: Row


@dataclass(frozen=True)
class Line:
    """Runs that differ only in the parameter: numbers ascending, then null; others as given."""

    label: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Curve:
    """A score against a parameter.

    Attributes:
        parameter: its full name, such as "objective.margin", or `RUN`.
        metric: name of the score.
        lines: in the order of their first runs.
        baseline: the run to compare with, which is on no line.
        notes: what a reader must know before trusting a figure.
    """

    parameter: str
    metric: str
    lines: tuple[Line, ...]
    baseline: Row | None = None
    notes: tuple[str, ...] = ()

    @property
    def points(self) -> list[Point]:
        """The points of all lines."""
        return [point for line in self.lines for point in line.points]

    @property
    def ordered(self) -> bool:
        """Whether the values are numbers, some perhaps null, so that a line makes sense."""
        values = [point.value for point in self.points if point.value is not None]
        return self.parameter != RUN and all(map(_is_number, values))


def curve_of(
    runs: Sequence[FoundRun], parameter: str, metric: str | None = None, baseline: str | None = None
) -> Curve:
    """The scores of ``runs`` against ``parameter``.

    Args:
        parameter: its full name in the results ("objective.margin"), the end of it ("margin") if
            only one has that, or `RUN`.
        metric: name of a score; None takes the average over tasks if there is one, otherwise the
            first score.
        baseline: name of the run among ``runs`` that is no point but a reference.
    """
    runs, left_out = comparable(runs)
    table = make_table([result for run in runs for result in run.results])
    rows = table.measured
    chosen = _metric(metric, table)
    varied = [run for run in runs if run.name != baseline]
    if not varied:
        raise SightlineError(f"{baseline} is the only run, and the baseline; name runs to draw")
    reference = None if baseline is None else rows[baseline]
    notes = (*left_out, *_notes(table, chosen))
    if parameter == RUN:
        names = dict.fromkeys(run.name for run in varied)
        points = tuple(Point(name, rows[name]) for name in names)
        return Curve(RUN, chosen, (Line("", points),), reference, notes)
    settings = {run.name: _settings(run.results[0]) for run in varied}
    name = _full_name(parameter, settings)
    _check_values(name, varied, settings)
    lines = []
    for label, members in _groups(name, settings):
        points = [Point(settings[run][name], rows[run]) for run in members]
        lines.append(Line(label, _sorted(name, points)))
    return Curve(name, chosen, tuple(lines), reference, notes)


def value_text(value: Any) -> str:
    """A parameter's value on one line, as in params.yaml; "not set" for null."""
    if value is None:
        return "not set"
    if isinstance(value, float):
        return f"{value:.12g}"
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def _metric(name: str | None, table: Table) -> str:
    if not table.tasks:
        raise SightlineError("these runs have no score that reports show; there is none to draw")
    if name is None:
        return AVERAGE if AVERAGE in table.tasks else table.tasks[0]
    if name not in table.tasks:
        raise SightlineError(unknown(name, table.tasks, "metric"))
    return name


def _settings(result: RunResult) -> dict[str, Any]:
    """Full name → value of every parameter, and the objective."""
    return {"objective": result.objective, **flatten(result.parameters)}


def _full_name(wanted: str, settings: Mapping[str, Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for values in settings.values() for name in values))
    if wanted in names:
        return wanted
    ends = [name for name in names if name.endswith(f".{wanted}")]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise SightlineError(
            f"{wanted!r} is the name of {len(ends)} parameters: {', '.join(ends)}; give one in full"
        )
    short_names = [name.rsplit(".", 1)[-1] for name in differing(settings.values())]
    raise SightlineError(f"{unknown(wanted, short_names, 'parameter')}, in which the runs differ")


def _check_values(
    name: str, runs: Sequence[FoundRun], settings: Mapping[str, Mapping[str, Any]]
) -> None:
    for run in runs:
        if name not in settings[run.name]:
            raise SightlineError(
                f"run {run.name!r} has no parameter {name}; leave it out, or give it as --baseline"
            )
        for file, result in zip(run.files, run.results, strict=True):
            if (value := _settings(result).get(name)) != settings[run.name][name]:
                first = value_text(settings[run.name][name])
                raise SightlineError(
                    f"{file}: {name} is {value_text(value)}, but {first} in {run.files[0]}; a run "
                    "has one value: train its seeds alike"
                )
    values = [value_text(each[name]) for each in settings.values()]
    if len(set(values)) == 1:
        raise SightlineError(
            f"{name} is {values[0]} in every run; a curve needs two values. "
            f"{_what_differs(settings.values())}"
        )


def _groups(
    name: str, settings: Mapping[str, Mapping[str, Any]]
) -> Iterable[tuple[str, list[str]]]:
    """Label of each line → its runs: those that agree in all other parameters."""
    groups: dict[str, list[str]] = {}
    common: dict[str, Mapping[str, Any]] = {}
    for run, values in settings.items():
        constant = {key: value for key, value in values.items() if key != name}
        key = json.dumps(constant, sort_keys=True, default=str)
        groups.setdefault(key, []).append(run)
        common[key] = constant
    if len(groups) == len(settings) > 1:
        raise SightlineError(
            f"no two runs differ in {name} alone, so there is no line to draw. "
            f"{_what_differs(settings.values())}"
        )
    labels = [_label(constant, list(common.values())) for constant in common.values()]
    return zip(labels, groups.values(), strict=True)


def _label(fixed: Mapping[str, Any], every: Sequence[Mapping[str, Any]]) -> str:
    """The objective; if another line has the same one, also the parameters that tell them apart."""
    objective = fixed["objective"]
    alike = [settings for settings in every if settings["objective"] == objective]
    told = [
        f"{key.rsplit('.', 1)[-1]} {value_text(fixed.get(key))}" for key in sorted(differing(alike))
    ]
    return ", ".join([str(objective), *told])


def _what_differs(settings: Iterable[Mapping[str, Any]]) -> str:
    names = differing(settings)
    return f"The runs differ in {', '.join(names)}" if names else "The runs have equal parameters"


def _sorted(name: str, points: list[Point]) -> tuple[Point, ...]:
    run_of: dict[str, str] = {}
    for point in points:
        first = run_of.setdefault(json.dumps(point.value, sort_keys=True), point.row.name)
        if first != point.row.name:
            raise SightlineError(
                f"runs {first!r} and {point.row.name!r} both have {name} "
                f"{value_text(point.value)} and differ in nothing else; leave one out"
            )
    numbers = [point for point in points if _is_number(point.value)]
    unset = [point for point in points if point.value is None]
    if len(numbers) + len(unset) < len(points):
        return tuple(points)
    return (*sorted(numbers, key=lambda point: point.value), *unset)


def _notes(table: Table, metric: str) -> Iterable[str]:
    if metric in table.lower_is_better:
        yield f"{metric}: lower is better"
    for row in table.measured.values():
        cell = row.cells[metric]
        if cell.mean is None:
            yield f"{row.name}: {metric} is not defined: {cell.reason}"
        elif len(row.seeds) == 1:
            yield f"{row.name} has one seed ({row.seeds[0]}), so no deviation"
        yield from (f"{row.name}: {mark}" for mark in row.marks)
    yield from table.notes


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
