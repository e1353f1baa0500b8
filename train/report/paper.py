"""A table or figure of a paper with what was measured beside it, as a document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sightline.settings import flatten
from sightline.wording import counted
from train.evaluate.geometry import GEOMETRY
from train.evaluate.result_files import result_folder, results_in
from train.evaluate.results import RunResult, TaskResult
from train.evaluate.retrieval import METRICS as RETRIEVAL
from train.evaluate.sts import EXPECTED_PAIRS
from train.evaluate.transfer import EXPECTED_EXAMPLES
from train.report import published
from train.report.found_runs import comparable, find_run
from train.report.mteb_results import places_of_results
from train.report.published import BEST_DEV, MINUTES, Entry, PaperRow
from train.report.run_tables import TRAINING, make_table, notes_on_scores, numbers_of
from train.report.tables import (
    SIGN,
    Cell,
    Column,
    Document,
    Row,
    Section,
    Table,
    form_of,
    number,
    row_to_json,
)
from train.run_spec import OF_THE_MACHINE

SCHEMA = "sightline.paper/3"
_NOT_COMPARED = {
    *(f"train.{name}" for name in OF_THE_MACHINE),
    *("train.compile", "train.chunk"),  # draw other dropout masks, as another seed does
    "student.model",  # may be a folder; the student's name is compared
    "student.revision",
}
"""Parameters that a configuration may set otherwise than the run that is compared."""
_EXAMPLES: Mapping[str, int] = {
    **EXPECTED_PAIRS,
    **dict.fromkeys(GEOMETRY, 1500),  # pairs of STS-B dev
    **{task: sum(splits.values()) for task, splits in EXPECTED_EXAMPLES.items()},
    **dict.fromkeys(RETRIEVAL, 5_000),  # captions of Flickr30k's 1,000 test images
}
"""Metric → examples of the published test set."""
_OF_COCO = _EXAMPLES | dict.fromkeys(RETRIEVAL, 25_000)
"""The same of a model that learned from COCO: captions of its 5,000 test images."""
_DEV_SET = "STS-B dev"
_OF_MTEB = "scored by mteb, which does not record the training"


@dataclass(frozen=True)
class ExpectedRun:
    """What a configuration trains under the name of a run.

    Attributes:
        parameters: ``objective``, ``student`` and ``train``, as results have them.
        data: stream → name of its data set.
    """

    parameters: Mapping[str, Any]
    data: Mapping[str, str]


@dataclass(frozen=True)
class ComparedRow:
    """A published row with what was measured of it, or what its configuration sets.

    Attributes:
        published: the paper's.
        seeds: that the published score is a mean over; None if the paper does not say.
        measured: the run over its seeds, or the configuration's numbers; None: `why_not`.
        marks: what a reader must know before comparing the two.
        differences: column → measured minus published, and whether that is within one published
            deviation; None where no deviation is printed or the two are not comparable.
        why_not: why nothing is beside it.
        notes: of the table of its seeds; results of the run's name, of another training.
    """

    published: PaperRow
    seeds: int | None
    measured: Row | None = None
    marks: tuple[str, ...] = ()
    differences: Mapping[str, tuple[float, bool | None]] = field(default_factory=dict)
    why_not: str = ""
    notes: tuple[str, ...] = ()

    def cell(self, column: published.Column) -> Cell | None:
        """What is shown below the published value of a column."""
        metric = column.metric
        return None if self.measured is None else self.measured.cells.get(metric)


def compare_entry(
    entry: Entry, roots: Sequence[Path], expected: Callable[[str, str], ExpectedRun]
) -> list[ComparedRow]:
    """Put what was measured beside every row of an entry.

    Args:
        roots: folders of results, each with one folder per run. A row takes its run from the one
            where it is its training or comes nearest.
        expected: (configuration, run) → what it trains.
    """
    rows = []
    for row in entry.rows:
        training = expected(row.configuration, row.run) if row.configuration else None
        compared = ComparedRow(row, entry.seeds_of(row), why_not=row.reason)
        if entry.kind == "settings" and training is not None:
            numbers = numbers_of(training.parameters)
            cells = {name: Cell(value) for name, value in numbers.items()}
            settings = Row(row.title, cells)
            compared = _judged(replace(compared, measured=settings), entry, comparable=False)
        elif not row.reason:
            compared = _measured(compared, entry, roots, training)
        rows.append(compared)
    return rows


def document_of(entry: Entry, rows: Sequence[ComparedRow], **fields: object) -> Document:
    """For each row what is published, what was measured, and the difference.

    Args:
        fields: for the JSON.
    """
    heading = "configuration" if entry.kind == "settings" else "run"
    columns = (Column("seeds"), *(Column(column.name, _form(column)) for column in entry.columns))
    title = f"{entry.id}: {entry.shows}"
    lines = tuple(line for row in rows for line in _lines(entry, row))
    tables = (Table(title, heading, columns, lines),) if rows else ()
    about = {"id", "kind", "shows", "printed", "notes"}
    data = {
        **entry.model_dump(mode="json", include=about),
        "columns": [column.name for column in entry.columns],
        "rows": [
            {**vars(row), "measured": row.measured and row_to_json(row.measured)} for row in rows
        ],
        **fields,
    }
    return Document(title, SCHEMA, (Section(title, tables, notes=_legend(entry, rows)),), data)


def _legend(entry: Entry, rows: Sequence[ComparedRow]) -> tuple[str, ...]:
    """What the paper says in words, the meaning of marks, and notes."""
    runs = [row for row in rows if row.measured is not None and row.measured.seeds]
    cells = [row.cell(column) for row in runs for column in entry.columns]
    lines = [f"In the paper: {sentence}." for sentence in entry.printed]
    if any(cell is not None and cell.sd is not None for cell in cells):
        lines.append("Mean ± sample standard deviation over seeds.")
    if any(row.published.scores for row in runs):
        lines.append("Difference: measured − published.")
    if any(row.published.std for row in runs):
        lines.append("Within, beyond: one published deviation, where the two are comparable.")
    if any(row.published.significant for row in rows):
        lines.append(f"{SIGN} significant in the paper.")
    notes = dict.fromkeys(note for row in rows for note in row.notes)
    return (*lines, *(f"Note: {note}." for note in (*entry.notes, *notes)))


def _lines(entry: Entry, row: ComparedRow) -> list[Row]:
    """A row for what is published, for what was measured, and for the difference."""
    paper, lines = row.published, []
    runs, under = (paper.run,), bool(paper.scores)
    if paper.scores:
        cells = {
            name: Cell(score, paper.std.get(name), significant=name in paper.significant)
            for name, score in paper.scores.items()
        }
        cells["seeds"] = Cell(text="" if row.seeds is None else counted(row.seeds, "seed"))
        lines.append(Row(paper.title, cells, kind="published", runs=runs))
    if row.measured is None:
        label, marks = (row.why_not, ()) if under else (paper.title, (row.why_not,))
        return [*lines, Row(label, {}, kind="detail", marks=marks, runs=runs, under=under)]
    cells = {
        column.name: cell for column in entry.columns if (cell := row.cell(column)) is not None
    }
    cells["seeds"] = Cell(text=", ".join(map(str, row.measured.seeds)))
    kind = "configured" if entry.kind == "settings" else "measured"
    measured = Row(
        kind if under else paper.title,
        cells,
        marks=row.marks,
        doubtful=row.measured.doubtful,
        runs=runs,
        under=under,
    )
    lines.append(measured)
    if row.differences:
        cells = {
            column.name: _difference(column, *row.differences[column.name])
            for column in entry.columns
            if column.name in row.differences
        }
        lines.append(Row("difference", cells, kind="detail", runs=runs, under=True))
    return lines


def _form(column: published.Column) -> Callable[[float], str]:
    return form_of("g" if column.is_setting else f".{column.decimals}f")


def _difference(column: published.Column, value: float, within: bool | None) -> Cell:
    if column.is_setting:
        return Cell(text="equal" if abs(value) < 1e-12 else "differs")
    judged = {None: "", True: "within", False: "beyond"}[within]
    text = number(value, f"+.{column.decimals}f")
    return Cell(value, text=text, second=judged, strong=within is False)


def _measured(
    compared: ComparedRow, entry: Entry, roots: Sequence[Path], expected: ExpectedRun | None
) -> ComparedRow:
    """With its run, in the folder where it is its training or comes nearest.

    Args:
        expected: what its configuration trains; None for a model that is not trained.
    """
    candidates: list[tuple[list[str], list[RunResult]]] = []
    unrelated = []
    for root in roots:
        folder = result_folder(root, compared.published.run)
        of_ours = bool(results_in(folder))
        if not of_ours and not places_of_results(folder):
            continue
        (run,), _ = comparable([find_run(compared.published.run, root)])
        if not of_ours:
            candidates.append(([_OF_MTEB], list(run.results)))
        elif why := _another_training(run.results, expected):
            unrelated.append(f"{folder} {why}")
        else:
            settings = _other_settings(run.results, expected)
            candidates.append((settings, list(run.results)))
    if not candidates:
        why = "not run; other training found" if unrelated else "not run"
        return replace(compared, why_not=why, notes=tuple(unrelated))
    settings, results = min(candidates, key=lambda candidate: len(candidate[0]))
    whole = [_with_more_metrics(result) for result in results]
    (row,) = make_table(whole).measured.values()
    metrics = [column.metric for column in entry.columns]
    examples = _OF_COCO if compared.published.data.endswith("coco") else _EXAMPLES
    differs = [*settings, *_other_tests(metrics, results, examples)]
    marks = [*row.marks, *differs]
    if compared.seeds not in (None, len(row.seeds)):
        marks.append(f"{counted(len(row.seeds), 'seed')}, published {compared.seeds}")
    if MINUTES in metrics:
        devices = (result.training.device for result in results if result.training is not None)
        marks += [f"on {device}" for device in dict.fromkeys(devices) if device]
    if unscored := [metric for metric in metrics if metric not in row.cells]:
        marks.append(compared.published.note or f"no score of {', '.join(unscored)}")
    fields = {"measured": row, "marks": tuple(marks), "notes": tuple(notes_on_scores(whole))}
    return _judged(replace(compared, **fields), entry, comparable=not (differs or row.doubtful))


def _judged(compared: ComparedRow, entry: Entry, *, comparable: bool) -> ComparedRow:
    """With its differences, which are judged if they are comparable."""
    differences: dict[str, tuple[float, bool | None]] = {}
    for column in entry.columns:
        cell, printed = compared.cell(column), compared.published.scores.get(column.name)
        if cell is None or cell.value is None or printed is None:
            continue
        value, deviation = cell.value - printed, compared.published.std.get(column.name)
        judged = comparable and deviation is not None
        # an exact deviation is within
        within = abs(value) <= (deviation or 0.0) + 1e-9 if judged else None
        differences[column.name] = value, within
    return replace(compared, differences=differences)


def _another_training(results: Sequence[RunResult], expected: ExpectedRun | None) -> str:
    """What results of the same name are of, if not of the expected training; else empty."""
    for result in results:
        if expected is None or result.training is None:
            if (result.training is None) != (expected is None):
                return "is not a training" if result.training is None else "is a training"
            continue
        student, data = result.training.student["name"], result.training.data_sets
        if student != expected.parameters["student"]["name"] or data != dict(expected.data):
            streams = " and ".join(f"{name} ({stream})" for stream, name in data.items())
            return f"is {student} trained on {streams}"
    return ""


def _with_more_metrics(result: RunResult) -> RunResult:
    """The result with its settings, and what its training took and found, among its scores."""
    scores: dict[str, float | None] = {**numbers_of(result.parameters)}
    for metric in (BEST_DEV, MINUTES):
        value = None if result.training is None else TRAINING[metric].of(result.training)
        scores |= {} if value is None else {metric: value}
    return result.model_copy(update={"tasks": {**result.tasks, "": TaskResult(scores=scores)}})


def _other_settings(results: Sequence[RunResult], expected: ExpectedRun | None) -> list[str]:
    """Parameters that the configuration sets otherwise."""
    if expected is None:
        return []
    planned = flatten(expected.parameters)
    unlike: dict[str, None] = {}
    for result in results:
        trained = flatten(result.parameters)
        for key in planned.keys() & trained.keys() - _NOT_COMPARED:
            if trained[key] != planned[key]:
                unlike[f"{key} {trained[key]}, not {planned[key]}"] = None
    return sorted(unlike)


def _other_tests(
    metrics: Sequence[str], results: Sequence[RunResult], examples: Mapping[str, int]
) -> list[str]:
    """Test sets of another size than those of the papers, and means over other tasks."""
    unlike: list[str] = []
    for metric in (name for name in metrics if name in examples):
        sizes = {e.evaluated_on[metric].examples for e in results if metric in e.evaluated_on}
        unlike += [
            f"{metric} on {size} examples, not {examples[metric]}"
            for size in sizes - {None, examples[metric]}
        ]
    if BEST_DEV in metrics:
        names = {result.training.dev for result in results if result.training is not None}
        unlike += [f"dev set {name}, not {_DEV_SET}" for name in names - {None, _DEV_SET}]
    lacking = [task for task in EXPECTED_PAIRS if task not in results[0].scores]
    if "Avg" in metrics and "Avg" in results[0].scores and lacking:
        unlike.append(f"Avg without {', '.join(lacking)}")
    return sorted(unlike)
