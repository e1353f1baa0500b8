"""The table of a report: one row per run, mean ± sample standard deviation over its seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sightline.errors import SightlineError
from train.evaluate.results import RunResult, marks_of
from train.report.published import PublishedRow


@dataclass(frozen=True)
class Cell:
    """A score over seeds. `sd` (n − 1 in the denominator) is None for one seed.

    `mean` is None if a seed's score is not defined: never a mean over the others. `seeds` are the
    scores behind a mean, `by_seed` those of all seeds, defined or not.
    """

    mean: float | None
    sd: float | None
    seeds: tuple[float, ...] = ()
    reason: str = ""
    by_seed: tuple[float | None, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, unrounded."""
        body = asdict(self)
        del body["by_seed"]
        return body

    @property
    def text(self) -> str:
        """Such as "84.12 ± 0.31"."""
        if self.mean is None:
            return "not defined"
        return f"{self.mean:.2f}" if self.sd is None else f"{self.mean:.2f} ± {self.sd:.2f}"


@dataclass(frozen=True)
class Row:
    """One run over its seeds, a published row, or a reference.

    Attributes:
        published: the paper that the row is copied from.
        reference: whether it needs no run, such as chance or a frozen model.
        doubts: about imported features that it learned from.
    """

    name: str
    objective: str
    seeds: tuple[int, ...]
    cells: Mapping[str, Cell]
    untrained: tuple[str, ...] = ()
    published: str = ""
    code_accepted: bool = False
    reference: bool = False
    doubts: tuple[str, ...] = ()

    @property
    def measured(self) -> bool:
        """Whether it is a run: the other rows are compared with nothing."""
        return not self.published and not self.reference

    @property
    def seeds_text(self) -> str:
        """Such as "0, 1, 2"; empty for a row without a run."""
        return ", ".join(map(str, self.seeds))

    @property
    def undefined(self) -> dict[str, list[str]]:
        """Why scores are missing → the columns of those scores."""
        found: dict[str, list[str]] = {}
        for task, cell in self.cells.items():
            if cell.reason:
                found.setdefault(cell.reason, []).append(task)
        return found

    @property
    def marks(self) -> tuple[str, ...]:
        """What a reader must know before comparing this row with another."""
        marks = marks_of(bool(self.untrained), self.doubts, self.code_accepted)
        return (*marks, f"published: {self.published}") if self.published else marks

    @property
    def label(self) -> str:
        """The name with its marks in brackets."""
        return f"{self.name} ({'; '.join(self.marks)})" if self.marks else self.name

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, unrounded."""
        return {
            "run": self.name,
            "objective": self.objective,
            "seeds": list(self.seeds),
            "untrained_weights": list(self.untrained),
            "imported_features": list(self.doubts),
            "published": self.published or None,
            "reference": self.reference,
            "scores": {task: cell.to_json() for task, cell in self.cells.items()},
        }


@dataclass(frozen=True)
class Table:
    """Rows in the order of the runs' first results.

    Attributes:
        tasks: its columns.
        notes: warnings about rows.
        lower_is_better: columns whose best value is the lowest.
        titles: column → heading of its part; columns without one are in the first, untitled part.
    """

    tasks: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = field(default=())
    lower_is_better: frozenset[str] = frozenset()
    titles: Mapping[str, str] = field(default_factory=dict)

    @property
    def parts(self) -> list[tuple[str, Table]]:
        """The table in parts that fit a page, each with its heading; notes go with none."""
        tasks: dict[str, list[str]] = {}
        for task in self.tasks:
            tasks.setdefault(self.titles.get(task, ""), []).append(task)
        parts = []
        for title, own in tasks.items():
            rows = [row for row in self.rows if row.cells.keys() & set(own)]
            parts.append((title, replace(self, tasks=tuple(own), rows=tuple(rows), notes=())))
        return parts

    def best(self, task: str) -> float | None:
        """The best mean among the measured rows, or None if there is nothing to compare."""
        means = [
            cell.mean
            for row in self.rows
            if row.measured and (cell := row.cells.get(task)) and cell.mean is not None
        ]
        if len(means) < 2:
            return None
        return min(means) if task in self.lower_is_better else max(means)

    def to_json(self) -> dict[str, Any]:
        """Everything, unrounded."""
        return {
            "tasks": list(self.tasks),
            "rows": [row.to_json() for row in self.rows],
            "notes": list(self.notes),
        }


def make_table(results: Sequence[RunResult], published: Sequence[PublishedRow] = ()) -> Table:
    """The table of `results`: measured rows, then references, then published rows.

    Raises:
        SightlineError: no result, or one seed of a run twice.
    """
    if not results:
        raise SightlineError("no results to report; run the train and evaluate stages first")
    every = dict.fromkeys(task for result in results for task in result.scores)
    records = [record for result in results for record in result.tasks.values()]
    hidden = {metric for record in records for metric in record.hidden}
    tasks = tuple(task for task in every if task not in hidden)
    lower = frozenset(metric for record in records for metric in record.lower_is_better)
    titles = {metric: record.title for record in records for metric in record.metrics}
    runs: dict[str, list[RunResult]] = {}
    for result in results:
        runs.setdefault(result.run, []).append(result)
    rows = [_measured(name, members, tasks) for name, members in runs.items()]
    references, notes = _references(results, tasks)
    rows += [*references, *(_published(row, tasks) for row in published)]
    notes += [note for name, members in runs.items() for note in _doubts(name, members)]
    notes += _mixed_precisions(results)
    return Table(tasks, tuple(rows), tuple(notes), lower, titles)


def cell_of(values: Sequence[float]) -> Cell:
    """Mean and sample standard deviation of one value per seed."""
    sd = statistics.stdev(values) if len(values) > 1 else None
    return Cell(statistics.fmean(values), sd, tuple(values))


def flatten(parameters: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested parameters as {"train.learning_rate": 3e-5, …}."""
    flat: dict[str, Any] = {}
    for name, value in parameters.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def numbers_of(parameters: Mapping[str, Any]) -> dict[str, float]:
    """Those of the flattened parameters that are numbers."""
    return {
        name: float(value)
        for name, value in flatten(parameters).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _measured(name: str, members: list[RunResult], tasks: Sequence[str]) -> Row:
    members = sorted(members, key=lambda result: result.seed)
    seeds = tuple(result.seed for result in members)
    if len(set(seeds)) < len(seeds):
        twice = next(seed for seed in seeds if seeds.count(seed) > 1)
        raise SightlineError(
            f"run {name!r} has two results of seed {twice}; give each run and seed once"
        )
    untrained = dict.fromkeys(feature for result in members for feature in result.untrained)
    cells = {
        task: _cell(task, members)
        for task in tasks
        if any(task in result.scores for result in members)
    }
    accepted = any(result.code_accepted for result in members)
    doubts = dict.fromkeys(doubt for result in members for doubt in result.doubts)
    return Row(
        name,
        members[0].objective,
        seeds,
        cells,
        tuple(untrained),
        code_accepted=accepted,
        doubts=tuple(doubts),
    )


def _cell(task: str, members: list[RunResult]) -> Cell:
    by_seed = tuple(result.scores.get(task) for result in members)
    scores = tuple(score for score in by_seed if score is not None)
    if len(scores) < len(by_seed):
        first = members[by_seed.index(None)]
        why = first.reasons.get(task, "it was not evaluated")
        return Cell(None, None, reason=f"seed {first.seed}: {why}", by_seed=by_seed)
    return replace(cell_of(scores), by_seed=by_seed)


def _published(row: PublishedRow, tasks: Sequence[str]) -> Row:
    cells = {
        task: Cell(row.scores[task], row.std.get(task)) for task in tasks if task in row.scores
    }
    return Row(row.title, "", (), cells, published=row.source)


def _references(results: Sequence[RunResult], tasks: Sequence[str]) -> tuple[list[Row], list[str]]:
    """A row for each reference, and a note for each that results disagree on."""
    found: dict[str, dict[str, float]] = {}
    notes: dict[str, None] = {}
    for result in results:
        for name, values in result.references.items():
            own = found.setdefault(name, {})
            for metric, value in values.items():
                if own.setdefault(metric, value) != value:
                    notes[
                        f"results disagree on {name}, {metric} ({own[metric]:.2f} and "
                        f"{value:.2f}): features changed in between; evaluate all runs again"
                    ] = None
    rows = []
    for name, values in found.items():
        cells = {task: Cell(values[task], None) for task in tasks if task in values}
        if cells:
            rows.append(Row(name, "", (), cells, reference=True))
    return rows, list(notes)


def _mixed_precisions(results: Sequence[RunResult]) -> list[str]:
    """Runs of different precisions differ in more than what they were meant to compare."""
    found: dict[str, dict[str, None]] = {}
    for result in results:
        if result.training is not None and result.training.precision:
            found.setdefault(result.training.precision, {})[result.run] = None
    if len(found) < 2:
        return []
    of_each = "; ".join(f"{precision}: {', '.join(runs)}" for precision, runs in found.items())
    return [f"the runs were trained in different precisions ({of_each})"]


def _doubts(name: str, members: list[RunResult]) -> list[str]:
    """A mean over seeds is meaningful only if nothing but the seed differs."""
    said = (note for result in members for notes in result.notes.values() for note in notes)
    notes = [f"{name}: {note}" for note in dict.fromkeys(said)]
    flat = [flatten(result.parameters) for result in members]
    differing = sorted(
        key
        for key in set().union(*flat)
        if key.rsplit(".", 1)[-1] != "seed"
        and any(each.get(key) != flat[0].get(key) for each in flat)
    )
    if differing:
        notes.append(f"the seeds of {name} differ in parameters: {', '.join(differing)}")
    used = {
        tuple(sorted((feature.name, feature.fingerprint) for feature in result.features))
        for result in members
    }
    if len(used) > 1:
        notes.append(f"the seeds of {name} learned from different feature sets")
    return notes
