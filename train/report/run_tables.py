"""Results as tables: a row for each run, mean ± sample standard deviation over its seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from sightline.errors import SightlineError
from sightline.settings import flatten
from sightline.wording import in_bytes
from train.evaluate.results import RunResult
from train.records import RunSummary
from train.report.scores import mean_over, with_best
from train.report.tables import Cell, Column, Row, Table, form_of

T = TypeVar("T")


class Measured(NamedTuple):
    """What a training took or found: its value of a run, and how it is printed."""

    of: Callable[[RunSummary], float | None]
    form: Callable[[float], str]


TRAINING: Mapping[str, Measured] = {
    "minutes": Measured(
        lambda training: (training.seconds + training.saving_seconds) / 60, form_of(",.2f")
    ),
    "sentences/s": Measured(lambda training: training.sentences_per_second, form_of(",.0f")),
    "GPU memory": Measured(lambda training: _memory(training, gpu=True), in_bytes),
    "process memory": Measured(lambda training: _memory(training, gpu=False), in_bytes),
    "parameters": Measured(
        lambda training: training.trained_parameters or None,
        lambda count: f"{count / 1e6:,.2f} M",
    ),
    "steps": Measured(lambda training: training.steps, form_of(",.0f")),
    "best step": Measured(lambda training: training.best_step, form_of(",.0f")),
    "best dev": Measured(lambda training: training.best_dev, form_of(".2f")),
}
"""What a training took and found, by the name of its column."""
_SLOW = 100  # sentences a second below which a table prints a decimal


def make_table(results: Sequence[RunResult], published: Sequence[Row] = ()) -> Table:
    """The scores of `results`: runs in the order of their first results, references, published."""
    if not results:
        raise SightlineError("no results to report; run the train and evaluate stages first")
    of_tasks = [task for result in results for task in result.tasks.values()]
    hidden = {metric for task in of_tasks for metric in task.hidden}
    lower = {name for task in of_tasks for name in task.lower_is_better}
    parts = {metric: task.title for task in of_tasks for metric in task.scores}
    tasks = [
        task
        for task in dict.fromkeys(task for result in results for task in result.scores)
        if task not in hidden
    ]
    columns = tuple(
        Column(task, form_of(".2f"), "low" if task in lower else "high", parts.get(task, ""))
        for task in tasks
    )
    rows = [_row(name, members, tasks) for name, members in by_run(results).items()]
    references, _ = _references(results, tasks)
    return with_best(Table("Scores", "run", columns, (*rows, *references, *published)))


def notes_on_scores(results: Sequence[RunResult]) -> list[str]:
    """What a reader must know before comparing the rows of `make_table`."""
    runs = by_run(results)
    _, notes = _references(results, dict.fromkeys(t for result in results for t in result.scores))
    notes += _notes_of_tasks(runs)
    for task in dict.fromkeys(name for result in results for name in result.tasks):
        of_task = (flatten(r.tasks[task].settings) for r in results if task in r.tasks)
        if names := differing(of_task):
            notes.append(f"{task} was scored with different {', '.join(names)}: not comparable")
    notes += [note for name, members in runs.items() for note in _doubts(name, members)]
    # runs of different precisions differ in more than what they were meant to compare
    if precisions := _runs_with(results, lambda training: training.precision):
        notes.append(f"the runs were trained in different precisions ({precisions})")
    return notes


def undefined_in(row: Row) -> list[str]:
    """A line for each reason why scores of a run are not defined, with their tasks."""
    tasks: dict[str, list[str]] = {}
    for task, cell in row.cells.items():
        if cell.value is None and cell.hint:
            tasks.setdefault(cell.hint, []).append(task)
    return [f"{row.name}, {', '.join(names)}: not defined: {why}" for why, names in tasks.items()]


def training_table(results: Sequence[RunResult]) -> Table | None:
    """What training took: a row for each run that Sightline trained; None if there is none.

    A run has no cell for what was not measured in every seed. Peak memory is the largest over the
    seeds. Its marks are where it was trained; if that is the same for all, it is the table's title.
    """
    rows = []
    for name, members in by_run(
        result for result in results if result.training is not None
    ).items():
        cells = {}
        for column, measured in TRAINING.items():
            values = each_seed(members, measured.of)
            if values and "memory" in column:
                cells[column] = Cell(max(values), None, tuple(values))
            elif values:
                cell = mean_over(values)
                cells[column] = replace(cell, sd=cell.sd or None)  # most are alike in all seeds
        seeds = tuple(result.seed for result in members)
        rows.append(Row(name, cells, seeds=seeds, marks=_place(members), runs=(name,)))
    if not rows:
        return None
    title = "Training"
    if len({row.marks for row in rows}) == 1:
        title += "".join(f" ({place})" for place in rows[0].marks)
        rows = [replace(row, marks=()) for row in rows]
    forms = {name: measured.form for name, measured in TRAINING.items()}
    speeds = [cell.value for row in rows if (cell := row.cells.get("sentences/s"))]
    if any(speed is not None and speed < _SLOW for speed in speeds):
        forms["sentences/s"] = form_of(",.1f")
    columns = (Column(name, form) for name, form in forms.items())
    shown = tuple(column for column in columns if any(column.name in row.cells for row in rows))
    return Table(title, "run", shown, tuple(rows))


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
    return Row(
        name,
        cells,
        seeds=seeds,
        marks=tuple(marks),
        doubtful=doubtful,
        runs=(name,),
        parameters=shared,
    )


def _cell(task: str, members: list[RunResult]) -> Cell:
    seeds = tuple(result.scores.get(task) for result in members)
    if None not in seeds:
        return mean_over([score for score in seeds if score is not None])
    first = members[seeds.index(None)]
    why = first.reasons.get(task, "it was not evaluated")
    return Cell(seeds=seeds, hint=f"seed {first.seed}: {why}")


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


def _references(results: Sequence[RunResult], tasks: Iterable[str]) -> tuple[list[Row], list[str]]:
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
        cells = {task: Cell(values[task]) for task in tasks if task in values}
        if cells:
            rows.append(Row(name, cells, kind="reference", runs=(name,)))
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
        for note in (n for result in members for task in result.tasks.values() for n in task.notes):
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
