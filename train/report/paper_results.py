"""Finds the measured results of a paper's rows, and says what they cannot be compared in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train.evaluate.sts import EXPECTED_PAIRS
from train.report.find_runs import check_comparable, find_run
from train.report.papers import BEST_DEV, MINUTES, Column, PaperRow
from train.report.results import NOT_TRAINED, RunResult
from train.report.table import Row, flatten, make_table

_OF_THE_MACHINE = {
    "train.device",
    "train.device_cache",
    "train.compile",
    "train.chunk",
    "train.eval_batch_size",
    "train.logging_steps",
    "train.save_steps",
    "train.keep_last",
    "student.model",  # may be a folder; the student's name is compared
}
"""Parameters that change no score beyond rounding."""


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
class MeasuredRun:
    """What was measured for a row, over its seeds.

    Attributes:
        row: metric → mean and deviation, with the marks that every report shows.
        folder: of the result files; empty if there are none.
        differs: why it is not the published training or test, if it is not.
        why_not: why there is nothing; `others`: results of the run's name, of another training.
        notes: of the table of its seeds.
        devices: that it was trained on.
    """

    row: Row | None = None
    folder: str = ""
    differs: tuple[str, ...] = ()
    why_not: str = ""
    others: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()

    @property
    def comparable(self) -> bool:
        """Whether a difference can be judged."""
        row = self.row
        return row is not None and not (self.differs or row.untrained or row.doubts)


@dataclass
class ResultFolders:
    """Folders of results, each with one folder per run; every run is read once."""

    roots: Sequence[Path]
    _read: dict[Path, list[RunResult]] = field(default_factory=dict)

    def measured(
        self, row: PaperRow, columns: Sequence[Column], expected: ExpectedRun | None
    ) -> MeasuredRun:
        """The results of a row: those of its run in the first folder where they are its training.

        Args:
            expected: what its configuration trains; None for a model that is not trained.

        Raises:
            SightlineError: a result file is damaged, or its seeds were scored on different tests.
        """
        others = []
        for root in self.roots:
            results = self._results(root / row.run, root)
            if not results:
                continue
            if why := _another_training(results, expected):
                others.append(f"{root / row.run} {why}")
                continue
            return _measured(row, columns, expected, results, str(root / row.run))
        why = "not run; other training found" if others else "not run"
        return MeasuredRun(why_not=why, others=tuple(others))

    def _results(self, folder: Path, root: Path) -> list[RunResult]:
        if folder not in self._read:
            there = any(folder.glob("seed-*.json")) or (folder / "result.json").is_file()
            found = find_run(folder.name, root) if there else None
            if found is not None:
                check_comparable([found])
            self._read[folder] = [] if found is None else list(found.results)
        return self._read[folder]


def _another_training(results: Sequence[RunResult], expected: ExpectedRun | None) -> str:
    """What results of the same name are of, if not of the expected training; else empty."""
    first = results[0]
    if expected is None:
        return "" if first.objective == NOT_TRAINED else "is a training"
    if first.objective == NOT_TRAINED:
        return "is not a training"
    student = first.parameters.get("student", {}).get("name")
    data = _data_of(first)
    wanted = expected.parameters["student"]["name"]
    if student in (None, wanted) and (not data or data == dict(expected.data)):
        return ""
    trained_on = " and ".join(f"{name} ({stream})" for stream, name in data.items())
    return f"is {student or 'a student'} trained on {trained_on or 'data that it does not name'}"


def _data_of(result: RunResult) -> dict[str, str]:
    """Stream → name of its data set; empty if the result does not say."""
    places = {stream: Path(source) for stream, source in result.trained_on.items()}
    return {s: path.parent.name if path.suffix else path.name for s, path in places.items()}


def _measured(
    row: PaperRow,
    columns: Sequence[Column],
    expected: ExpectedRun | None,
    results: Sequence[RunResult],
    folder: str,
) -> MeasuredRun:
    table = make_table([_with_more_metrics(each) for each in results])
    differs = [] if expected is None else [*_other_settings(results, expected)]
    if expected is not None and any(not each.trained_on for each in results):
        differs.append("does not say what it was trained on; evaluate it again")
    differs += _other_tests(row, columns, results)
    trained = [each.training for each in results if each.training is not None]
    devices = dict.fromkeys(each.device for each in trained if each.device)
    measured = next(each for each in table.rows if each.measured)
    return MeasuredRun(measured, folder, tuple(differs), notes=table.notes, devices=tuple(devices))


def _with_more_metrics(result: RunResult) -> RunResult:
    """The result with its settings, best dev score and minutes among its scores."""
    more: dict[str, float | None] = {
        name: float(value)
        for name, value in flatten(result.parameters).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    training = result.training
    if training is not None and training.best_dev is not None:
        more[BEST_DEV] = training.best_dev
    if training is not None and training.seconds is not None:
        more[MINUTES] = training.seconds / 60
    return result.model_copy(update={"scores": {**result.scores, **more}})


def _other_settings(results: Sequence[RunResult], expected: ExpectedRun) -> list[str]:
    """Parameters that the configuration sets otherwise."""
    wanted = flatten(expected.parameters)
    found: dict[str, None] = {}
    for result in results:
        own = flatten(result.parameters)
        for key in wanted.keys() & own.keys() - _OF_THE_MACHINE:
            if own[key] != wanted[key]:
                found[f"{key} {own[key]}, not {wanted[key]}"] = None
    return sorted(found)


def _other_tests(
    row: PaperRow, columns: Sequence[Column], results: Sequence[RunResult]
) -> list[str]:
    """Test sets of another size than those of the papers, and means over other tasks."""
    metrics = {row.prefix + column.metric for column in columns}
    silent = any(not each.evaluated_on for each in results)
    found = ["does not say what it was tested on; evaluate it again"] if silent else []
    for metric in EXPECTED_PAIRS.keys() & metrics:
        sizes = {e.evaluated_on[metric].examples for e in results if metric in e.evaluated_on}
        found += [
            f"{metric} on {size} pairs, not {EXPECTED_PAIRS[metric]}"
            for size in sizes - {EXPECTED_PAIRS[metric]}
        ]
    lacking = [task for task in EXPECTED_PAIRS if task not in results[0].scores]
    if "Avg" in metrics & results[0].scores.keys() and lacking:
        found.append(f"Avg without {', '.join(lacking)}")
    return sorted(found)
