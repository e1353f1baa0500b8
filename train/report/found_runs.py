"""Which runs a person means: finds their results, and checks that they are comparable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sightline.errors import SightlineError
from sightline.settings import unknown
from train.evaluate.result_files import SEEDS, result_folder, results_in, run_of
from train.evaluate.results import FILE_NAME, EvaluationSet, RunResult, load_result
from train.report.mteb_results import mteb_result


@dataclass(frozen=True)
class FoundRun:
    """One run: its name, and its results with the file of each; of MTEB's, with their folder."""

    name: str
    files: tuple[Path, ...]
    results: tuple[RunResult, ...]


def find_run(word: str, root: Path) -> FoundRun:
    """The results of one run.

    Args:
        word: a run's name, a folder of result files, one result file, or a folder of results that
            MTEB wrote; a prefix `NAME=` renames the run.
        root: folder of the runs' results, one folder each.
    """
    label, source = "", word
    if "=" in word and not _place(word, root).exists():
        label, _, source = word.partition("=")
    place = _place(source, root)
    of_others = source and place.is_dir() and not results_in(place)
    if of_others and (match := mteb_result(place, label)) is not None:
        folder, result = match
        return FoundRun(result.run, (folder,), (result,))
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
    return FoundRun(label or names[0], tuple(files), tuple(results))


def find_runs(
    words: Sequence[str], root: Path, baseline: str | None = None
) -> tuple[list[FoundRun], str]:
    """The requested runs, and the name of the baseline among them.

    Args:
        baseline: one of the runs, by its name or as it was given; any other run is found like
            these and put before them. None: the first.
    """
    runs = [find_run(word, root) for word in words]
    if not runs:
        raise SightlineError("no run to compare; name at least one")
    if baseline is None:
        return runs, runs[0].name
    for word, run in zip(words, runs, strict=True):
        if baseline in (run.name, word):
            return runs, run.name
    first = find_run(baseline, root)
    return [first, *runs], first.name


def comparable(runs: Sequence[FoundRun]) -> tuple[list[FoundRun], list[str]]:
    """Reduce results to the tasks that all of them have, and refuse what is in no table together.

    Returns:
        The runs in their order, and notes on what was left out.

    Raises:
        SightlineError: a run and seed given twice, or results scored on no common task or on
            different test sets (names the files).
    """
    runs, notes = list(runs), list[str]()
    every = [result.tasks for run in runs for result in run.results]
    scored = dict.fromkeys(name for tasks in every for name, task in tasks.items() if task.scores)
    left_out = [name for name in scored if any(name not in tasks for tasks in every)]
    if left_out and len(left_out) < len(scored):
        notes.append(f"left out, as not every run was scored on it: {', '.join(left_out)}")
        kept = {name for tasks in every for name in tasks}.difference(left_out)
        runs = [
            replace(run, results=tuple(result.restricted(kept) for result in run.results))
            for run in runs
        ]
    _check_comparable(runs)
    return runs, notes


def _check_comparable(runs: Sequence[FoundRun]) -> None:
    files: dict[tuple[str, int], Path] = {}
    every = [pair for run in runs for pair in zip(run.files, run.results, strict=True)]
    for file, result in every:
        twin = files.setdefault((result.run, result.seed), file)
        if twin is not file:
            raise SightlineError(
                f"run {result.run!r} has seed {result.seed} twice: {twin} and {file}; give each "
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
                "score one on the tasks of the other"
            )
    _check_test_sets(every)


def _check_test_sets(every: Sequence[tuple[Path, RunResult]]) -> None:
    first_of: dict[str, tuple[Path, RunResult]] = {}
    for file, result in every:
        for task, tested in result.evaluated_on.items():
            other_file, first = first_of.setdefault(task, (file, result))
            expected = first.evaluated_on[task]
            if tested.sha256 != expected.sha256:
                raise SightlineError(
                    f"{task} was scored on different test sets: {_of_set(tested)} in {file}, "
                    f"{_of_set(expected)} in {other_file}; score one again on the data of the "
                    "other, or delete the result that you no longer want"
                )


def _of_set(tested: EvaluationSet) -> str:
    digest = f"SHA-256 {tested.sha256[:12]}"
    return digest if tested.examples is None else f"{tested.examples} examples ({digest})"


def _place(word: str, root: Path) -> Path:
    """Where the results are: a run's folder takes precedence over a path of the same name."""
    name = word.rstrip("/")
    folder = result_folder(root, name)
    return folder if name and folder.is_dir() else Path(word)


def _files(word: str, root: Path) -> list[Path]:
    path = _place(word, root)
    if word and path.is_dir():
        files, runs = results_in(path), _runs_below(path)
        if not files:
            raise SightlineError(
                f"{path}: no result file here; expected {SEEDS}, {FILE_NAME} or MTEB's results"
                + (f"; below it are the runs {', '.join(runs)}" if runs else "")
                + ("; `sightline evaluate` --out writes those of a run" if _has_runs(path) else "")
            )
        return files
    if path.suffix == ".json" and path.exists():
        return [path]
    if path.is_file():
        raise SightlineError(f"{path}: is not a result; expected a file of results (.json)")
    raise SightlineError(
        f"{unknown(word, _runs_below(root), 'run')}; expected one of {root}, whose evaluate stage "
        "has run, a folder of results, or a file of them"
    )


def _has_runs(folder: Path) -> bool:
    return any(file for pattern in ("", "*/", "*/*/") for file in folder.glob(f"{pattern}run.json"))


def _runs_below(root: Path) -> list[str]:
    files = (*root.glob(f"*/{SEEDS}"), *root.glob(f"*/{FILE_NAME}"))
    return sorted({run_of(file.parent) for file in files})
