"""The table of a report: one row per run, mean ± sample standard deviation over its seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from sightline.errors import SightlineError
from sightline.settings import flatten
from train.evaluate.results import RunResult
from train.records import RunSummary

T = TypeVar("T")

DECIMALS = 2
"""Of a score in a table."""
TRAINING: Mapping[str, Callable[[RunSummary], float | None]] = {
    "minutes": lambda training: (training.seconds + training.saving_seconds) / 60,
    "sentences/s": lambda training: training.sentences_per_second,
    "GPU memory": lambda training: _memory(training, gpu=True),
    "process memory": lambda training: _memory(training, gpu=False),
    "parameters": lambda training: training.trained_parameters or None,
    "steps": lambda training: training.steps,
    "best step": lambda training: training.best_step,
    "best dev": lambda training: training.best_dev,
}
"""What a training took and found, by the name of its column."""


@dataclass(frozen=True)
class Cell:
    """A score over seeds. `sd` (n − 1 in the denominator) is None for one seed.

    `mean` is None if a seed's score is not defined: never a mean over the others. `seeds` are the
    scores of all seeds, defined or not; empty for a row that is not a run.
    """

    mean: float | None
    sd: float | None
    seeds: tuple[float | None, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Row:
    """One run over its seeds, a published row, or a reference.

    Attributes:
        cells: column → score.
        marks: what a reader must know before comparing this row with another.
        doubtful: whether it learned from untrained weights or unchecked features.
        kind: a reference needs no run, such as chance or a frozen model; a published row is copied
            from a paper.
        parameters: of a run, "objective" and every flattened one in which its seeds agree.
    """

    name: str
    seeds: tuple[int, ...]
    cells: Mapping[str, Cell]
    marks: tuple[str, ...] = ()
    doubtful: bool = False
    kind: Literal["run", "reference", "published"] = "run"
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def measured(self) -> bool:
        """Whether it is a run: the other rows are compared with nothing."""
        return self.kind == "run"

    @property
    def label(self) -> str:
        """The name with its marks in brackets."""
        return f"{self.name} ({'; '.join(self.marks)})" if self.marks else self.name

    @property
    def undefined(self) -> dict[str, list[str]]:
        """Why scores are missing → the columns of those scores."""
        missing: dict[str, list[str]] = {}
        for task, cell in self.cells.items():
            if cell.reason:
                missing.setdefault(cell.reason, []).append(task)
        return missing


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
    notes: tuple[str, ...] = ()
    lower_is_better: tuple[str, ...] = ()
    titles: Mapping[str, str] = field(default_factory=dict)

    @property
    def measured(self) -> dict[str, Row]:
        """The runs, by name."""
        return {row.name: row for row in self.rows if row.measured}

    @property
    def parts(self) -> list[tuple[str, Table]]:
        """The table in parts that fit a page, each with its heading; notes go with none."""
        tasks: dict[str, list[str]] = {}
        for task in self.tasks:
            tasks.setdefault(self.titles.get(task, ""), []).append(task)
        parts = []
        for title, names in tasks.items():
            rows = [row for row in self.rows if row.cells.keys() & set(names)]
            parts.append((title, replace(self, tasks=tuple(names), rows=tuple(rows), notes=())))
        return parts

    def best(self, task: str) -> float | None:
        """The best mean among the runs, as a table prints it; None if they print only one."""
        cells = [row.cells[task] for row in self.measured.values() if task in row.cells]
        means = {round(cell.mean, DECIMALS) for cell in cells if cell.mean is not None}
        if len(means) < 2:
            return None
        return min(means) if task in self.lower_is_better else max(means)

    def is_best(self, row: Row, task: str) -> bool:
        """Whether a run prints the best mean; several may."""
        cell = row.cells.get(task)
        if not row.measured or cell is None or cell.mean is None:
            return False
        return round(cell.mean, DECIMALS) == self.best(task)


def make_table(results: Sequence[RunResult], published: Sequence[Row] = ()) -> Table:
    """The table of `results`: runs, then references, then published rows."""
    if not results:
        raise SightlineError("no results to report; run the train and evaluate stages first")
    every = dict.fromkeys(task for result in results for task in result.scores)
    of_tasks = [task for result in results for task in result.tasks.values()]
    hidden = {metric for task in of_tasks for metric in task.hidden}
    tasks = tuple(task for task in every if task not in hidden)
    lower = tuple(dict.fromkeys(name for task in of_tasks for name in task.lower_is_better))
    titles = {metric: task.title for task in of_tasks for metric in task.scores}
    runs = by_run(results)
    rows = [_row(name, members, tasks) for name, members in runs.items()]
    references, notes = _references(results, tasks)
    notes += _notes_of_tasks(runs)
    for task in dict.fromkeys(name for result in results for name in result.tasks):
        of_task = (flatten(r.tasks[task].settings) for r in results if task in r.tasks)
        if names := differing(of_task):
            notes.append(f"{task} was scored with different {', '.join(names)}: not comparable")
    notes += [note for name, members in runs.items() for note in _doubts(name, members)]
    # runs of different precisions differ in more than what they were meant to compare
    if precisions := _runs_with(results, lambda training: training.precision):
        notes.append(f"the runs were trained in different precisions ({precisions})")
    return Table(tasks, (*rows, *references, *published), tuple(notes), lower, titles)


def training_table(results: Sequence[RunResult]) -> Table | None:
    """What training took: a row for each run that Sightline trained; None if there is none.

    A run has no cell for what was not measured in every seed. Peak memory is the largest over the
    seeds. Its marks are where it was trained; if that is the same for all, it is the table's title.
    """
    rows = []
    for name, members in by_run(each for each in results if each.training is not None).items():
        cells = {}
        for column, value in TRAINING.items():
            values = each_seed(members, value)
            if values and "memory" in column:
                cells[column] = Cell(max(values), None, tuple(values))
            elif values:
                cell = cell_of(values)
                cells[column] = replace(cell, sd=cell.sd or None)  # most are alike in all seeds
        seeds = tuple(result.seed for result in members)
        rows.append(Row(name, seeds, cells, _place(members)))
    if not rows:
        return None
    columns = tuple(column for column in TRAINING if any(column in row.cells for row in rows))
    titles = dict.fromkeys(columns, "Training")
    if len({row.marks for row in rows}) == 1:
        places = rows[0].marks
        titles = dict.fromkeys(columns, f"Training ({places[0]})" if places else "Training")
        rows = [replace(row, marks=()) for row in rows]
    return Table(columns, tuple(rows), titles=titles)


def notes_on_training(results: Sequence[RunResult]) -> list[str]:
    """Which figures of different runs do not measure the same thing."""
    devices = _runs_with(results, _device)
    why = "minutes, sentences per second and memory are not comparable"
    return [f"the runs were trained on different devices ({devices}): {why}"] if devices else []


def by_run(results: Iterable[RunResult]) -> dict[str, list[RunResult]]:
    """Run → its results, by seed."""
    runs: dict[str, list[RunResult]] = {}
    for result in results:
        runs.setdefault(result.run, []).append(result)
    return {name: sorted(members, key=lambda result: result.seed) for name, members in runs.items()}


def each_seed(members: Sequence[RunResult], value: Callable[[RunSummary], T | None]) -> list[T]:
    """A value of the training of every seed; none at all if one lacks it: never of the others."""
    values = [None if result.training is None else value(result.training) for result in members]
    known_values = [value for value in values if value is not None]
    return known_values if len(known_values) == len(values) else []


def cell_of(values: Sequence[float]) -> Cell:
    """Mean and sample standard deviation of one value per seed."""
    sd = statistics.stdev(values) if len(values) > 1 else None
    return Cell(statistics.fmean(values), sd, tuple(values))


def differing(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    """The flattened parameters that do not have one value in all of ``settings``."""
    every, absent = list(settings), object()
    names = dict.fromkeys(name for values in every for name in values)
    return [
        name
        for name in names
        if any(values.get(name, absent) != every[0].get(name, absent) for values in every)
    ]


def numbers_of(parameters: Mapping[str, Any]) -> dict[str, float]:
    """Those of the flattened parameters that are numbers."""
    return {
        name: float(value)
        for name, value in flatten(parameters).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _row(name: str, members: list[RunResult], tasks: Sequence[str]) -> Row:
    seeds = tuple(result.seed for result in members)
    if len(set(seeds)) < len(seeds):
        twice = next(seed for seed in seeds if seeds.count(seed) > 1)
        raise SightlineError(
            f"run {name!r} has two results of seed {twice}; give each run and seed once"
        )
    cells = {
        task: _cell(task, members)
        for task in tasks
        if any(task in result.scores for result in members)
    }
    marks = dict.fromkeys(mark for result in members for mark in result.marks)
    features = [feature for result in members for feature in result.features]
    doubtful = any(feature.untrained or feature.doubt for feature in features)
    parameters = [{"objective": r.objective, **flatten(r.parameters)} for r in members]
    unlike = {*differing(parameters)}
    shared = {name: value for name, value in parameters[0].items() if name not in unlike}
    return Row(name, seeds, cells, tuple(marks), doubtful, parameters=shared)


def _cell(task: str, members: list[RunResult]) -> Cell:
    seeds = tuple(result.scores.get(task) for result in members)
    scores = [score for score in seeds if score is not None]
    if len(scores) < len(seeds):
        first = members[seeds.index(None)]
        why = first.reasons.get(task, "it was not evaluated")
        return Cell(None, None, seeds, f"seed {first.seed}: {why}")
    return cell_of(scores)


def _memory(training: RunSummary, gpu: bool) -> float | None:
    on_gpu = training.device not in ("cpu", "mps")
    return training.peak_memory_bytes if gpu == on_gpu else None


def _device(training: RunSummary) -> str | None:
    return training.processor or training.device or None


def _place(members: Sequence[RunResult]) -> tuple[str, ...]:
    """Such as ("NVIDIA A100-SXM4-80GB, bf16, 1 process",)."""

    def text(value: Callable[[RunSummary], str | None]) -> str:
        return " / ".join(dict.fromkeys(each_seed(members, value)))

    counts = text(lambda training: ", then ".join(map(str, training.processes)) or None)
    processes = counts and f"{counts} {'process' if counts == '1' else 'processes'}"
    parts = [text(_device), text(lambda training: training.precision or None), processes]
    place = ", ".join(part for part in parts if part)
    return (place,) if place else ()


def _references(results: Sequence[RunResult], tasks: Sequence[str]) -> tuple[list[Row], list[str]]:
    """A row for each reference, and a note for each that results disagree on."""
    scores: dict[str, dict[str, float]] = {}
    notes: dict[str, None] = {}
    references = (task.references for result in results for task in result.tasks.values())
    for of_task in references:
        for name, values in of_task.items():
            of_name = scores.setdefault(name, {})
            for metric, value in values.items():
                if of_name.setdefault(metric, value) != value:
                    notes[
                        f"results disagree on {name}, {metric} ({of_name[metric]:.2f} and "
                        f"{value:.2f}): features changed in between; evaluate all runs again"
                    ] = None
    rows = []
    for name, values in scores.items():
        cells = {task: Cell(values[task], None) for task in tasks if task in values}
        if cells:
            rows.append(Row(name, (), cells, kind="reference"))
    return rows, list(notes)


def _runs_with(results: Sequence[RunResult], value: Callable[[RunSummary], str | None]) -> str:
    """Such as "fp32: simcse; bf16: mcse"; empty if all have one value."""
    runs: dict[str, list[str]] = {}
    for name, members in by_run(results).items():
        for text in dict.fromkeys(each_seed(members, value)):
            runs.setdefault(text, []).append(name)
    texts = (f"{text}: {', '.join(names)}" for text, names in runs.items())
    return "; ".join(texts) if len(runs) > 1 else ""


def _notes_of_tasks(runs: Mapping[str, Sequence[RunResult]]) -> list[str]:
    """The notes of results, each once, with the runs that it is about."""
    runs_of: dict[str, dict[str, None]] = {}
    for name, members in runs.items():
        for note in (n for each in members for task in each.tasks.values() for n in task.notes):
            runs_of.setdefault(note, {})[name] = None
    return [
        f"{'all runs' if len(names) == len(runs) > 1 else ', '.join(names)}: {note}"
        for note, names in runs_of.items()
    ]


def _doubts(name: str, members: list[RunResult]) -> list[str]:
    """A mean over seeds is meaningful only if nothing but the seed differs."""
    notes = []
    names = differing(flatten(result.parameters) for result in members)
    if names := sorted(key for key in names if key.rsplit(".", 1)[-1] != "seed"):
        notes.append(f"the seeds of {name} differ in parameters: {', '.join(names)}")
    used = {
        tuple(sorted((feature.name, feature.fingerprint) for feature in result.features))
        for result in members
    }
    if len(used) > 1:
        notes.append(f"the seeds of {name} learned from different feature sets")
    return notes
