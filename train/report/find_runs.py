"""Finds the result files of runs named on the command line, and checks that they are comparable."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sightline.errors import SightlineError
from train.evaluate.results import FILE_NAME, RunResult, load_result
from train.report.mteb_results import MtebFolder

_SEEDS = "seed-*.json"


@dataclass(frozen=True)
class FoundRun:
    """One run: how it was given, its name, and its results with the file of each.

    Attributes:
        mteb: results that MTEB wrote; their `results` and `files` are one result and one folder.
    """

    given: str
    name: str
    files: tuple[Path, ...]
    results: tuple[RunResult, ...]
    mteb: MtebFolder | None = None


def find_run(given: str, root: Path) -> FoundRun:
    """The results of one run.

    Args:
        given: a run's name, a folder of result files, one result file, or a folder of results that
            MTEB wrote; a prefix `NAME=` renames the run.
        root: folder of the runs' results, one folder each.

    Raises:
        SightlineError: no such run (names the nearest), no result file, a damaged one, or results
            of more than one run in a folder.
    """
    label, source = "", given
    if "=" in given and not _place(given, root).exists():
        label, _, source = given.partition("=")
    place = _place(source, root)
    if source and place.is_dir() and not _results_in(place):
        mteb = MtebFolder.read(place)
        if mteb is not None:
            name = label or mteb.model
            result = mteb.result().model_copy(update={"run": name})
            return FoundRun(given, name, (mteb.path,), (result,), mteb)
    files = _files(source, root)
    results = [load_result(file) for file in files]
    names = list(dict.fromkeys(result.run for result in results))
    if len(names) > 1:
        raise SightlineError(
            f"{files[0].parent}: holds results of {len(names)} runs ({', '.join(names)}); "
            "expected one run per folder: name the result files individually"
        )
    if label:
        results = [result.model_copy(update={"run": label}) for result in results]
    return FoundRun(given, label or names[0], tuple(files), tuple(results))


def find_runs(
    given: Sequence[str], root: Path, baseline: str | None = None
) -> tuple[list[FoundRun], str]:
    """The requested runs, and the name of the baseline among them.

    Args:
        baseline: one of the runs, by its name or as it was given; any other run is found like
            these and put before them. None: the first.

    Raises:
        SightlineError: see `find_run`.
    """
    runs = [find_run(each, root) for each in given]
    if not runs:
        raise SightlineError("no run to compare; name at least one")
    if baseline is None:
        return runs, runs[0].name
    for run in runs:
        if baseline in (run.name, run.given):
            return runs, run.name
    first = find_run(baseline, root)
    return [first, *runs], first.name


def check_comparable(runs: Sequence[FoundRun]) -> None:
    """Refuse results that do not belong in one table.

    Raises:
        SightlineError: a run and seed given twice, or results scored on different tasks or on
            different test sets (names the files).
    """
    files: dict[tuple[str, int], Path] = {}
    every = [pair for run in runs for pair in zip(run.files, run.results, strict=True)]
    for file, result in every:
        other = files.setdefault((result.run, result.seed), file)
        if other is not file:
            raise SightlineError(
                f"run {result.run!r} has seed {result.seed} twice: {other} and {file}; give each "
                "run and seed once, or rename one of the two: NAME=PATH"
            )
    first_file, first = every[0]
    for file, result in every:
        if not result.scores:
            raise SightlineError(f"{file}: has no scores; run its evaluate stage again")
        if set(result.scores) != set(first.scores):
            raise SightlineError(
                f"{file} was scored on {', '.join(result.scores)}, but {first_file} on "
                f"{', '.join(first.scores)}; only runs with the same evaluation can be compared: "
                "run the evaluate stage of one again"
            )
    _check_test_sets(every)


def _check_test_sets(every: Sequence[tuple[Path, RunResult]]) -> None:
    seen: dict[str, tuple[Path, RunResult]] = {}
    for file, result in every:
        for task, found in result.evaluated_on.items():
            other_file, other = seen.setdefault(task, (file, result))
            expected = other.evaluated_on[task]
            if found.sha256 != expected.sha256:
                raise SightlineError(
                    f"{task} was scored on different test sets: {found.examples} examples (SHA-256 "
                    f"{found.sha256[:12]}) in {file}, {expected.examples} examples "
                    f"({expected.sha256[:12]}) in {other_file}; run the evaluate stage of one again"
                )


def _place(given: str, root: Path) -> Path:
    """Where the results are: a run's folder takes precedence over a path of the same name."""
    path = Path(given)
    is_name = len(path.parts) == 1 and path.parts[0] != ".."
    return root / given if is_name and (root / given).is_dir() else path


def _files(given: str, root: Path) -> list[Path]:
    path = _place(given, root)
    if given and path.is_dir():
        files = _results_in(path)
        if not files:
            raise SightlineError(
                f"{path}: no result file here; expected {_SEEDS}, {FILE_NAME} or MTEB's results"
                + _known([folder.name for folder in _run_folders(path)], "below it are the runs")
            )
        return files
    if path.suffix == ".json" and path.exists():
        return [path]
    known = [folder.name for folder in _run_folders(root)]
    found = "is a file, not a result (.json)" if path.is_file() else "is not a run, folder or file"
    nearest = difflib.get_close_matches(given, known, n=1)
    raise SightlineError(
        f"{given!r} {found}"
        + (f" (did you mean {nearest[0]!r}?)" if nearest else "")
        + (_known(known, f"{root} holds") or f"; {root} holds no results: evaluate a run first")
    )


def _results_in(folder: Path) -> list[Path]:
    return sorted(folder.glob(_SEEDS)) or sorted(folder.glob(FILE_NAME))


def _run_folders(root: Path) -> list[Path]:
    return sorted(
        {file.parent for file in (*root.glob(f"*/{_SEEDS}"), *root.glob("*/result.json"))}
    )


def _known(names: Sequence[str], what: str) -> str:
    return f"; {what} {', '.join(names)}" if names else ""
