"""Finds the measured results of a paper's rows, and says what they cannot be compared in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train.evaluate.geometry import GEOMETRY
from train.evaluate.retrieval import METRICS as RETRIEVAL
from train.evaluate.sts import EXPECTED_PAIRS
from train.evaluate.transfer import EXPECTED_EXAMPLES
from train.report.find_runs import check_comparable, find_run
from train.report.papers import BEST_DEV, MINUTES, Column, PaperRow
from train.report.results import NOT_TRAINED, RunResult
from train.report.table import Row, flatten, make_table, numbers_of
from train.run_spec import OF_THE_MACHINE

_NOT_COMPARED = {
    *(f"train.{name}" for name in OF_THE_MACHINE),
    *("train.compile", "train.chunk"),  # draw other dropout masks, as another seed does
    "student.model",  # may be a folder; the student's name is compared
}
"""Parameters that a configuration may set otherwise than the run that is compared."""
_EXAMPLES: Mapping[str, int] = {
    **EXPECTED_PAIRS,
    **dict.fromkeys(GEOMETRY[:2], 1500),  # pairs of STS-B dev
    **{task: sum(splits.values()) for task, splits in EXPECTED_EXAMPLES.items()},
    **dict.fromkeys(RETRIEVAL, 5_000),  # captions of Flickr30k's 1,000 test images
    **{f"coco-5k: {metric}": 25_000 for metric in RETRIEVAL},
}
"""Metric → examples of the published test set."""
_DEV_SET = "STS-B dev"


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
        unscored: metrics of the row that it has no score of.
        notes: of the table of its seeds.
        devices: that it was trained on.
    """

    row: Row | None = None
    folder: str = ""
    differs: tuple[str, ...] = ()
    why_not: str = ""
    others: tuple[str, ...] = ()
    unscored: tuple[str, ...] = ()
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
        """The results of a row: its run, in the folder where it is its training or comes nearest.

        Args:
            expected: what its configuration trains; None for a model that is not trained.

        Raises:
            SightlineError: a result file is damaged, or its seeds were scored on different tests.
        """
        found: list[tuple[list[str], Path, list[RunResult]]] = []
        others = []
        for folder in (root / row.run for root in self.roots):
            if not (results := self._results(folder)):
                continue
            if why := _another_training(results, expected):
                others.append(f"{folder} {why}")
            else:
                found.append((_other_settings(results, expected), folder, results))
        if not found:
            why = "not run; other training found" if others else "not run"
            return MeasuredRun(why_not=why, others=tuple(others))
        settings, folder, results = min(found, key=lambda each: len(each[0]))
        return _measured(row, columns, settings, results, folder)

    def _results(self, folder: Path) -> list[RunResult]:
        if folder not in self._read:
            there = any(folder.glob("seed-*.json")) or (folder / "result.json").is_file()
            found = find_run(folder.name, folder.parent) if there else None
            if found is not None:
                check_comparable([found])
            self._read[folder] = [] if found is None else list(found.results)
        return self._read[folder]


def _another_training(results: Sequence[RunResult], expected: ExpectedRun | None) -> str:
    """What results of the same name are of, if not of the expected training; else empty."""
    for result in results:
        trained = result.objective != NOT_TRAINED
        if expected is None or not trained:
            if trained == (expected is None):
                return "is a training" if trained else "is not a training"
            continue
        student, data = result.parameters.get("student", {}).get("name"), _data_of(result)
        wanted = expected.parameters["student"]["name"]
        if student not in (None, wanted) or (data and data != dict(expected.data)):
            named = " and ".join(f"{name} ({stream})" for stream, name in data.items())
            trained_on = named or "data that it does not name"
            return f"is {student or 'a student'} trained on {trained_on}"
    return ""


def _data_of(result: RunResult) -> dict[str, str]:
    """Stream → name of its data set; empty if the result does not say."""
    places = {stream: Path(source) for stream, source in result.trained_on.items()}
    return {s: path.parent.name if path.suffix else path.name for s, path in places.items()}


def _measured(
    row: PaperRow,
    columns: Sequence[Column],
    settings: Sequence[str],
    results: Sequence[RunResult],
    folder: Path,
) -> MeasuredRun:
    table = make_table([_with_more_metrics(each) for each in results])
    measured = next(each for each in table.rows if each.measured)
    metrics = [row.prefix + column.metric for column in columns]
    differs = [*settings]
    if any(each.objective != NOT_TRAINED and not each.trained_on for each in results):
        differs.append("does not say what it was trained on; evaluate it again")
    differs += _other_tests(metrics, results)
    trained = [each.training for each in results if each.training is not None]
    return MeasuredRun(
        measured,
        str(folder),
        tuple(differs),
        unscored=tuple(metric for metric in metrics if metric not in measured.cells),
        notes=table.notes,
        devices=tuple(dict.fromkeys(each.device for each in trained if each.device)),
    )


def _with_more_metrics(result: RunResult) -> RunResult:
    """The result with its settings, best dev score and minutes among its scores."""
    more: dict[str, float | None] = {**numbers_of(result.parameters)}
    training = result.training
    if training is not None and training.best_dev is not None:
        more[BEST_DEV] = training.best_dev
    if training is not None and training.seconds is not None:
        more[MINUTES] = training.seconds / 60
    return result.model_copy(update={"scores": {**result.scores, **more}})


def _other_settings(results: Sequence[RunResult], expected: ExpectedRun | None) -> list[str]:
    """Parameters that the configuration sets otherwise."""
    if expected is None:
        return []
    wanted = flatten(expected.parameters)
    found: dict[str, None] = {}
    for result in results:
        own = flatten(result.parameters)
        for key in wanted.keys() & own.keys() - _NOT_COMPARED:
            if own[key] != wanted[key]:
                found[f"{key} {own[key]}, not {wanted[key]}"] = None
    return sorted(found)


def _other_tests(metrics: Sequence[str], results: Sequence[RunResult]) -> list[str]:
    """Test sets of another size than those of the papers, and means over other tasks."""
    silent = any(not each.evaluated_on for each in results)
    found = ["does not say what it was tested on; evaluate it again"] if silent else []
    for metric in (each for each in metrics if each in _EXAMPLES):
        sizes = {e.evaluated_on[metric].examples for e in results if metric in e.evaluated_on}
        found += [
            f"{metric} on {size} examples, not {_EXAMPLES[metric]}"
            for size in sizes - {None, _EXAMPLES[metric]}
        ]
    if BEST_DEV in metrics:
        names = {each.training.dev_metric for each in results if each.training is not None}
        found += [f"dev set {name}, not {_DEV_SET}" for name in names - {"", _DEV_SET}]
    lacking = [task for task in EXPECTED_PAIRS if task not in results[0].scores]
    if "Avg" in metrics and "Avg" in results[0].scores and lacking:
        found.append(f"Avg without {', '.join(lacking)}")
    return sorted(found)
